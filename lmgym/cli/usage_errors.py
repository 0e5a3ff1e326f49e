"""Errors of click's command lines as one line on stderr with exit code 2, like those of experiments."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import click

from lmgym.errors import InputError, one_line
from lmgym.runs.flags import exit_with_error


@final
class OneLineErrors(click.Group):
    """A group of commands that prints usage errors without click's usage lines."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Parses the flags of the group."""
        with _one_line_errors():
            return super().make_context(*arguments, **settings)

    def invoke(self, context: click.Context) -> Any:
        """Parses the flags of a command, and runs it."""
        with _one_line_errors():
            return super().invoke(context)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if not isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # from click 8.2
            message = one_line(error.format_message().rstrip("."), 500)
            exit_with_error(InputError(f"{message} (see --help)"))
        raise

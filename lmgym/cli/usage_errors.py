"""Mistakes on click's command lines, told as those of experiments are: in one line on stderr, with exit code 2."""

from typing import Any, final

import click

from lmgym.errors import InputError, one_line
from lmgym.runs.flags import leave


@final
class OneLineErrors(click.Group):
    """A group of commands without click's lines on usage around what is wrong."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """The group's own flags, as click reads them."""
        try:
            return super().make_context(*arguments, **settings)
        except click.UsageError as error:
            _leave(error)
            raise

    def invoke(self, context: click.Context) -> Any:
        """A command's flags, as click reads them, and the command."""
        try:
            return super().invoke(context)
        except click.UsageError as error:
            _leave(error)
            raise


def _leave(error: click.UsageError) -> None:
    """Ends the process, but where a bare group shows its help."""
    shows_help = getattr(click.exceptions, "NoArgsIsHelpError", ())  # of click 8.2 on
    if not isinstance(error, shows_help):
        words = one_line(error.format_message().rstrip("."), 500)
        leave(InputError(f"{words} (--help lists what there is)"))

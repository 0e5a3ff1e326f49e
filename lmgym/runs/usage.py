"""Errors of click's command lines as one line on stderr with exit code 2, like those of experiments."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import click

from lmgym.errors import InputError, misspelt, one_line, shown
from lmgym.runs.flags import exit_with_error


@final
class OneLineErrors(click.Group):
    """A group of commands that prints usage errors without click's usage lines.

    Its help has the commands in `sections`, titles with names of commands, and ends with what `closing` writes. A first
    word that ends in .py is given to the command `file_command`. The error for a word that is no command suggests what
    `elsewhere` returns for it, or the nearest command.
    """

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, Sequence[str]] | None = None,
        closing: Callable[[click.HelpFormatter], None] | None = None,
        file_command: str | None = None,
        elsewhere: Callable[[str], str | None] = lambda word: None,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.sections, self.closing, self.file_command = sections, closing, file_command
        self.elsewhere = elsewhere

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their summaries, each a whole sentence."""
        sections = self.sections or {"Commands": self.list_commands(context)}
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=200)) for name in names])
        if self.closing:
            self.closing(formatter)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parses the group's own flags; the rest is a command with its arguments."""
        if self.file_command and args and args[0].endswith(".py"):
            args = [self.file_command, *args]
        return super().parse_args(context, args)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """The command that the first word names."""
        word, names = args[0], self.list_commands(context)
        if word in names or word.startswith("-"):
            found = super().resolve_command(context, args)
            if found[1]:
                _refuse_repeated(found[1], context, found[2])
            return found
        command = self.elsewhere(word)
        near = misspelt(word, names)
        available = f"{f'did you mean {near}? ' if near else ''}available: {', '.join(names)}"
        needed = f"needed: {command}" if command else available
        raise click.UsageError(f"No such command {shown(word)}; {needed}")

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Parses the flags of the group."""
        with _one_line_errors():
            return super().make_context(*arguments, **settings)

    def invoke(self, context: click.Context) -> Any:
        """Parses the flags of a command, and runs it."""
        with _one_line_errors():
            return super().invoke(context)


def _refuse_repeated(command: click.Command, parent: click.Context, words: Sequence[str]) -> None:
    """Raises UsageError for an option that is given twice and keeps one value: click would use the last in silence."""
    context = command.context_class(command, parent=parent, info_name=command.name, **command.context_settings)
    try:
        _, _, order = command.make_parser(context).parse_args(list(words))
    except click.UsageError:
        return  # said by the command, which parses them again
    for option in dict.fromkeys(order):
        keeps_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count)
        if keeps_one and order.count(option) > 1:
            form, about = option.get_help_record(context) or (option.opts[0], "")
            found = f"{option.opts[0]} is given {order.count(option)} times"
            raise click.UsageError(f"{found}; needed: it once, {form}: {about}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if not isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # from click 8.2
            message = one_line(error.format_message().rstrip("."), 500)
            exit_with_error(InputError(f"{message} (see --help)"))
        raise

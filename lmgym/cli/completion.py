"""Completion by Tab behind `lmgym`: experiments, the flags of a stage, their values, and files."""

from collections.abc import Sequence
from typing import Any, Literal, final, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from lmgym.runs.fields import flag_types
from lmgym.runs.flag_help import ALL
from lmgym.runs.launching import FORMS, config_of, experiments

FILES = [CompletionItem("", type="file")]
"""the shell offers its own"""


def first_word(word: str, incomplete: str) -> list[CompletionItem]:
    """Behind `lmgym train WORD`: the experiments, a file or folder of one's own, or flags."""
    names = [name for name in experiments(FORMS[word].stage) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or FILES


def values(word: str, experiment: str | None, before: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """The values of the last flag before the word: those that it has, or files where it takes a text."""
    flag = next((one for one in reversed(before) if one.startswith("--")), "").removeprefix("--").partition("=")[0]
    if flag == "help":
        return [CompletionItem(ALL)]
    hint = _flags(word, experiment).get(flag.replace("-", "_"))
    if hint is None:
        return FILES
    choices = [choice for choice in _choices(hint) if choice.startswith(incomplete)]
    return [CompletionItem(choice) for choice in choices] or (FILES if _takes_text(hint) else [])


@final
class StageCommand(click.Command):
    """`lmgym train WORD`, whose flags are those of the experiment."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Adds the flags of the experiment that was named, or of the word's own."""
        assert self.name is not None
        names = (f"--{name}" for name in _flags(self.name, ctx.params.get("experiment")))
        own = super().shell_complete(ctx, incomplete)
        known = {item.value for item in own}
        return [*own, *(CompletionItem(n) for n in names if n.startswith(incomplete or "--") and n not in known)]


def _flags(word: str, experiment: str | None) -> dict[str, Any]:
    """The annotations of an experiment's flags, of those that are lmgym's: a file of the user's is not run."""
    name = experiment if experiment in experiments(FORMS[word].stage) else None
    return flag_types(config_of(word, name))


def _choices(hint: Any) -> list[str]:
    """The values of an annotation that has few."""
    if get_origin(hint) is Literal:
        return [str(one) for one in get_args(hint)]
    if hint is bool:
        return ["true", "false"]
    return [choice for part in get_args(hint) for choice in _choices(part)]


def _takes_text(hint: Any) -> bool:
    return hint is str or any(map(_takes_text, get_args(hint)))


def offer_files(command: click.Command) -> None:
    """Lets the shell offer files for each argument and option of a command, and of those below it, that takes any text
    and offers nothing else.
    """
    for one in command.params:
        if isinstance(one.type, click.types.StringParamType) and one._custom_shell_complete is None:
            one._custom_shell_complete = lambda context, parameter, incomplete: FILES
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        offer_files(below)

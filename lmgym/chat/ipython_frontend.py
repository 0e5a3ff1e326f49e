"""A session in IPython: a typed line is the next turn; >, !, ? and % begin Python, shell, help and magic lines.

An input transformer that runs before all others turns a typed cell into a call, so that quotes, brackets and question
marks are plain text. Our own commands take the same way, since IPython would expand `{x}` in a line magic and read a
question mark at its end as help. Cells that are run by a running cell (`%timeit f()`, `%run x.ipy`) are not turns.
"""

import builtins
import contextlib
from collections.abc import Callable
from typing import Any

from lmgym.chat.actions import ChatView
from lmgym.chat.commands import COMMANDS, LEAVE, ChatCommand, complete, split_command
from lmgym.chat.screen import make_console
from lmgym.chat.terminal_frontend import answer, greet

SAY = "_lmgym_say"


def attach(shell: Any, chat: ChatView) -> None:
    """Makes a running IPython the session's front end, with the variable `session`."""
    console = make_console()

    def say(line: str) -> None:
        shell.user_ns.setdefault("session", chat.session)  # %reset deletes all names
        with contextlib.suppress(KeyboardInterrupt):
            answer(console, chat, line)

    shell.user_ns["session"] = chat.session
    setattr(builtins, SAY, say)
    manager, cells = shell.input_transformer_manager, CellTransformer()
    shell.events.register("pre_run_cell", cells.begin)
    shell.events.register("post_run_cell", cells.end)
    manager.cleanup_transforms.insert(0, cells.transform)
    assert manager.cleanup_transforms is shell.input_transformers_cleanup
    manager.check_complete = _complete_at_enter(manager.check_complete)
    for name, command in COMMANDS.items():
        shell.register_magic_function(_magic(say, name, command), "line", name)
        shell.set_hook("complete_command", lambda _, event: complete(chat, event.text_until_cursor), str_key=f"%{name}")
    greet(console, chat)
    console.print("Python: > session.history[-1].df   shell: !ls   help: ?")


class CellTransformer:
    """Transforms cells that are typed, but not those that a running cell runs."""

    def __init__(self) -> None:
        self.running = False

    def begin(self, info: Any) -> None:
        """Called by IPython when a cell, already transformed, starts to run."""
        self.running = True

    def end(self, result: Any) -> None:
        """Called when a cell ends. A flag, not a count, recovers if a signal prevents one of these calls."""
        self.running = False

    def transform(self, lines: list[str]) -> list[str]:
        """`transform`, for typed cells only."""
        return lines if self.running else transform(lines)


def is_ours(cell: str) -> bool:
    """True for a turn or one of our commands; False for Python, magics, the shell and help."""
    stripped = cell.strip()
    if not stripped or stripped in LEAVE:
        return False
    if cell.startswith("%"):
        name = split_command(cell)[0]
        return name in COMMANDS and not cell.startswith("%%")
    return not cell.startswith(("!", "?", ">"))


def transform(lines: list[str]) -> list[str]:
    """A cell's lines as Python: turns and our commands as a call, `> code` without `>`."""
    cell = "".join(lines)
    if is_ours(cell):
        return [f"{SAY}({cell.rstrip(chr(10))!r})\n"]
    if cell.startswith(">") and not cell.startswith(">>>"):  # IPython removes >>> itself
        return [line.removeprefix(">").removeprefix(" ") for line in lines]
    if cell.strip() in LEAVE:
        return [f"{cell.strip()}\n"]
    return lines


def _complete_at_enter(check: Callable[[str], tuple[str, Any]]) -> Callable[[str], tuple[str, Any]]:
    """Ends a turn at Enter in any case: IPython would wait for more after a backslash."""
    return lambda cell: ("complete", None) if is_ours(cell) else check(cell)


def _magic(say: Callable[[str], None], name: str, command: ChatCommand) -> Callable[[str], None]:
    def magic(line: str) -> None:
        say(f"%{name} {line}")

    magic.__doc__ = f"{command.usage}: {command.help}"
    magic._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]
    return magic

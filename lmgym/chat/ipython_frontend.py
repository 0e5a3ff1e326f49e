"""A session in IPython: a typed line is the next turn, and Python, the shell and help stand behind > ! ? and %.

A transformer that sees a cell before all others turns it into a call, so that quotes, brackets and question marks are
words like any other. Our own commands go the same way: IPython would expand `{x}` in a line magic and take a question
mark at its end for help. Cells that a running cell runs (`%timeit f()`, `%run x.ipy`) are nobody's turns.
"""

import builtins
import contextlib
from collections.abc import Callable
from typing import Any

from lmgym.chat.actions import Talk
from lmgym.chat.commands import COMMANDS, LEAVE, complete, split
from lmgym.chat.screen import make_console
from lmgym.chat.terminal_frontend import answer, greet

SAY = "_lmgym_say"


def take_over(shell: Any, talk: Talk) -> None:
    """Makes a running IPython the session's front end; `session` is there as a live object."""
    console = make_console()

    def say(line: str) -> None:
        shell.user_ns.setdefault("session", talk.session)  # %reset takes all names away
        with contextlib.suppress(KeyboardInterrupt):
            answer(console, talk, line)

    shell.user_ns["session"] = talk.session
    setattr(builtins, SAY, say)
    manager, cells = shell.input_transformer_manager, Cells()
    shell.events.register("pre_run_cell", cells.begin)
    shell.events.register("post_run_cell", cells.end)
    manager.cleanup_transforms.insert(0, cells.transform)
    assert manager.cleanup_transforms is shell.input_transformers_cleanup
    manager.check_complete = _always_whole(manager.check_complete)
    for name, command in COMMANDS.items():
        magic = _magic(say, name, command.help, command.usage)
        shell.register_magic_function(magic, "line", name)
        shell.set_hook("complete_command", _completer(talk), str_key=f"%{name}")
    greet(console, talk)
    console.print("Python: > session.history[-1].df   shell: !ls   help: ?")


class Cells:
    """Tells cells that are typed, which may be turns, from those that a running cell runs."""

    def __init__(self) -> None:
        self.running = False

    def begin(self, info: Any) -> None:
        """A typed cell has been transformed by now."""
        self.running = True

    def end(self, result: Any) -> None:
        """Not a count: were a signal to swallow one end, the next would set it right."""
        self.running = False

    def transform(self, lines: list[str]) -> list[str]:
        """`transform` of what is typed."""
        return lines if self.running else transform(lines)


def is_ours(cell: str) -> bool:
    """Whether a cell is a turn or one of our commands, rather than Python, a magic, the shell or help."""
    stripped = cell.strip()
    if not stripped or stripped in LEAVE:
        return False
    if cell.startswith("%"):
        name = split(cell)[0]
        return name in COMMANDS and not cell.startswith("%%")
    return not cell.startswith(("!", "?", ">"))


def transform(lines: list[str]) -> list[str]:
    """A cell's lines as Python: turns and our commands as a call, `> code` without the mark."""
    cell = "".join(lines)
    if is_ours(cell):
        return [f"{SAY}({cell.rstrip(chr(10))!r})\n"]
    if cell.startswith(">") and not cell.startswith(">>>"):  # IPython itself takes off the prompt of pasted examples
        return [line.removeprefix(">").removeprefix(" ") for line in lines]
    if cell.strip() in LEAVE:
        return [f"{cell.strip()}\n"]
    return lines


def _always_whole(check: Callable[[str], tuple[str, Any]]) -> Callable[[str], tuple[str, Any]]:
    """A turn ends with Enter, whatever it ends with: IPython would wait for more after a backslash."""
    return lambda cell: ("complete", None) if is_ours(cell) else check(cell)


def _magic(say: Callable[[str], None], name: str, text: str, usage: str) -> Callable[[str], None]:
    def magic(line: str) -> None:
        say(f"%{name} {line}")

    magic.__doc__ = f"{usage}: {text}"
    magic._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]
    return magic


def _completer(talk: Talk) -> Callable[[Any, Any], list[str]]:
    return lambda shell, event: complete(talk, event.text_until_cursor)

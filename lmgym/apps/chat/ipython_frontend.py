"""A session in IPython: a typed line is the next turn; >, !, ? and % begin Python, shell, help and magic lines.

An input transformer that runs before all others turns a typed cell into a call, so that quotes, brackets and question
marks are plain text. Our own commands take the same way, since IPython would expand `{x}` in a line magic and read a
question mark at its end as help; and so do unknown ones, for which we suggest the most similar. Cells that are run by a
running cell (`%timeit f()`, `%run x.ipy`) are not turns.
"""

import builtins
from collections.abc import Callable
from typing import Any

from IPython.terminal.prompts import Prompts
from prompt_toolkit.key_binding import merge_key_bindings
from pygments.token import Token

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.keyboard import new_line_keys
from lmgym.apps.chat.screen import make_console
from lmgym.apps.chat.session_commands import COMMANDS, LEAVE, ChatCommand, complete, split_command
from lmgym.apps.chat.terminal_frontend import PROMPT, answer, greet
from lmgym.console import say
from lmgym.errors import InputError

SAY = "_lmgym_say"


def hide_banner(shell: Any) -> None:
    """Scrolls IPython's banner, which it prints before it runs a script, out of the screen."""
    if getattr(shell.parent, "display_banner", False):
        console = make_console()
        console.print("\n" * (console.height - 1))
        console.clear()


def attach(shell: Any, chat: ChatView) -> None:
    """Makes a running IPython the session's front end, with the variable `session`."""
    console = make_console()

    def respond_to(line: str) -> None:
        shell.user_ns.setdefault("session", chat.session)  # %reset deletes all names
        answer(console, chat, line)

    def is_magic(name: str) -> bool:
        magics = shell.magics_manager
        return any(name in table for table in (*magics.magics.values(), magics.lazy_magics))

    shell.user_ns["session"] = chat.session
    setattr(builtins, SAY, respond_to)
    manager, cells = shell.input_transformer_manager, CellTransformer(is_magic)
    shell.events.register("pre_run_cell", cells.begin)
    shell.events.register("post_run_cell", cells.end)
    manager.cleanup_transforms.insert(0, cells.transform)
    assert manager.cleanup_transforms is shell.input_transformers_cleanup
    manager.check_complete = _complete_at_enter(manager.check_complete, is_magic)
    for name, command in COMMANDS.items():
        shell.register_magic_function(_magic(respond_to, name, command), "line", name)
        shell.set_hook("complete_command", lambda _, event: complete(chat, event.text_until_cursor), str_key=f"%{name}")
    shell.set_custom_exc((InputError,), _say_error)  # of `> session.pick(9)`
    shell.prompts = ChatPrompts(shell)
    if shell.pt_app is not None:  # as on a dumb terminal
        shell.pt_app.key_bindings = merge_key_bindings([shell.pt_app.key_bindings, new_line_keys()])
    greet(console, chat)
    console.print("> runs Python (> session.last.df), ! runs a shell command (!ls).")


class ChatPrompts(Prompts):
    """Prompts of a chat, without IPython's numbers."""

    def in_prompt_tokens(self) -> list[tuple[Any, str]]:
        """The prompt of a message."""
        return [(Token.Prompt, PROMPT)]

    def continuation_prompt_tokens(self, *arguments: Any, **settings: Any) -> list[tuple[Any, str]]:
        """The indentation of further lines."""
        return [(Token.Prompt, " " * len(PROMPT))]

    def out_prompt_tokens(self) -> list[tuple[Any, str]]:
        """Nothing before a Python value."""
        return []


def _say_error(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> None:
    """A user's error in one line instead of a traceback."""
    say(f"error: {error}", error=True)


class CellTransformer:
    """Transforms cells that are typed, but not those that a running cell runs."""

    def __init__(self, is_magic: Callable[[str], bool]) -> None:
        self.running, self.is_magic = False, is_magic

    def begin(self, info: Any) -> None:
        """Called by IPython when a cell, already transformed, starts to run."""
        self.running = True

    def end(self, result: Any) -> None:
        """Called when a cell ends. A flag, not a count, recovers if a signal prevents one of these calls."""
        self.running = False

    def transform(self, lines: list[str]) -> list[str]:
        """`transform`, for typed cells only."""
        return lines if self.running else transform(lines, self.is_magic)


def is_ours(cell: str, is_magic: Callable[[str], bool]) -> bool:
    """True for a turn, our commands and unknown ones; False for Python, IPython's magics, the shell and help."""
    stripped = cell.strip()
    if not stripped or stripped in LEAVE:
        return False
    if cell.startswith("%"):
        name = split_command(cell)[0]
        known = name.rstrip("?")  # %pick? is a request for IPython's help
        return name in COMMANDS or not (name.startswith("%") or known in COMMANDS or is_magic(known))
    return not cell.startswith(("!", "?", ">"))


def transform(lines: list[str], is_magic: Callable[[str], bool]) -> list[str]:
    """A cell's lines as Python: turns and our commands as a call, `> code` without `>`."""
    cell = "".join(lines)
    if is_ours(cell, is_magic):
        return [f"{SAY}({cell.rstrip(chr(10))!r})\n"]
    if cell.startswith(">") and not cell.startswith(">>>"):  # IPython removes >>> itself
        return [line.removeprefix(">").removeprefix(" ") for line in lines]
    if cell.strip() in LEAVE:
        return [f"{cell.strip()}\n"]
    return lines


def _complete_at_enter(
    check: Callable[[str], tuple[str, Any]], is_magic: Callable[[str], bool]
) -> Callable[[str], tuple[str, Any]]:
    """Ends a turn at Enter in any case: IPython would wait for more after a backslash."""
    return lambda cell: ("complete", None) if is_ours(cell, is_magic) else check(cell)


def _magic(respond_to: Callable[[str], None], name: str, command: ChatCommand) -> Callable[[str], None]:
    def magic(line: str) -> None:
        respond_to(f"%{name} {line}")

    magic.__doc__ = f"{command.usage}: {command.help}"
    magic._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]
    return magic

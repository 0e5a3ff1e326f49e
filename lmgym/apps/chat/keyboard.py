"""A user's typing, read by prompt_toolkit: messages of several lines, pasted blocks, Tab, and keys typed ahead."""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.application.current import get_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.session_commands import complete

READ_SECONDS = 0.05


def new_line_keys() -> KeyBindings:
    """Alt-Enter, which terminals send as Esc and Enter, begins a new line."""
    keys = KeyBindings()
    keys.add("escape", "enter")(_begin_line)
    return keys


def _begin_line(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)


def make_prompt(chat: ChatView | None = None) -> Callable[[str], str]:
    """A function that shows its argument and returns the message that is typed after it.

    Enter ends a message, also of several lines; Tab completes the chat's commands.
    """
    if is_dumb_terminal():
        return input
    keys = new_line_keys()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    editor: PromptSession[str] = PromptSession(
        multiline=True,
        key_bindings=keys,
        completer=None if chat is None else CommandCompleter(chat),
        complete_style=CompleteStyle.READLINE_LIKE,
        complete_while_typing=False,
        prompt_continuation=lambda width, *_: " " * width,
    )
    return lambda prompt: editor.prompt([("ansigreen", prompt)])


class CommandCompleter(Completer):
    """Completes the commands of a chat."""

    def __init__(self, chat: ChatView) -> None:
        self.chat = chat

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The words that may stand for the last one."""
        line = document.text_before_cursor
        for word in complete(self.chat, line):
            yield Completion(word, -len(line.rpartition(" ")[2]))


@contextlib.contextmanager
def keys_kept_for_the_prompt() -> Iterator[None]:
    """A context in which typed keys are not shown, and appear at the next prompt; Ctrl-C interrupts as usual.

    They are read all the time: a terminal holds 4 kB, and what is pasted beyond that would keep Ctrl-C out.
    """
    if is_dumb_terminal() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    terminal, done = get_app_session(), threading.Event()  # of all prompts, IPython's too
    reader = threading.Thread(target=_read_keys, args=(terminal.input, done), name="keys", daemon=True)
    with terminal.input.raw_mode():
        terminal.output.enable_bracketed_paste()
        terminal.output.flush()
        reader.start()
        try:
            yield
        finally:
            done.set()
            reader.join()
            terminal.output.disable_bracketed_paste()
            terminal.output.flush()


def _read_keys(source: Input, done: threading.Event) -> None:
    """Stores keys for the next prompt until `done`."""
    while not done.wait(READ_SECONDS):
        while not source.closed and select.select([source.fileno()], [], [], 0)[0]:
            keys = source.read_keys()
            if any(press.key == Keys.ControlC for press in keys):
                os.kill(os.getpid(), signal.SIGINT)
            store_typeahead(source, [press for press in keys if press.key != Keys.ControlC])

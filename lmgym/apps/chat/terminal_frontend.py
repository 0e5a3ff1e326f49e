"""A session in a plain terminal."""

import contextlib
import sys

from rich.text import Text

from lmgym.apps.chat.actions import ChatView, shown_file
from lmgym.apps.chat.screen import make_console, progress_on, show
from lmgym.apps.chat.session_commands import LEAVE, complete, respond
from lmgym.console import CleanConsole, clean, printed_line, say

PROMPT = "you> "
GREETING = "Type a message. %help lists commands, exit leaves, Ctrl-C stops a reply."
NEEDS_IPYTHON = "Python and the shell need IPython: python3 -m IPython -i -- eval_rewards_api.py ..."


def converse(chat: ChatView) -> None:
    """Answers lines until exit, quit or the end of input."""
    console = make_console()
    _complete_with_tab(chat)
    greet(console, chat)
    while True:
        try:
            line = input(f"\n{PROMPT}")
        except KeyboardInterrupt:
            say()
            say("(exit or quit leaves)")
            continue
        except EOFError:
            say()
            return
        if line.strip() in LEAVE:
            return
        if line.startswith(("!", ">")):
            console.print(NEEDS_IPYTHON)
            continue
        with contextlib.suppress(KeyboardInterrupt):
            answer(console, chat, "%help" if line.startswith("?") else line)


def answer(console: CleanConsole, chat: ChatView, line: str) -> None:
    """Shows the progress of the response to a line, then the response."""
    with progress_on(sys.stderr) as progress:
        response = respond(chat, line, progress)
    show(console, chat, response)


def greet(console: CleanConsole, chat: ChatView) -> None:
    """Shows the instructions, the scorers, the notes and the bot's first message."""
    session = chat.session
    console.print(Text(GREETING))
    console.print(Text(f"Scorers: {', '.join(session.judges)}; {session.selects} selects."))
    for line in start_notes(chat):
        console.print(Text(printed_line(line)))
    for turn in session.opening:
        console.print(Text(f"bot> {clean(turn.text)}"))


def start_notes(chat: ChatView) -> list[str]:
    """Notes at the start of every session: the sampling, the chat template and the session's file."""
    return [*filter(None, [chat.sampling_note, chat.template_note]), f"session file: {shown_file(chat.session.path)}"]


def _complete_with_tab(chat: ChatView) -> None:
    try:
        import readline
    except ImportError:  # some builds of Python lack it
        return

    def candidate(word: str, index: int) -> str | None:
        options = complete(chat, readline.get_line_buffer()[: readline.get_endidx()])
        return options[index] if index < len(options) else None

    readline.set_completer(candidate)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")

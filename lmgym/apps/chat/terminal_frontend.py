"""A session in a plain terminal."""

import contextlib
import sys

from rich.text import Text

from lmgym.apps.chat.actions import ChatView, shown_file
from lmgym.apps.chat.keyboard import keys_kept_for_the_prompt, make_prompt
from lmgym.apps.chat.screen import make_console, progress_on, show
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import LEAVE, respond
from lmgym.console import CleanConsole, clean, printed_line, say

PROMPT = "you> "
GREETING = (
    "Type a message. Alt-Enter (or Esc, then Enter) begins a new line.\n"
    "%help lists commands, exit leaves, Ctrl-C stops a reply."
)
NEEDS_IPYTHON = (
    "Python and the shell need IPython: python3 -m IPython -i -- eval_rewards_api.py ...\n"
    "To send this as a message, put a space before it."
)


def converse(chat: ChatView) -> None:
    """Answers messages until exit, quit or the end of input."""
    console, read_message = make_console(), make_prompt(chat)
    greet(console, chat)
    while True:
        say()
        try:
            line = read_message(PROMPT)
        except KeyboardInterrupt:
            say("(exit or quit leaves)")
            continue
        except EOFError:
            return
        if line.strip() in LEAVE:
            return
        if line.startswith(("!", ">")):
            console.print(NEEDS_IPYTHON)
            continue
        answer(console, chat, "%help" if line.startswith("?") else line)


def answer(console: CleanConsole, chat: ChatView, line: str) -> None:
    """Shows the progress of the response to a line, then the response."""
    with contextlib.suppress(KeyboardInterrupt), keys_kept_for_the_prompt():
        with progress_on(sys.stderr) as progress:
            response = respond(chat, line, progress)
        show(console, chat, response)


def greet(console: CleanConsole, chat: ChatView) -> None:
    """Shows the instructions, the scorers, the notes and the bot's first message."""
    session = chat.session
    console.print(Text(GREETING))
    console.print(Text(describe_scorers(session)))
    for line in start_notes(chat):
        console.print(Text(printed_line(line)))
    for turn in session.opening:
        console.print(Text(f"bot> {clean(turn.text)}"))


def describe_scorers(session: ChatSession) -> str:
    """The scorers, and the one that selects, in a line."""
    if session.judges:
        return f"Scorers: {', '.join(session.judges)}; {session.selects} selects."
    if session.best_of == 1:
        return "No scorer; %scorers PATH adds one."
    return "No scorer: the first reply is taken, or the one that you %pick; %scorers PATH adds one."


def start_notes(chat: ChatView) -> list[str]:
    """Notes at the start of every session: the sampling, the chat template and the session's file."""
    return [*filter(None, [chat.sampling_note, chat.template_note]), f"session file: {shown_file(chat.session.path)}"]

"""A session in a plain terminal: a loop that reads a line and shows what comes of it."""

import contextlib
import sys

from rich.text import Text

from lmgym.chat.actions import Talk
from lmgym.chat.commands import LEAVE, complete, respond
from lmgym.chat.screen import make_console, progress_on, show
from lmgym.console import clean, printed_line, say

GREETING = (
    "A line is your next turn; %help lists the commands (Tab completes); exit or quit leaves, Ctrl-C stops a reply."
)
NOT_HERE = "Python and the shell are there with python3 -m IPython -i -- eval_rewards_api.py ..."


def converse(talk: Talk) -> None:
    """Until exit, quit or the end of input."""
    console = make_console()
    _complete_with_tab(talk)
    greet(console, talk)
    while True:
        try:
            line = input("\nYou: ")
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
            console.print(NOT_HERE)
            continue
        with contextlib.suppress(KeyboardInterrupt):
            answer(console, talk, "%help" if line.startswith("?") else line)


def answer(console, talk: Talk, line: str) -> None:
    """Responds to a line with progress, and shows what came of it."""
    with progress_on(sys.stderr) as progress:
        shown = respond(talk, line, progress)
    show(console, talk, shown)


def greet(console, talk: Talk) -> None:
    """How it works, who is there, and what the bot says first."""
    session = talk.session
    console.print(Text(GREETING))
    console.print(Text(f"Scorers: {', '.join(session.judges)}; {session.selects} selects."))
    for line in facts(talk):
        console.print(Text(printed_line(line)))
    for turn in session.opening:
        console.print(Text(f"Bot: {clean(turn.text)}"))


def facts(talk: Talk) -> list[str]:
    """What is told of every session as it begins: how replies are drawn, and where it is kept."""
    return [*filter(None, [talk.samples, talk.template]), f"the session is kept in {talk.session.path}"]


def _complete_with_tab(talk: Talk) -> None:
    try:
        import readline
    except ImportError:  # some builds of Python have none
        return

    def candidate(word: str, index: int) -> str | None:
        found = complete(talk, readline.get_line_buffer()[: readline.get_endidx()])
        return found[index] if index < len(found) else None

    readline.set_completer(candidate)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")

"""A session in a plain terminal: a loop that reads a line and shows what comes of it."""

import contextlib
import sys

from reward_models.evaluation.actions import Talk
from reward_models.evaluation.commands import LEAVE, complete, respond
from reward_models.evaluation.screen import make_console, progress_line, show

GREETING = (
    "A line is your next turn; %help lists the commands (Tab completes); exit or quit leaves, Ctrl-C stops a reply."
)


def converse(talk: Talk) -> None:
    """Until exit, quit or the end of input."""
    console = make_console()
    _complete_with_tab(talk)
    greet(console, talk)
    while True:
        try:
            line = input("\nYou: ")
        except KeyboardInterrupt:
            print("\n(exit or quit leaves)")
            continue
        except EOFError:
            print()
            return
        if line.strip() in LEAVE:
            return
        if line.startswith(("!", ">")) or line.strip() == "?":
            line = "%help" if line.strip() == "?" else line
            if line != "%help":
                console.print("Python and the shell are there with python3 -m IPython -i -- eval_rewards_api.py ...")
                continue
        with contextlib.suppress(KeyboardInterrupt):
            answer(console, talk, line)


def answer(console, talk: Talk, line: str) -> None:
    """Responds to a line with progress, and shows what came of it."""
    progress = progress_line(sys.stderr)
    shown = respond(talk, line, progress)
    if progress:
        progress.close()
    show(console, talk, shown)


def greet(console, talk: Talk) -> None:
    """How it works, who is there, and what the bot says first."""
    from rich.text import Text

    from reward_models.evaluation.cleaning import clean

    session = talk.session
    console.print(Text(GREETING))
    console.print(Text(f"Scorers: {', '.join(session.judges)}; {session.selects} selects. Kept in {session.path}"))
    for turn in session.opening:
        console.print(Text(f"Bot: {clean(turn.text)}"))


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

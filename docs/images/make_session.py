"""Draws docs/images/session.svg: a real session of the random baseline, as a terminal shows it.

python docs/images/make_session.py [FILE.svg]
"""

import io
import sys
import tempfile
from pathlib import Path

from rich.text import Text

from lmgym.apps.chat.screen import show
from lmgym.apps.chat.session_commands import respond
from lmgym.apps.chat.startup import ChatOptions, open_chat
from lmgym.apps.chat.terminal_frontend import PROMPT
from lmgym.console import CleanConsole

LINES = ("i went for a walk today", "%pick 2", "%more 2", "it rained, but i liked it", "%history")
WIDTH = 84


def main(path: Path) -> None:
    """Chats, and draws the screen."""
    console = CleanConsole(WIDTH, io.StringIO(), "standard", force_terminal=True)
    console.record = True
    with tempfile.TemporaryDirectory() as folder:
        chat = open_chat(ChatOptions("random_baseline", "random_b", best_of=4, sessions=f"{folder}/outputs/sessions"))
        console.print(Text(f"bot> {chat.session.opening[0].text}"))  # without the greeting, which has a time and a path
        for line in LINES:
            console.print(Text.assemble("\n", (PROMPT, "green"), line))
            show(console, chat, respond(chat, line))
    path.write_text(console.export_svg(title="lmgym", unique_id="session"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("session.svg"))

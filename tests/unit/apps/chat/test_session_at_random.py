"""Random commands in random order leave the session consistent and equal to its file."""

import io
import random
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.apps.chat.actions import ChatView, Response
from lmgym.apps.chat.exchanges import Exchange
from lmgym.apps.chat.pipe_frontend import as_object, json_line
from lmgym.apps.chat.records import load
from lmgym.apps.chat.screen import make_console, show
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import respond
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.scoring.random_scorer import RandomScorer

LINES = (
    "hello", "a line of {step}", "%pick {a}", "%pick {b}", "%tie", "%tie {a} {b}", "%reject", "%write mine {step}",
    "%retry", "%more {b}", "%undo", "%back {a}", "%back 0", "%edit {a} new {step}", "%edit x", "%blind on",
    "%blind off", "%best_of {b}", "%select fails", "%select low", "%blend high={a} low={b}", "%table ranks", "%table z",
    "%why", "%why {a}", "%agree", "%status", "%persona {step}", "%save {folder}/s.jsonl", "%load {folder}/s.jsonl",
    "%export prefs {folder}/p.jsonl", "%set temperature=.5", "%nothing", "", " %said",
    "%first_message {step}", '%first_message ""',
    *("hello", "%back {a}", "%pick {b}") * 3,
)  # fmt: skip


NEW = ("hello", "a line", " %said", "%retry", "%edit")


class Fails:
    """A scorer that raises at random."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.works = draw, RandomScorer(9)

    def score(self, conversations, replies):
        if self.draw.random() < 0.1:
            raise RuntimeError("out of order")
        return self.works.score(conversations, replies)


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_leave_the_session_and_its_file_consistent(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    generator = ScriptedGenerator(["a", "b", "same", "same", "", "long " * 50, "\x1b[31m", "half \udc9b"])
    judges = {"high": RandomScorer(), "low": RandomScorer(1), "fails": Fails(draw)}
    opening = draw.choice(["", "hi"])
    chat = ChatView(ChatSession(generator, judges, "high", 4, folder=tmp_path / "sessions", first_message=opening))
    for step in range(100):
        words = {"step": step, "a": draw.randint(-1, 8), "b": draw.randint(-1, 3), "folder": tmp_path}
        line = draw.choice(LINES).format(**words)
        shown = respond(chat, line)
        assert "the session continues" not in shown.text, f"{line}: a defect: {shown.text}"
        show(make_console(io.StringIO(), draw.choice([20, 60, 100])), chat, shown)
        is_sound(chat.session, shown, line)
    assert len(chat.session.exchanges) > 5


def as_written(exchange: Exchange) -> Exchange:
    """The exchange as its file has it: without the scores of an open choice."""
    if not exchange.is_open:
        return exchange
    return replace(exchange, candidates=[replace(candidate, scores={}) for candidate in exchange.candidates])


def is_sound(session: ChatSession, shown: Response, line: str) -> None:
    if session.path.exists():
        loaded = load(session.path)
        expected = {number: as_written(exchange) for number, exchange in session.exchanges.items()}
        assert (loaded.exchanges, loaded.head) == (expected, session.head), line
        assert (loaded.corrupt, loaded.orphans) == ([], []), line
        assert loaded.opening.turns == session.opening, line
    for exchange in session.exchanges.values():
        before = exchange.prompt.turns[:-1]
        if exchange.parent:
            assert before == session.exchanges[exchange.parent].conversation.turns, line
        else:
            assert [turn.speaker for turn in before] in ([], ["bot"]), line
    if shown.exchange is not None and session.blind and line.startswith(NEW):
        assert shown.exchange.is_open, line
    if shown.exchange is not None and shown.exchange.is_open:
        output = json_line(as_object(shown.exchange)) + repr(shown.exchange) + shown.exchange.df.to_string()
        scores = [score for column in shown.exchange.columns.values() for score in column if score is not None]
        assert not [score for score in scores if f"{score:.4f}"[1:] in output], line

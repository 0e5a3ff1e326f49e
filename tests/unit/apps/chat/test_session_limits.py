"""Output is bounded for messages and numbers of any size, and settings stay within bounds."""

import io
from pathlib import Path

import pytest
from attacks import ATTACKS, drives

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.pipe_frontend import answer_lines
from lmgym.apps.chat.screen import make_console, show
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import respond
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer

LONG = "y" * 1_000_000
MANY_LINES = "y\n" * 500_000


@pytest.fixture
def chat(tmp_path: Path) -> ChatView:
    generator = ScriptedGenerator(["a short reply", "another"])
    judges = {"length": FunctionScorer(lambda c, r: [float(len(x)) for x in r])}
    return ChatView(ChatSession(generator, judges, "length", 2, folder=tmp_path / "sessions"))


@pytest.mark.parametrize("text", [LONG, MANY_LINES, "".join(ATTACKS.values()) * 10_000])
@pytest.mark.parametrize("command", ["%edit", "%edit 1", "%undo", "%status", "%back 1", "%persona", "%table"])
def test_a_command_repeats_a_bounded_part_of_a_message_of_a_megabyte(chat: ChatView, text: str, command: str) -> None:
    chat.session.persona = text
    assert respond(chat, text).ok
    respond(chat, "and on")
    out = io.StringIO()
    console = make_console(out, 80)
    respond(chat, "%back 1")
    show(console, chat, respond(chat, command))
    assert len(out.getvalue()) < 10_000
    assert drives(out.getvalue()) == []


@pytest.mark.parametrize("line", [
    f"%{LONG}", f"%set {LONG}", f"%set {LONG}=1", f"%set temperature={LONG}", f"%set stop=\\x{LONG}",
    f"%set temperature={'9' * 400}", f"%set max_new_tokens={'9' * 5000}", f"%select {LONG}", f"%blend {LONG}",
    f"%blend length={LONG}", f"%blend {LONG}=1", f"%pick {LONG}", f"%pick {'9' * 4000}", f"%back {'9' * 4000}",
    f"%tie {LONG}", f"%blind {LONG}", f"%table {LONG}", f"%load {LONG}", f"%save {LONG}", f"%export prefs {LONG}",
    f"%best_of {'9' * 4000}", f"%more {'9' * 4000}", f"%why {LONG}",
    *(f"%load {attack}" for attack in ATTACKS.values()), *(f"%{attack}" for attack in ATTACKS.values()),
])  # fmt: skip
def test_a_wrong_command_of_any_length_is_answered_in_one_short_line(chat: ChatView, line: str, capsys) -> None:
    respond(chat, "hello")
    before = chat.session.sampling
    answer_lines(chat, [line.replace("\n", " ")], io.StringIO(), as_json=False)
    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert output.count("\n") == 1
    assert len(output) < 1500
    assert drives(output) == []
    assert chat.session.sampling == before


@pytest.mark.parametrize(("line", "expected"), [
    ("%set temperature=1e400", "temperature=inf; needed: 0 to 100; 0 is greedy"),
    ("%set temperature=101", "temperature=101.0; needed"),
    ("%set top_p=1000", "top_p=1000.0; needed: above 0; at most 1"),
    ("%set top_k=99999999999", "top_k=99999999999; needed"), ("%set seed=-1", "seed=-1; needed: 0 or more, below 2^64"),
    ("%set max_new_tokens=99999999", "max_new_tokens=99999999; needed: 1 to 1,048,576"),
    ("%set repetition_penalty=1e9", "repetition_penalty=1000000000.0; needed"),
    ("%blend length=1e30", "needed a number, at most 1,000,000 in size"), ("%blend length=nan", "needed a number"),
])  # fmt: skip
def test_settings_of_a_session_are_bounded(chat: ChatView, line: str, expected: str) -> None:
    shown = respond(chat, line)
    assert not shown.ok
    assert expected in shown.text
    assert chat.session.sampling == Sampling()


def test_an_exception_that_quotes_a_reply_is_one_line(tmp_path: Path) -> None:
    def breaks(conversation, rng) -> str:
        raise RuntimeError("".join(ATTACKS.values()) * 10_000)

    judges = {"length": FunctionScorer(lambda c, r: [0.0] * len(r))}
    chat = ChatView(ChatSession(ScriptedGenerator(breaks), judges, "length", 2, folder=tmp_path))
    shown = respond(chat, "hello")
    assert not shown.ok
    assert shown.text.isprintable()
    assert len(shown.text) < 1500

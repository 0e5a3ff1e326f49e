"""A session whose replies come from a server that dies, stalls, answers garbage or reads little."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import Server

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.loading import model_revisions
from lmgym.apps.chat.records import load
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import respond
from lmgym.errors import TooLong
from lmgym.generation import model_server
from lmgym.generation.openai_server import ServedGenerator
from lmgym.scoring.random_scorer import RandomScorer

Serve = Callable[[str], Server]


@pytest.fixture
def chat(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatView:
    """A chat with a server that answers."""
    monkeypatch.setattr(model_server, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    generator = ServedGenerator(serve("good").url, "tiny")
    return ChatView(
        ChatSession(generator, {"a": RandomScorer(), "b": RandomScorer(1)}, "a", 3, folder=tmp_path / "sessions")
    )


def failing(server: Server, mode: str) -> ServedGenerator:
    return ServedGenerator(server.url, "tiny", timeout=0.2 if mode == "stalls" else 60, retries=1)


@pytest.mark.parametrize(("mode", "expected"), [
    ("dies", r"no reply: ServerError: .* in 2 tries.*nothing was added"),
    ("stalls", r"no answer within timeout=0\.2 s.*nothing was added"),
    ("not_json", r"makes no sense.*<html>gateway</html>.*nothing was added"),
    ("no_such_model", r"refused a request for 'tiny'.*no such model.*a model that it serves"),
])  # fmt: skip
def test_a_failed_turn_is_explained_and_leaves_the_session_and_its_file_intact(
    chat: ChatView, serve: Serve, mode: str, expected: str
) -> None:
    respond(chat, "one")
    works, chat.session.generator = chat.session.generator, failing(serve(mode), mode)
    shown = respond(chat, "two")
    assert not shown.ok
    assert re.search(expected, shown.text), shown.text
    assert not respond(chat, "%more 2").ok
    assert [e.user for e in chat.session.history] == ["one"]
    chat.session.generator = works
    assert respond(chat, "three").exchange.reply.endswith(" to three")
    loaded = load(chat.session.path)
    assert [(e.user, len(e.candidates)) for e in loaded.exchanges.values()] == [("one", 3), ("three", 3)]
    assert loaded.corrupt == []
    assert chat.session.path.read_text().count('"kind":"failure"') == 2


@pytest.mark.slow  # it signals its own process: the worker died beside it in some runs, for a reason that is not known
def test_ctrl_c_stops_a_request_to_a_server_and_not_the_session(chat: ChatView, serve: Serve) -> None:
    server = serve("stalls")
    works, chat.session.generator = chat.session.generator, ServedGenerator(server.url, "tiny", timeout=60)

    def press() -> None:
        while not server.requests:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=press, daemon=True).start()
        assert "stopped; nothing was added" in respond(chat, "hello").text
    finally:
        signal.signal(signal.SIGINT, before)
    chat.session.generator = works
    assert respond(chat, "hello").exchange.id == 1


def test_if_a_server_refuses_the_length_the_oldest_turns_are_left_out_with_a_note(chat: ChatView, serve: Serve) -> None:
    server = serve("reads_little")
    chat.session.generator = ServedGenerator(server.url, "tiny")
    for number in range(12):
        shown = respond(chat, f"line {number:02}, a line of some length")
        assert shown.ok, shown.text
    last = shown.exchange
    assert last.dropped_turns > 0
    assert any(f"the {last.dropped_turns} oldest turns were left out" in note for note in last.notes)
    assert len(last.prompt.turns) == 23, "the transcript stays whole"
    sent = server.requests[-1]["body"]["messages"]
    assert [row["content"] for row in sent] == [turn.text for turn in last.prompt.turns[last.dropped_turns :]]
    assert sent[0]["role"] == "user"
    shown = respond(chat, "x" * 101)
    assert not shown.ok
    assert "maximum context length" in shown.text
    assert respond(chat, "short").ok


@pytest.mark.parametrize("message", [
    "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens",
    "You passed 1015 input tokens. However, the model's context length is only 1024 tokens",
    "the request exceeds the available context size, try increasing it",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",
    "Input prompt (35247 tokens) is too long and exceeds limit of 1000",
])  # fmt: skip
def test_servers_messages_about_a_conversation_that_is_too_long_are_recognised(message: str) -> None:
    generator = ServedGenerator("http://localhost/v1", "tiny", key_variable="")
    assert isinstance(generator._servers[0].refusal(400, message, ""), TooLong)
    assert not isinstance(generator._servers[0].refusal(404, message, ""), TooLong)
    assert not isinstance(generator._servers[0].refusal(400, "unknown argument: n", ""), TooLong)


def test_the_record_names_the_server(chat: ChatView) -> None:
    found = model_revisions(chat.session.generator, {})["generator"]
    assert found == {"kind": "ServedGenerator", "server": chat.session.generator.base_url, "model": "tiny"}

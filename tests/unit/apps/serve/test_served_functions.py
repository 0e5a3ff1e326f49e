"""Functions of a user's file behind the reward server: one that fails, one that is slow, and one that changes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import wait_until
from reward_servers import RewardServer, start

from lmgym.apps.serve import lmgym_client
from lmgym.apps.serve.lmgym_client import Client, RewardError

FUNCTIONS = """
import time
from pathlib import Path

DOOR = Path(__file__).with_name("open")

def length(conversations, replies):
    return [1.0 * len(reply) for reply in replies]

def logarithm(conversations, replies):
    return [float("nan") if "bad" in reply else 1.0 * len(reply) for reply in replies]

def raises(conversations, replies):
    return [{}[reply] if "bad" in reply else 1.0 for reply in replies]

def begins_with_blank(conversations, replies):
    return [1.0 * reply.startswith(" ") for reply in replies]

def waits(conversations, replies):
    with Path(__file__).with_name("calls").open("a") as file:
        print(*replies, file=file)
    while not DOOR.exists():
        time.sleep(0.01)
    return [2.0 for reply in replies]
"""
NAMES = ("length", "logarithm", "raises", "begins_with_blank")
KNOWN = {"Authorization": "Bearer sesame"}


def chats(*replies: str) -> list[dict[str, str]]:
    return [{"prompt": "hello", "reply": reply} for reply in replies]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("functions")
    (folder / "rewards.py").write_text(FUNCTIONS)
    return folder


def start_with(folder: Path, *names: str) -> RewardServer:
    return start(*(f"{name}={folder}/rewards.py:{name}" for name in names), LMGYM_TOKEN="sesame")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[RewardServer]:
    running = start_with(folder, *NAMES)
    yield running
    assert running.stop() == 0


@pytest.fixture
def slow(folder: Path) -> Iterator[RewardServer]:
    running = start_with(folder, "length", "waits")
    yield running
    (folder / "open").touch()
    assert running.stop() == 0


def scores(server: RewardServer, body: dict, **headers: str) -> list[dict[str, float]]:
    status, answer, _ = server.ask("/v1/score", body, **KNOWN, **headers)
    assert status == 200, answer
    return [{name: one["score"] for name, one in row.items()} for row in answer["scores"]]


@pytest.mark.parametrize(("name", "words"), [("logarithm", "the scorer gave nan"), ("raises", "KeyError: 'so bad'")])
def test_a_reply_that_a_scorer_fails_on_is_named_beside_the_scores_of_the_others(
    served: RewardServer, name: str, words: str
) -> None:
    body = {"conversations": chats("a", "bb", "so bad", "dddd"), "scorers": ["length", name]}
    status, answer, headers = served.ask("/v1/score", body, **KNOWN)
    error = answer["error"]
    assert (status, headers["Retry-After"]) == (422, None)
    assert error["message"].startswith(f"scorer {name} failed on reply 2 of 4, each time: ")
    assert words in error["message"]
    assert [(one["scorer"], one["row"]) for one in error["failed"]] == [(name, 2)]
    assert error["scores"]["length"] == [1.0, 2.0, 6.0, 4.0]
    found = error["scores"][name]
    assert found == ([1.0, 2.0, None, 4.0] if name == "logarithm" else [1.0, 1.0, None, 1.0])
    with pytest.raises(RewardError, match=f"status 422: scorer {name} failed on reply 2"):
        Client(served.url, "sesame").rewards(body["conversations"], name)


@pytest.mark.parametrize(
    "chat",
    [
        {"prompt": "hello", "reply": "{}"},
        [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "{}"}],
        {"messages": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "{}"}]},
    ],
    ids=["prompt and reply", "messages", "an object of messages"],
)
def test_a_function_reads_a_reply_as_it_was_sent(served: RewardServer, chat) -> None:
    for reply, expected in ((" x\n", [{"begins_with_blank": 1.0, "length": 3.0}]), ("x", None)):
        sent = json.loads(json.dumps(chat).replace("{}", json.dumps(reply)[1:-1]))
        found = scores(served, {"conversations": [sent], "scorers": ["begins_with_blank", "length"]})
        assert found == (expected or [{"begins_with_blank": 0.0, "length": 1.0}])


def test_a_slow_monitor_delays_no_reward_and_drops_what_nobody_waits_for(slow: RewardServer, folder: Path) -> None:
    calls = folder / "calls"
    body = {"conversations": chats("watched"), "scorers": ["length"]}
    assert scores(slow, body, X_LMGym_Run="slow", X_LMGym_Step="1") == [{"length": 7.0}]  # while the monitor waits
    wait_until(calls.exists)
    assert slow.ask("/get_reward?model=length", {"query": ["User: a\nBot: b"]}, **KNOWN)[1]["rewards"] == [1.0]
    assert slow.ask("/runs", **KNOWN)[1]["runs"] == []
    impatient = Client(slow.url, "sesame", timeout=0.5, patience=0.1)  # leaves before its reply is scored
    with pytest.raises(RewardError, match="timed out"):
        impatient.rewards(chats("left"), "waits")
    counted = lambda name: slow.ask("/metrics", **KNOWN)[1].partition(f"\n{name} ")[2].split()[0]  # noqa: E731
    wait_until(lambda: counted("lmgym_queue_replies") == "1")
    (folder / "open").touch()
    assert scores(slow, {"conversations": chats("last"), "scorers": ["waits"]}) == [{"waits": 2.0}]
    assert calls.read_text().split() == ["watched", "last"]
    wait_until(lambda: [run["replies"] for run in slow.ask("/runs", **KNOWN)[1]["runs"]] == [1])


def test_a_reload_under_a_client_must_be_forced_and_the_client_stops(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def reward(conversations, replies): return [1.0 for reply in replies]\n")
    running = start(f"{file}:reward", LMGYM_TOKEN="sesame")
    try:
        assert running.ask("/reload", {}, **KNOWN)[0] == 200, "no client yet"
        client = Client(running.url, "sesame")
        assert client.rewards(chats("a")) == [1.0]
        file.write_text("def reward(conversations, replies): return [93.0 for reply in replies]\n")
        status, answer, _ = running.ask("/reload", {}, **KNOWN)
        assert status == 409
        assert "needed: 10 minutes without requests, or /reload?force=true" in answer["error"]["message"]
        assert client.rewards(chats("a")) == [1.0]
        assert running.ask("/reload?force=true", {}, **KNOWN)[0] == 200
        with pytest.raises(RewardError, match=r"the scorer reward of .* changed in mid-run: it was .*'fingerprint': "):
            client.rewards(chats("a"))
        assert Client(running.url, "sesame").rewards(chats("a")) == [93.0], "another run"
    finally:
        assert running.stop() == 0


def test_a_client_says_what_it_waits_for(monkeypatch, caplog) -> None:
    monkeypatch.setattr(lmgym_client, "SAY_SECONDS", 0.2)
    with pytest.raises(RewardError, match="gave no answer"):
        Client("http://127.0.0.1:9", patience=3).rewards(chats("a"))
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 4
    assert all(line.startswith("http://127.0.0.1:9/v1/score has given no answer for ") for line in lines)
    assert all(line.endswith("refused") for line in lines)
    caplog.clear()
    monkeypatch.setattr(lmgym_client, "SAY_SECONDS", 60.0)
    with pytest.raises(RewardError):
        Client("http://127.0.0.1:9", patience=1).rewards(chats("a"))
    assert caplog.records == [], "once a minute"

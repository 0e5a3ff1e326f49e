"""The client file, as each trainer calls it, against a server; and through a restart and a busy server."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import PATIENCE, wait_until
from planting import KEY, set_trap
from reward_servers import RewardServer, start

from lmgym.apps.serve import lmgym_client
from lmgym.apps.serve.lmgym_client import (
    Client,
    RewardError,
    trl_reward,
    trl_reward_async,
    verifiers_reward,
    verl_reward,
)

ASKED = [{"role": "user", "content": "hello"}]
SAID = [[{"role": "assistant", "content": f"hi {i}"}] for i in range(70)]  # more than a request has


@pytest.fixture
def client(server: RewardServer) -> Client:
    return Client(server.url)


@pytest.fixture(scope="module")
def expected(calibrated: Path) -> list[float]:
    from lmgym.scoring.scorers import HFScorer
    from lmgym.text import Conversation, Turn

    hello = Conversation((Turn("user", "hello"),))
    return HFScorer.load(calibrated).score([hello] * 70, [row[0]["content"] for row in SAID]).tolist()


def test_trl_gets_a_reward_a_completion_and_logs(client: Client, expected: list[float]) -> None:
    logged: dict[str, float] = {}
    reward = trl_reward(client=client)
    columns = {"completion_ids": [[1]] * 70, "answer": ["x"] * 70, "trainer_state": object(), "log_extra": None}
    found = reward([ASKED] * 70, SAID, **columns, log_metric=logged.__setitem__)
    assert found == pytest.approx(expected, abs=1e-5)
    assert reward.__name__ == "lmgym"
    assert set(logged) == {"lmgym/alarm", "lmgym/z", "lmgym/truncated", "lmgym/b", "lmgym/both"}
    texts = reward(prompts=["hello"], completions=["hi 0"])
    assert texts == pytest.approx(expected[:1], abs=1e-5)
    assert trl_reward("b", client).__name__ == "lmgym_b"
    assert reward([], []) == []


def test_a_server_that_points_to_another_address_sends_the_token_nowhere(tmp_path: Path) -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{trap.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with set_trap(tmp_path) as trap, HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", token=KEY, patience=0.0)
        with pytest.raises(RewardError, match="refused a request, status 302"):
            client.rewards([[*ASKED, *SAID[0]]])
        assert trap.used() == []


def test_trl_may_await_it(client: Client, expected: list[float]) -> None:
    reward = trl_reward_async("a", client)
    assert asyncio.iscoroutinefunction(reward)
    assert asyncio.run(reward(prompts=[ASKED] * 70, completions=SAID)) == pytest.approx(expected, abs=1e-5)


def test_verl_reads_the_prompt_from_the_row(server: RewardServer, expected, monkeypatch) -> None:
    monkeypatch.setenv("LMGYM_URL", server.url)
    for extra in ({"question": "hello"}, {"raw_prompt": ASKED}, {"prompt": ASKED, "question": "other"}):
        found = asyncio.run(verl_reward("data", "hi 3", None, extra, scorer="a"))
        assert found == pytest.approx(expected[3], abs=1e-5)
    with pytest.raises(RewardError, match="no prompt in extra_info \\(found: index\\); needed: one of raw_prompt"):
        asyncio.run(verl_reward("data", "hi", None, {"index": 3}))


def test_verifiers_gives_a_trace(client: Client, expected: list[float]) -> None:
    class Message(SimpleNamespace):
        def model_dump(self, exclude_none: bool) -> dict:
            return {name: value for name, value in vars(self).items() if value is not None or not exclude_none}

    messages = [Message(role="user", content="hello", name=None), Message(role="assistant", content="hi 5")]
    found = asyncio.run(verifiers_reward(SimpleNamespace(messages=messages), "a", client))
    assert found == pytest.approx(expected[5], abs=1e-5)
    call = {"id": "1", "name": "look", "arguments": "{}"}
    message = lmgym_client._message({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


def test_a_refusal_is_raised_at_once_with_the_server_s_words(client: Client) -> None:
    with pytest.raises(RewardError, match="status 404: no scorer 'c' is served; needed: one of a, b, both"):
        client.rewards([[*ASKED, *SAID[0]]], "c")
    with pytest.raises(RewardError, match=r"status 400: .*the last of the user"):
        client.rewards([ASKED])


def test_the_file_needs_only_python(server: RewardServer, tmp_path: Path) -> None:
    copy = tmp_path / "lmgym_client.py"
    copy.write_text(server.ask("/lmgym_client.py")[1])
    code = (
        "import lmgym_client as c, json, sys\n"
        f"print(json.dumps(c.Client({server.url!r}).rewards([{ASKED + SAID[0]!r}])))\n"
        "assert not any('site-packages' in str(getattr(m, '__file__', '')) for m in sys.modules.values())\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 1


def test_clients_of_a_full_queue_come_back_until_they_are_answered(calibrated: Path, expected: list[float]) -> None:
    running = start(f"a={calibrated}", "--queue", 8)
    try:
        reward = trl_reward(client=Client(running.url, patience=PATIENCE))
        with ThreadPoolExecutor(24) as pool:
            found = list(pool.map(lambda i: reward([ASKED] * 4, SAID[i : i + 4]), range(0, 64, 2)))
        assert all(one == pytest.approx(expected[2 * i : 2 * i + 4], abs=1e-5) for i, one in enumerate(found))
        assert 'path="/v1/score",status="503"' in running.ask("/metrics")[1]
        status, answer, _ = running.ask("/v1/score", {"conversations": [[*ASKED, *said] for said in SAID[:9]]})
        assert (status, "at most 8, in several requests" in answer["error"]["message"]) == (400, True)
    finally:
        assert running.stop() == 0


@pytest.mark.slow
def test_a_server_killed_and_started_again_loses_no_step(calibrated: Path, expected: list[float]) -> None:
    running = start(f"a={calibrated}")
    port, found = running.port, []
    reward = trl_reward(client=Client(running.url, patience=PATIENCE))
    enough = threading.Event()

    def train() -> None:
        for step in range(60):
            found.append(reward([ASKED] * 2, SAID[step : step + 2]))
            if step == 20:
                enough.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    assert enough.wait(PATIENCE)
    running.stop(signal.SIGKILL)  # in the middle of a request
    again = start(f"a={calibrated}", port=port)
    try:
        trainer.join(PATIENCE)
        assert [one == pytest.approx(expected[i : i + 2], abs=1e-5) for i, one in enumerate(found)] == [True] * 60
    finally:
        assert again.stop() == 0


@pytest.mark.slow
def test_sighup_and_sigterm_lose_no_request(calibrated: Path) -> None:
    running = start(f"a={calibrated}")
    long = {"conversations": [[*ASKED, {"role": "assistant", "content": f"word {i} " * 40}] for i in range(2000)]}
    short = {"conversations": [[*ASKED, *SAID[0]]]}
    with ThreadPoolExecutor(2) as pool:
        answers = []
        for body, waiting in ((long, 2000), (short, 2001)):
            answers.append(pool.submit(running.ask, "/v1/score", body))
            wait_until(lambda: running.counted("lmgym_queue_replies") == waiting, 60)  # noqa: B023
        running.send(signal.SIGHUP, signal.SIGTERM)
        found = [answer.result(PATIENCE) for answer in answers]
    assert [(status, len(answer["scores"])) for status, answer, _ in found] == [(200, 2000), (200, 1)]
    assert running.stop() == 0

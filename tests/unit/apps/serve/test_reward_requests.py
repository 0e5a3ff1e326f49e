"""Requests that the reward server refuses, each in one line of words, and those that it survives."""

import asyncio
import base64
import contextlib
import json
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from launching import BIN, ROOT, launch, run
from patience import PATIENCE
from reward_servers import RewardServer, start

from lmgym.apps.serve.guard import Guard
from lmgym.apps.serve.http_server import bind
from lmgym.apps.serve.metrics import Metrics

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
GOOD = {"conversations": [CHAT]}
SCORE, CLASSIFY = "/v1/score", "/classify"
BROKEN = [CHAT[0], CHAT[1] | {"content": "\ud800"}]
WIZARD = [{"role": "wizard", "content": "x"}]
WRONG = {
    "not JSON": (SCORE, b"{", 400, "not JSON"),
    "no body": (SCORE, b"", 400, ""),
    "a list": (SCORE, [], 400, ""),
    "not UTF-8": (SCORE, b'{"conversations": ["\xff"]}', 400, "not UTF-8 (byte 20)"),
    "half a surrogate pair": (CLASSIFY, b'{"input": "User: a\\nBot: \\ud800"}', 400, ""),
    "a surrogate in a message": (SCORE, {"conversations": [BROKEN]}, 400, "text"),
    "nested too deeply": (SCORE, b"[" * 100_000, 400, ""),
    "nothing to score": (SCORE, {"conversations": []}, 400, "no reply to score"),
    "an empty conversation": (SCORE, {"conversations": [[]]}, 400, "conversations[0]: found no message"),
    "no reply": (
        SCORE,
        {"conversations": [CHAT, CHAT[:1]]},
        400,
        "found 1 turns, the last of the user",
    ),
    "an unknown role": (SCORE, {"conversations": [WIZARD]}, 400, "the role 'wizard'"),
    "a number": (SCORE, {"conversations": [3]}, 400, "found 3; needed: messages"),
    "an unknown field": (SCORE, GOOD | {"scorer": "a"}, 400, "scorer: Extra inputs"),
    "an unknown scorer": (SCORE, GOOD | {"scorers": ["bath"]}, 404, "no scorer 'bath' is served; did you mean both?"),
    "an unknown model": (CLASSIFY, {"model": "gpt-4", "input": "User: a\nBot: b"}, 404, "needed: one of a, b, both"),
    "token ids": (CLASSIFY, {"input": [1, 2]}, 400, "valid string"),
    "an empty text": (CLASSIFY, {"input": ""}, 400, "text 0: it is empty"),
    "a text without marks": ("/get_reward", {"query": ["hi"], "prompts": ["x"]}, 400, "no marks of a chat template"),
    "neither input nor messages": ("/v1/classify", {"model": "a"}, 400, "needed: input, or messages"),
    "an empty prompt": (SCORE, {"pairs": [{"prompt": "", "a": "x", "b": "y"}]}, 400, "pairs[0]: the prompt is empty"),
    "an unknown path": ("/v1/scores", GOOD, 404, "/v1/score"),
    "reload without a token": ("/reload", {}, 403, "needed: one (--token)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused_in_words_and_the_next_one_is_answered(server: RewardServer, case: str) -> None:
    path, body, expected, words = WRONG[case]
    status, answer, _ = server.ask(path, body)
    assert status == expected, answer
    assert words in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]
    assert server.ask("/v1/score", GOOD)[0] == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: RewardServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2**40}\r\n\r\n"
        connection.sendall(head.encode())
        assert b"413" in connection.recv(1 << 16)
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
        connection.sendall(b"1\r\nx\r\n")
        assert b"413" in connection.recv(1 << 16)


def test_slow_clients_and_those_that_leave_hold_up_nobody(server: RewardServer) -> None:
    body = json.dumps(GOOD).encode()
    head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for connection in slow:
        connection.sendall(head + body[:10])
    for _ in range(10):  # they leave with their answers unread
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + body)
    began = time.monotonic()
    assert server.ask("/v1/score", GOOD)[0] == 200
    assert time.monotonic() - began < 20  # the slow ones' time ends after 30
    for connection in slow[10:]:
        connection.sendall(body[10:])
        assert b"200 OK" in connection.recv(1 << 16)
    for connection in slow:
        connection.close()
    assert server.ask("/ready")[0] == 200


@pytest.mark.slow
def test_a_head_without_an_end_is_closed_and_a_body_that_comes_late_is_not(server: RewardServer) -> None:
    body = json.dumps(GOOD).encode()
    head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    silent, endless, second, good = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(4))
    endless.sendall(head[:20])
    second.sendall(head + body)
    answer = second.recv(1 << 16)
    while not answer.endswith(b"}"):  # head and body may come apart
        answer += second.recv(1 << 16)
    assert b"200 OK" in answer
    second.sendall(head[:20])  # of another request
    began = time.monotonic()
    good.sendall(head)
    while time.monotonic() - began < 20:
        time.sleep(5)
        endless.sendall(b"X-Header: 1\r\n")
    good.sendall(body)
    assert b"200 OK" in good.recv(1 << 16)
    for connection in (silent, endless, second):
        connection.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1 << 16) == b""
        connection.close()
    assert 25 < time.monotonic() - began < 60
    good.close()


def test_a_page_of_another_site_is_refused(server: RewardServer) -> None:
    assert server.ask("/v1/score", GOOD, Origin="https://evil.example")[0] == 403
    assert server.ask("/v1/score", GOOD, Host="evil.example")[0] == 403
    assert server.ask("/v1/score", GOOD, Origin=server.url, Host=server.url.partition("//")[2])[0] == 200


@pytest.mark.parametrize("token", ["", "sesame"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "["},
        {"host": "[::1"},
        {"host": "localhost:port"},
        {"host": "localhost:99999"},
        {"host": "localhost", "origin": "http://["},
        {"host": "localhost", "origin": "http://[x]"},
        {"host": "localhost", "origin": "http://localhost:x"},
    ],
)
def test_a_malformed_address_in_a_header_is_refused_in_one_line_before_the_token(headers: dict, token: str) -> None:
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": "/v1/score", "headers": [*raw, (b"authorization", b"Bearer wrong")]}
    asyncio.run(Guard(None, Metrics(), (), token)(scope, None, send))
    assert sent[0]["status"] == 400
    words = json.loads(sent[1]["body"])["error"]["message"]
    assert "\n" not in words
    assert words.startswith(f"the header {list(headers)[-1].capitalize()} is '")


def test_metrics_and_health_are_those_of_prometheus(server: RewardServer) -> None:
    server.ask("/v1/score", GOOD)
    _, text, headers = server.ask("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'lmgym_requests_total{path="/v1/score",status="200"}' in text
    assert "# TYPE lmgym_queue_replies gauge\nlmgym_queue_replies 0\n" in text
    assert server.ask("/health")[1]["status"] == "ok"
    assert set(server.ask("/ready")[1]["scorers"]) == {"a", "b", "both"}


def refused(*words: object, launcher: str = "fork", **environment: str) -> str:
    """The line of a server that does not start."""
    done = run(launch(launcher, "serve", "rewards", *words, script=BIN / "lmgym"), **{"LMGYM_TOKEN": "", **environment})
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()[-1]


def test_a_server_that_cannot_start_says_why(server: RewardServer, tmp_path: Path) -> None:
    assert "there is no token; needed: a token in the environment variable LMGYM_TOKEN" in refused(
        "world:0", "--host", "0.0.0.0"
    )
    assert "is not a model folder" in refused(tmp_path, "--port", 0)
    assert "needed: an address of this machine with a free port" in refused("world:0", "--port", server.port)
    assert "needed: visible ASCII" in refused("world:0", LMGYM_TOKEN="a b")


def test_answers_do_not_wait_for_more_to_send() -> None:
    with bind("127.0.0.1", 0, "") as listener:  # asyncio turns Nagle's delay off for sockets of this protocol only
        assert listener.proto == socket.IPPROTO_TCP


def test_the_missing_extra_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nold = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name in ('fastapi', 'uvicorn') else old(name, *more)\n"
    )
    said = refused("world:0", launcher="python", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert said.endswith("fastapi and uvicorn not installed, for serving; needed: pip install 'lmgym[serve]'")


def test_a_token_is_needed_and_lets_scorers_be_loaded_again(calibrated: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scorer"
    shutil.copytree(calibrated, folder)
    running = start(f"a={folder}", "--host", "0.0.0.0", launcher="python", LMGYM_TOKEN="sesame")
    try:
        running.url = f"http://127.0.0.1:{running.port}"
        for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}):
            status, answer, _ = running.ask("/v1/score", GOOD, **headers)
            assert status == 401
            assert "Authorization: Bearer TOKEN" in answer["error"]["message"]
        assert running.ask("/health")[0] == running.ask("/ready")[0] == 200
        status, _, asks = running.ask("/runs.html")  # a browser asks for the password
        assert (status, asks["WWW-Authenticate"]) == (401, "Basic realm=lmgym")
        for password, expected in ((b":sesame", 200), (b"anyone:sesame", 200), (b"sesame", 401)):
            basic = {"Authorization": f"Basic {base64.b64encode(password).decode()}"}
            assert running.ask("/runs.html", **basic)[0] == expected
        known = {"Authorization": "Bearer sesame"}
        _, before, _ = running.ask("/v1/score", GOOD, **known)
        settings = json.loads((folder / "scorer.json").read_text())
        (folder / "scorer.json").write_text(json.dumps(settings | {"moments": [0.0, 1.0]}))
        status, answer, _ = running.ask("/reload?force=true", {}, **known)
        assert (status, answer["status"]) == (200, "reloaded")
        _, after, _ = running.ask("/v1/score", GOOD, **known)
        old, new = before["scores"][0]["a"], after["scores"][0]["a"]
        assert new["score"] == pytest.approx(old["score"], abs=1e-5)
        assert new["z"] == pytest.approx(old["score"], abs=1e-5)
        assert new["z"] != pytest.approx(old["z"])
        (folder / "scorer.json").write_text("{")
        status, answer, _ = running.ask("/reload?force=true", {}, **known)
        assert status == 409
        assert "the former scorers stay in use" in answer["error"]["message"]
        assert running.ask("/v1/score", GOOD, **known)[1]["scores"] == after["scores"]
    finally:
        assert running.stop() == 0


def test_a_request_that_takes_too_long_is_refused_for_now_and_one_that_gets_nan_for_good(
    calibrated: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(calibrated, broken)
    weights = load_file(broken / "model.safetensors")
    save_file(
        {name: w.fill_(3e38) if name == "score.weight" else w for name, w in weights.items()},
        broken / "model.safetensors",
        {"format": "pt"},
    )
    running = start(f"a={calibrated}", f"broken={broken}", "--timeout", 3)
    try:
        status, answer, headers = running.ask("/classify", {"model": "broken", "input": "User: a\nBot: b"})
        assert status == 422  # it comes again
        assert answer["error"]["message"].startswith(
            "scorer broken failed on reply 0 of 1, each time: the scorer gave "
        )
        long = {"prompt": "word " * 200, "reply": "x"}
        many = {"conversations": [long | {"prompt": f"{i} {long['prompt']}"} for i in range(4000)], "scorers": ["a"]}
        status, answer, headers = running.ask("/v1/score", many)
        assert status == 503
        assert 1 <= int(headers["Retry-After"]) <= 30
        assert "not scored within 3 s" in answer["error"]["message"]
    finally:
        running.stop(signal.SIGKILL)

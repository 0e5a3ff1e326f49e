"""Requests through the official clients: what they send, how many at once, and from where they may be called."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.errors import ServerError
from lmgym.generation.anthropic_server import AnthropicGenerator
from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Sampling
from lmgym.generation.request_limits import RequestLimits
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),))
SECRETS = {
    "OPENAI_API_KEY": "sk-secret", "OPENAI_ADMIN_KEY": "admin-secret", "OPENAI_ORG_ID": "org-secret",
    "OPENAI_PROJECT_ID": "project-secret", "OPENAI_CUSTOM_HEADERS": "X-Mine: my-secret\nAuthorization: Bearer secret",
    "ANTHROPIC_API_KEY": "ant-secret", "ANTHROPIC_AUTH_TOKEN": "token-secret",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Mine: my-secret",
}  # fmt: skip
ELSEWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All from which the clients would take credentials, headers, addresses and proxies."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password netrc-secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    addresses = dict.fromkeys(("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "HTTP_PROXY", "ALL_PROXY"), ELSEWHERE)
    for name, value in {**SECRETS, **addresses, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("key", ["", "the-chosen-key"])
def test_only_the_chosen_key_is_sent_and_only_to_the_address_given(serve, key: str, monkeypatch, caplog) -> None:
    monkeypatch.setenv("MINE", key)
    caplog.set_level(logging.DEBUG)
    openai, anthropic = serve("good"), serve("speaks_anthropic")
    ServedGenerator(openai.url, "tiny", key_variable="MINE").reply([HELLO], 1, Sampling())
    AnthropicGenerator("tiny", anthropic.url.removesuffix("/v1"), key_variable="MINE").reply([HELLO], 1, Sampling())
    [asked], [asked_anthropic] = openai.requests, anthropic.requests
    assert asked["headers"].get("authorization") == (f"Bearer {key}" if key else None)
    assert asked_anthropic["headers"].get("x-api-key") == (key or None)
    assert asked_anthropic["authorization"] is None
    assert asked_anthropic["headers"]["anthropic-version"] == "2023-06-01", "later ones refuse a temperature"
    assert "secret" not in json.dumps([asked, asked_anthropic])
    assert caplog.records, "the clients do log"
    assert "secret" not in caplog.text
    assert "the-chosen-key" not in caplog.text


def test_no_more_requests_than_permitted_run_at_once(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    server = serve("stalls")
    with pytest.raises(ServerError):
        ServedGenerator(server.url, "tiny", timeout=1, retries=0, limits=RequestLimits(3)).reply(
            [HELLO] * 10, 1, Sampling()
        )
    assert len(server.requests) == 3


def test_a_caller_may_have_an_event_loop_as_notebooks_do(serve) -> None:
    async def cell() -> str:
        return ServedGenerator(serve("good").url, "tiny", key_variable="").reply([HELLO], 1, Sampling())[0][0].text

    assert asyncio.run(cell()) == "0.0 to hello"


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_half_a_surrogate_pair_of_a_prompt_is_sent_as_a_question_mark(serve, api) -> None:
    server = serve("good")
    odd = Conversation((Turn("user", "a \ud83d b"),))
    ServedGenerator(server.url, "tiny", api, key_variable="").reply([odd], 1, Sampling())
    assert "a ? b" in json.dumps(server.requests[0]["body"])


def test_a_request_that_is_over_closes_its_connection_so_that_the_server_can_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with pytest.raises(ServerError, match=r"no answer within timeout=0\.5 s"):
            ServedGenerator(url, "tiny", timeout=0.5, retries=0, key_variable="").reply([HELLO], 1, Sampling())
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE)
        while connection.recv(1 << 16):
            pass


def test_the_clients_are_loaded_by_the_first_request_alone() -> None:
    code = (
        "import sys, lmgym.cli.main, lmgym.apps.playpen.players, lmgym.apps.debate.players.served_judge\n"
        "from lmgym.generation import anthropic_server, openai_server\n"
        "openai_server.ServedGenerator('http://localhost/v1', 'm', key_variable='')\n"
        "print({'openai', 'anthropic'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=PATIENCE
    )
    assert found.stdout == "set()\n", found.stderr

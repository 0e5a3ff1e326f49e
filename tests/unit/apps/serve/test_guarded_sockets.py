"""WebSockets behind the guard of all servers: who may open one, and how long it stays open."""

import json
import time

import pytest
from openenv_stub import Stub

from lmgym.apps.serve import http_server
from lmgym.apps.serve.guard import Guard
from lmgym.apps.serve.metrics import Metrics

client = pytest.importorskip("websockets.sync.client")
exceptions = pytest.importorskip("websockets.exceptions")


def guarded(token: str = "") -> Stub:
    return Stub(within=lambda app: Guard(app, Metrics(), (), token), http=http_server.TimedProtocol)


def reset_over(stub: Stub, wait: float = 0.0, **options) -> str:
    with client.connect(stub.url.replace("http", "ws") + "/ws", proxy=None, **options) as socket:
        time.sleep(wait)
        socket.send(json.dumps({"type": "reset", "data": {"seed": 1}}))
        return json.loads(socket.recv(timeout=10))["type"]


def test_a_socket_needs_the_servers_token():
    with guarded("secret") as stub:
        assert reset_over(stub, additional_headers={"Authorization": "Bearer secret"}) == "observation"
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(exceptions.InvalidStatus, match="403"):
                reset_over(stub, additional_headers=headers)
        assert [kind for kind, _ in stub.asked] == ["reset"]


def test_a_page_of_another_site_opens_no_socket():
    with guarded() as stub:
        assert reset_over(stub) == "observation"
        assert reset_over(stub, origin=stub.url) == "observation"
        with pytest.raises(exceptions.InvalidStatus, match="403"):
            reset_over(stub, origin="http://elsewhere.example")


def test_a_socket_stays_open_for_longer_than_the_head_of_a_request_may_take(monkeypatch):
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.3)
    with guarded() as stub:
        assert reset_over(stub, wait=1.0) == "observation"

"""`lmgym watch` over loopback."""

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import needs_chromium, open_page

from lmgym.report.live import ReportServer
from lmgym.runs.run import Run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ReportServer, Run]]:
    """A server of a run in progress."""
    run = Run.start(tmp_path / "run", {}, 0, "none")
    run.log(1, {"eval/accuracy": 0.5})
    server = ReportServer(tmp_path / "run", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server, run
    server.shutdown()
    server.server_close()
    run.finish()


def get(server: ReportServer, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_page_and_its_version_follow_the_run(served) -> None:
    server, run = served
    status, page = get(server, "/")
    assert (status, 'data-live="true"' in page) == (200, True)
    before = get(server, "/version")
    assert get(server, "/version") == before
    run.log(2, {"eval/accuracy": 0.75})
    assert get(server, "/version") != before
    assert "0.750" in get(server, "/")[1]


def test_only_this_machine_and_only_the_page_are_served(served) -> None:
    server, _ = served
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/", host="evil.example")[0] == 403
    assert get(server, "/../run.json")[0] == 404
    assert get(server, "/run.json")[0] == 404


@needs_chromium
def test_an_open_page_reloads_when_the_run_goes_on(served) -> None:
    server, run = served
    with open_page(f"http://127.0.0.1:{server.server_port}/") as opened:
        opened.page.wait_for_timeout(2500)  # it has asked for the version once
        run.log(2, {"eval/accuracy": 0.75})
        opened.page.wait_for_function("document.body.textContent.includes('0.750')", timeout=30_000)
        assert opened.said == []

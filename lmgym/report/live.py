"""`lmgym watch`: a server of one run's report for this machine, whose page follows the run."""

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lmgym.report.page import report_page

WATCHED = ("run.json", "metrics.jsonl", "events.jsonl", "scores.jsonl", "held_out.jsonl", "evaluation.json", "samples")


class ReportServer(ThreadingHTTPServer):
    """Serves the report of a folder, made anew for each request, to this machine only.

    `killed` tells whether the run was killed by now, as `RunFiles` has it.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int, killed: Callable[[], bool] = lambda: False) -> None:
        self.folder, self.killed = folder, killed
        super().__init__(("127.0.0.1", port), ReportHandler)


class ReportHandler(BaseHTTPRequestHandler):
    """`/`: the page; `/version`: changes whenever a file of the run does."""

    server: ReportServer

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in ("127.0.0.1", "localhost"):  # another site's name that leads here
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._answer(
                report_page(self.server.folder, live=True, killed=self.server.killed()), "text/html; charset=utf-8"
            )
        elif self.path == "/version":
            self._answer(version_of(self.server.folder), "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a line per request says nothing to the user."""

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode("utf-8", errors="replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)


def version_of(folder: Path) -> str:
    """A hash of the sizes and times of the files that a report is made of."""
    paths = [folder / name for name in WATCHED]
    stats = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists()]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]

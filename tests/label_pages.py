"""Label servers in this process, over loopback, and the requests of their page."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def two_sided(count: int) -> list[dict[str, str]]:
    """Rows of two replies to different prompts: `good 0` and `bad 0`, ..."""
    return [{"prompt": f"question {i}", "response_a": f"good {i}", "response_b": f"bad {i}"} for i in range(count)]


@dataclass
class LabelServer:
    """The address of a server, and its folder."""

    url: str
    folder: Path

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """(status, JSON) of a request of the page."""
        return post(self.url, path, **body)

    def do(self, path: str, **body: Any) -> Any:
        """The answer of a request that succeeds."""
        status, found = self.post(path, **body)
        assert status == 200, found
        return found

    def judge(self, rater: str, *verdicts: str) -> Any:
        """The state after verdicts on the rater's next pairs: one of first, second, tie, cannot say, good, bad."""
        state = self.do("state", rater=rater)
        for verdict in verdicts:
            texts = [reply["text"] for reply in state["pair"]["replies"]]
            if verdict in ("good", "bad"):
                verdict = ("first", "second")[not texts[0].startswith(verdict)]
            state = self.do("verdict", rater=rater, pair=state["pair"]["id"], verdict=verdict)
        return state


def post(url: str, path: str, **body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}/label/{path}", json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@contextmanager
def serve_label_page(source: Path, folder: Path, token: str = "", question: str = "Which is better?") -> Iterator[Any]:
    """A server of the pairs in a file."""
    import uvicorn

    from lmgym.apps.serve.guard import Guard
    from lmgym.apps.serve.http_server import bind, url_of
    from lmgym.apps.serve.label_app import Labelling, make_label_app
    from lmgym.apps.serve.label_export import LabelFiles
    from lmgym.apps.serve.metrics import Metrics
    from lmgym.config import ColumnConfig

    record = Labelling(str(source), str(folder), ColumnConfig(), None, question).open()
    files, metrics = LabelFiles(record), Metrics()
    app = make_label_app(record, files, question, metrics)
    listener = bind("127.0.0.1", 0, token)
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(Guard(app, metrics, (), token), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until = time.monotonic() + PATIENCE
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    try:
        yield LabelServer(url_of(listener), folder)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        files.close()
        record.close()
        listener.close()

"""A stand-in for wandb's server on loopback: it keeps what runs send, and tells a run that resumes what it has.

`with serving() as server:` starts one; `server.environment` lets programs send to it. `runs` has what arrived by
`ENTITY/PROJECT/ID`.
"""

import gzip
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "k" * 40
STREAM = re.compile(r"/files/([^/]*)/([^/]*)/([^/]*)/file_stream")


@dataclass
class TrackedRun:
    """The part of a run that has arrived."""

    history: list[dict[str, Any]] = field(default_factory=list)
    """its lines in their order"""
    settings: list[dict[str, Any]] = field(default_factory=list)
    """what it said of itself: name, group, tags, and config; once a start"""
    summary: str = "{}"
    ended: bool = False


class WandbServer:
    """The state of a server, for tests to look at."""

    def __init__(self) -> None:
        self.runs: dict[str, TrackedRun] = {}
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a program sends to this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY, "no_proxy": "127.0.0.1", "WANDB_X_DISABLE_STATS": "1"}

    def run(self, entity: str, project: str, name: str) -> TrackedRun:
        """A run, which is made if it is not there."""
        return self.runs.setdefault(f"{entity}/{project}/{name}", TrackedRun())


@contextmanager
def serving() -> Iterator[WandbServer]:
    """A server until the end of the `with`."""
    state = WandbServer()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Server(ThreadingHTTPServer):
    """Without a word on connections that a killed program leaves."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: WandbServer

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw

    def do_GET(self) -> None:
        self.reply({})

    def do_PUT(self) -> None:
        self.body()
        self.reply({})

    def do_POST(self) -> None:
        raw = self.body()
        if "json" not in self.headers.get("Content-Type", "json"):  # telemetry
            self.reply({})
            return
        content = json.loads(raw or b"{}")
        if match := STREAM.match(self.path):
            self.stream(self.state.run(match[1], match[2], match[3]), content)
        else:
            self.reply({"data": self.answer(content.get("query", ""), content.get("variables") or {})})

    def stream(self, run: TrackedRun, content: dict[str, Any]) -> None:
        """Lines of files of a run; those at an offset that is there already replace what is there."""
        for name, part in (content.get("files") or {}).items():
            if "history" in name:
                offset = part.get("offset", len(run.history))
                assert offset <= len(run.history), "lines are missing"
                run.history[offset : offset + len(part["content"])] = [json.loads(line) for line in part["content"]]
            elif "summary" in name:
                run.summary = part["content"][-1]
        run.ended |= content.get("complete") is not None
        self.reply({"exitcode": None, "limits": {}})

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """The data of a query or mutation of GraphQL."""
        found = re.search(r"(?:mutation|query)\s+(\w+)", query)
        operation = found[1] if found else ""
        entity, project, name = given.get("entity") or "me", given.get("project") or "", given.get("name") or ""
        known = f"{entity}/{project}/{name}" in self.state.runs
        if operation == "UpsertBucket":
            run = self.state.run(entity, project, name)
            about = ("displayName", "groupName", "tags", "config")
            run.settings.append({key: given.get(key) for key in about})
            owner = {"id": "p", "name": project, "entity": {"id": "e", "name": entity}}
            bucket = {"id": "b", "name": name, "displayName": given.get("displayName"), "description": None}
            bucket |= {"config": given.get("config"), "sweepName": None, "historyLineCount": len(run.history)}
            return {"upsertBucket": {"bucket": bucket | {"project": owner}, "inserted": not known}}
        if "Resume" in operation:
            bucket = self.bucket(self.state.run(entity, project, name), name) if known else None
            owner = {"id": "p", "name": project, "internalId": "1", "entity": {"id": "e", "name": entity}}
            return {"model": owner | {"bucket": bucket}}
        if "viewer" in query:
            viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer}
        if "serverInfo" in query:
            return {"serverInfo": {"cliVersionInfo": {"max_cli_version": "9.9.9"}, "latestLocalVersionInfo": None}}
        if "createRunFiles" in query:
            files = [{"name": file, "uploadUrl": f"{self.state.url}/up/{file}"} for file in given.get("files", [])]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "__type" in query or "__schema" in query:
            return {"QueryType": {"fields": []}, "MutationType": {"fields": []}, "__type": None}
        return {}

    def bucket(self, run: TrackedRun, name: str) -> dict[str, Any]:
        """A run as one that resumes is told of it."""
        tail = json.dumps([json.dumps(run.history[-1])] if run.history else [])
        about = {"id": "b", "name": name, "displayName": name, "summaryMetrics": run.summary, "logLineCount": 0}
        about |= {"historyLineCount": len(run.history), "eventsLineCount": 0, "historyTail": tail, "eventsTail": "[]"}
        return about | {"config": "{}", "tags": [], "wandbConfig": '{"t": {"1": []}}'}  # without "t" it counts as new

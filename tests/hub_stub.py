"""A stand-in for the Hugging Face hub on loopback: repositories with branches, private and gated ones, and faults.

`with serving() as hub:` starts one; HF_ENDPOINT=hub.url lets programs talk to it, with `ENVIRONMENT`. Its users are
alice, of the organisation team, and bob, who may only read. It speaks the part of the hub's protocol that
huggingface_hub 1 and 2 use to create, upload, list and download without xet.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

ENVIRONMENT = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"}
WRITER, READER, FINE, WRONG = "hf_writer_0001", "hf_reader_0002", "hf_finegrained_0003", "hf_wrong_0004"
TOKENS = {WRITER: ("alice", "write"), READER: ("bob", "read"), FINE: ("alice", "fineGrained")}
TEAM = "team"  # an organisation of alice's
KIND = {"models": "model", "datasets": "dataset", "spaces": "space"}
BINARY = (".safetensors", ".bin", ".parquet", ".gz", ".pt")
NAME = r"(?:/(datasets|spaces))?/([^/]+/[^/]+)"
API = re.compile(r"/api/(models|datasets|spaces)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.*))?)?")
Files = dict[str, tuple[str, bool]]
"""(sha256 of the content, true if it is kept by LFS) by path"""


@dataclass
class Fault:
    """The fate of the requests that match: an error's status, or a cut connection, before or after it is served."""

    match: str
    """regular expression of `METHOD /path`"""
    status: int = 0
    """0: the connection is cut"""
    times: int = 1
    served: bool = False
    """the request is served, and its answer is lost"""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Repository:
    """Commits (id, files) by branch, the newest last."""

    private: bool = False
    gated: bool = False
    branches: dict[str, list[tuple[str, Files]]] = field(
        default_factory=lambda: {"main": [(hashlib.sha1(b"start").hexdigest(), {})]}
    )

    def at(self, revision: str) -> tuple[str, Files] | None:
        """The newest commit of a branch, or the commit of that id."""
        if revision in self.branches:
            return self.branches[revision][-1]
        return next((c for commits in self.branches.values() for c in commits if c[0] == revision), None)


class Hub:
    """The state of a hub, for tests to set and look at."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        """by (kind, name)"""
        self.contents: dict[str, bytes] = {}
        """by sha256"""
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, bool]] = []
        """(method, path, true if a token came with it)"""
        self.lock = threading.Lock()
        self.url = ""

    def add(self, name: str, files: Mapping[str, bytes], kind: str = "model", **settings: bool) -> Repository:
        """A repository with one commit of these files."""
        repository = self.repositories[kind, name] = Repository(**settings)
        kept: Files = {path: (self.keep(data), path.endswith(BINARY)) for path, data in files.items()}
        repository.branches["main"].append((hashlib.sha1(name.encode()).hexdigest(), kept))
        return repository

    def keep(self, data: bytes) -> str:
        """Keeps a content; its sha256."""
        digest = hashlib.sha256(data).hexdigest()
        self.contents[digest] = data
        return digest

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a model by path."""
        found = self.repositories["model", name].at(revision)
        assert found, revision
        return {path: self.contents[sha] for path, (sha, _) in found[1].items()}

    def commits(self, name: str, revision: str = "main") -> int:
        """The number of commits of a model's branch, without the first, empty one."""
        return len(self.repositories["model", name].branches[revision]) - 1

    def count(self, pattern: str) -> int:
        """The number of requests `METHOD /path` that match."""
        return sum(bool(re.search(pattern, f"{method} {path}")) for method, path, _ in self.requests)


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that serves until the end of the `with`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def git_oid(data: bytes) -> str:
    """The id of a blob in git."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def serve(self) -> None:
        """Answers a request, or has a fault."""
        path = unquote(urlsplit(self.path).path)
        body = self._body()
        with self.hub.lock:
            self.hub.requests.append((self.command, path, bool(self.headers.get("Authorization"))))
            faults = (f for f in self.hub.faults if f.times > 0 and re.search(f.match, f"{self.command} {path}"))
            fault = next(faults, None)
            if fault:
                fault.times -= 1
        self.lost = fault is not None and fault.served
        if fault and not fault.served:
            if not fault.status:
                self._cut()
                return
            self.reply(fault.status, {"error": "fault"}, fault.headers)
            return
        with suppress(BrokenPipeError, ConnectionResetError):
            self.route(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reply(self, status: int, content: Any = b"", headers: Mapping[str, Any] | None = None) -> None:
        """Sends an answer, unless it is to be lost."""
        if self.lost:
            self._cut()
            return
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        for name, value in {"Content-Length": len(body), "Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status: int, message: str, code: str = "") -> None:
        """Sends an error as the hub does."""
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.reply(status, {"error": message}, headers)

    @property
    def user(self) -> tuple[str, str]:
        """(name, role) of the token; empty without one that is known."""
        return TOKENS.get(self.headers.get("Authorization", "").removeprefix("Bearer ").strip(), ("", ""))

    def may_write(self, name: str) -> bool:
        """True if the token's user may write to a repository of this name."""
        user, role = self.user
        owner = name.partition("/")[0]
        return (role == "write" and owner in (user, TEAM)) or (role == "fineGrained" and owner == user)

    def find(self, kind: str, name: str, write: bool = False) -> Repository | None:
        """The repository, or None once an error is sent."""
        user, _ = self.user
        if self.headers.get("Authorization") and not user:
            self.error(401, "Invalid credentials in Authorization header")
            return None
        repository = self.hub.repositories.get((kind, name))
        if not repository or (repository.private and name.partition("/")[0] not in (user, TEAM if user else "")):
            self.error(404 if user else 401, "Repository not found", "RepoNotFound")
            return None
        if repository.gated and user != name.partition("/")[0]:
            self.error(403 if user else 401, f"Access to model {name} is restricted.", "GatedRepo")
            return None
        if write and not self.may_write(name):
            self.error(403 if user else 401, "You don't have the rights to do this")
            return None
        return repository

    def route(self, path: str, body: bytes) -> None:
        """Answers a request that has no fault."""
        if path == "/api/whoami-v2":
            self.whoami()
        elif path == "/api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif m := re.fullmatch(NAME + r"\.git/info/lfs/objects/(batch|verify|[0-9a-f]{64})", path):
            self.lfs(KIND[m[1] or "models"], m[2], m[3], body)
        elif m := API.fullmatch(path):
            self.api(KIND[m[1]], m[2], m[3] or "", m[4] or "", body)
        elif m := re.fullmatch(NAME + r"/resolve/([^/]+)/(.+)", path):
            self.resolve(KIND[m[1] or "models"], m[2], m[3], m[4])
        else:
            self.error(404, f"no such route: {self.command} {path}")

    def whoami(self) -> None:
        """The owner of the token, and its rights."""
        user, role = self.user
        if not user:
            self.error(401, "Invalid username or password.")
            return
        token: dict[str, Any] = {"role": role, "displayName": "t"}
        if role == "fineGrained":
            scope = {"entity": {"type": "user", "name": user}, "permissions": ["repo.content.read", "repo.write"]}
            token["fineGrained"] = {"global": [], "scoped": [scope]}
        teams = [{"type": "org", "name": TEAM, "roleInOrg": "write"}] if user == "alice" else []
        about = {"type": "user", "name": user, "fullname": user, "orgs": teams}
        self.reply(200, about | {"auth": {"type": "access_token", "accessToken": token}})

    def create(self, asked: dict[str, Any]) -> None:
        """Creates a repository."""
        user, _ = self.user
        if not user:
            self.error(401, "Invalid username or password.")
            return
        kind, name = asked.get("type", "model"), f"{asked.get('organization') or user}/{asked['name']}"
        if not self.may_write(name):
            self.error(403, "You don't have the rights to create a model under this namespace")
            return
        link = {"url": f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}", "name": name, "id": name}
        if (kind, name) in self.hub.repositories:
            self.reply(409, {"error": "You already created this model repo", **link})
            return
        private = bool(asked.get("private") or asked.get("visibility") == "private")
        self.hub.repositories[kind, name] = Repository(private)
        self.reply(200, link)

    def lfs(self, kind: str, name: str, action: str, body: bytes) -> None:
        """Large files: where to put them, and the upload itself, which has no token."""
        if action not in ("batch", "verify"):
            if self.hub.keep(body) != action:
                del self.hub.contents[hashlib.sha256(body).hexdigest()]
                self.reply(400, {"error": "wrong sha256"})
                return
            self.reply(200, {})
            return
        if not self.find(kind, name, write=True):
            return
        asked = json.loads(body)
        if action == "verify":
            self.reply(200 if asked["oid"] in self.hub.contents else 404, {})
            return
        base = f"{self.hub.url}{self.path.rsplit('/', 1)[0]}"
        objects = []
        for one in asked["objects"]:
            upload = {"upload": {"href": f"{base}/{one['oid']}"}, "verify": {"href": f"{base}/verify"}}
            known = one["oid"] in self.hub.contents
            objects.append({"oid": one["oid"], "size": one["size"], **({} if known else {"actions": upload})})
        self.reply(200, {"transfer": "basic", "objects": objects})

    def api(self, kind: str, name: str, action: str, rest: str, body: bytes) -> None:
        """An action on a repository: `action`, with what follows it in the path."""
        repository = self.find(kind, name, write=action in ("preupload", "commit", "branch"))
        if not repository:
            return
        revision, _, below = rest.partition("/")
        if action == "branch":
            if revision in repository.branches:
                self.error(409, f"Reference refs/heads/{revision} already exists")
                return
            repository.branches[revision] = list(repository.branches["main"])
            self.reply(200, {})
            return
        commit = repository.at(revision or "main")
        if not commit:
            self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            return
        oid, files = commit
        if action == "preupload":
            self.reply(200, {"files": [self.upload_mode(files, asked) for asked in json.loads(body)["files"]]})
        elif action == "commit":
            self.commit(repository, revision, name, body)
        elif action == "tree":
            self.reply(200, [one for one in self.entries(files) if not below or one["path"].startswith(f"{below}/")])
        elif action == "paths-info":
            wanted = json.loads(body)["paths"] if body[:1] == b"{" else re.findall(r"paths=([^&]+)", body.decode())
            self.reply(200, [one for one in self.entries(files) if one["path"] in [unquote(w) for w in wanted]])
        elif action == "refs":
            refs = [
                {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": commits[-1][0]}
                for branch, commits in repository.branches.items()
            ]
            self.reply(200, {"branches": refs, "tags": [], "converts": []})
        else:
            info = {"id": name, "modelId": name, "sha": oid, "private": repository.private, "gated": repository.gated}
            siblings = [{"rfilename": one["path"], "size": one["size"]} for one in self.entries(files)]
            dates = dict.fromkeys(("lastModified", "createdAt"), "2026-01-01T00:00:00.000Z")
            more = {"tags": [], "downloads": 0, "likes": 0, "disabled": False, "author": name.split("/")[0]}
            self.reply(200, info | more | dates | {"siblings": siblings})

    def upload_mode(self, files: Files, asked: dict[str, Any]) -> dict[str, Any]:
        """The way a file is to be sent, and the id of the one that is there."""
        path = asked["path"]
        large = asked["size"] and (path.endswith(BINARY) or asked["size"] > 10_000_000)
        sha, kept_large = files.get(path, ("", False))
        oid = (sha if kept_large else git_oid(self.hub.contents[sha])) if sha else None
        return {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid}

    def entries(self, files: Files) -> Iterator[dict[str, Any]]:
        """Files as the tree lists them."""
        for path, (sha, large) in sorted(files.items()):
            data = self.hub.contents[sha]
            lfs = {"lfs": {"oid": sha, "size": len(data), "pointerSize": 130}} if large else {}
            yield {"type": "file", "path": path, "size": len(data), "oid": git_oid(data), **lfs}

    def commit(self, repository: Repository, branch: str, name: str, body: bytes) -> None:
        """Adds a commit, if its parent is the newest one."""
        with self.hub.lock:
            oid, files = repository.branches[branch][-1]
            new = dict(files)
            for line in filter(None, body.split(b"\n")):
                operation = json.loads(line)
                value = operation["value"]
                if operation["key"] == "header" and value.get("parentCommit", oid) != oid:
                    self.error(412, "A commit has happened since. Please refresh and try again.")
                    return
                if operation["key"] == "file":
                    new[value["path"]] = (self.hub.keep(base64.b64decode(value["content"])), False)
                elif operation["key"] == "lfsFile":
                    if value["oid"] not in self.hub.contents:
                        self.error(400, f"LFS pointer points to a file that does not exist: {value['path']}")
                        return
                    new[value["path"]] = (value["oid"], True)
                elif operation["key"] == "deletedFile":
                    new.pop(value["path"], None)
            made = hashlib.sha1(repr((oid, sorted(new.items()), len(repository.branches[branch]))).encode()).hexdigest()
            repository.branches[branch].append((made, new))
        self.reply(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{made}", "commitOid": made, "success": True})

    def resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        """The content of a file."""
        repository = self.find(kind, name)
        if not repository:
            return
        if not (commit := repository.at(revision)):
            self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            return
        if path not in commit[1]:
            self.error(404, "Entry not found", "EntryNotFound")
            return
        sha, large = commit[1][path]
        data = self.hub.contents[sha]
        tag = sha if large else git_oid(data)
        headers = {"X-Repo-Commit": commit[0], "ETag": f'"{tag}"', "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(data))}
        if m := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(m[1]), int(m[2] or len(data) - 1)
            self.reply(206, data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})
            return
        self.reply(200, data, headers)

"""Replies from any server that speaks OpenAI's HTTP interface: vLLM, llama.cpp, Ollama, OpenAI itself.

Design decisions:
- http.client rather than urllib: its sockets can be shut from another thread, which is how Ctrl-C and the deadline end
  a request at once; and it follows no redirect, which would carry the key along.
- Request j for a conversation has a seed of its own that follows from the conversation's seed and j: no two replies
  share one where a server ignores `n`, and a conversation gets the same replies alone as among others.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from queue import SimpleQueue
from socket import SHUT_RDWR, socket
from typing import Any, Literal, final
from urllib.parse import SplitResult, urlsplit

from lmgym.errors import Bound, InputError, TooLong, refuse_out_of_bounds
from lmgym.generation.protocol import Capabilities, Completion, FinishReason, Progress, Sampling, seeds_of
from lmgym.text import Conversation, messages, to_transcript

FIRST_WAIT, LONGEST_WAIT, LONGEST_ASKED_WAIT = 0.5, 8.0, 30.0
"""seconds before a second try, doubled up to the next figure; the last bounds what Retry-After may ask for"""
MOST_BYTES = 64 << 20
SEED_STEP, SEEDS = 1_000_003, 1 << 31  # an odd step meets every seed before any again; 31 bits fit every server
PATHS = {"chat": "/chat/completions", "completions": "/completions"}
EXTRAS = {"top_k", "repetition_penalty", "ignore_eos"}
# as OpenAI, vLLM, SGLang, llama.cpp, LM Studio and TGI say it
TOO_LONG = re.compile(
    r"context.?(length|size|window)|reduce the length|too long|max_new_tokens. must be", re.IGNORECASE
)
NEEDED = dict.fromkeys((301, 302, 303, 307, 308), "as base_url what it redirects to") | {
    401: "a key that it accepts, in the environment variable {variable}",
    403: "a key that may do this, in the environment variable {variable}",
    404: "a base_url that ends before {path}, often in /v1, and a model that it serves (GET {base}/models lists them)",
}


class ServerError(RuntimeError):
    """A server gave no usable answer, however often it was asked: where, what happened last, what to check."""


class _Failure(Exception):
    """A try that failed and may be repeated, not before the seconds that the server asked for."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


class _Wires:
    """The connections of one `reply`; `cut` ends all of them, from any thread."""

    def __init__(self) -> None:
        self.are_cut = threading.Event()
        self._open: set[socket] = set()
        self._lock = threading.Lock()

    def post(self, url: SplitResult, body: bytes, headers: dict[str, str], timeout: float) -> tuple[int, Any, bytes]:
        """(status, headers, body). Raises _Failure where the connection breaks or `timeout` seconds have passed."""
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=timeout)
        deadline = time.monotonic() + timeout
        try:
            connection.connect()
            with self._until(connection.sock, deadline):
                connection.request("POST", url.path, body, headers)
                response = connection.getresponse()
                data = response.read(MOST_BYTES)
            if time.monotonic() >= deadline:
                raise TimeoutError  # to http.client an answer that was cut short is none
            return response.status, response.headers, data
        except (OSError, HTTPException) as error:
            late = isinstance(error, TimeoutError) or time.monotonic() >= deadline
            raise _Failure(f"no answer within {timeout=:g} s" if late else f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()

    @contextlib.contextmanager
    def _until(self, wire: socket, deadline: float) -> Iterator[None]:
        # a socket's own timeout begins anew with every byte that trickles in
        late = threading.Timer(max(deadline - time.monotonic(), 0), _shut, [wire])
        late.daemon = True
        late.start()
        with self._lock:
            self._open.add(wire)
            if self.are_cut.is_set():
                _shut(wire)
        try:
            yield
        finally:
            late.cancel()
            with self._lock:
                self._open.discard(wire)

    def cut(self) -> None:
        """Ends every wait; the server sees its connections close and can stop generating."""
        with self._lock:
            self.are_cut.set()
            for wire in self._open:
                _shut(wire)


def _shut(wire: socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        socket.shutdown(wire, SHUT_RDWR)  # of the class: an SSL socket's own drops what its reader stands on


@dataclass
class _Chat:
    """A conversation under way: what is asked for it, and the replies of each of its requests."""

    content: dict[str, Any]
    seed: int
    requests: int = 0
    waiting: int = 0
    replies: dict[int, list[Completion]] = field(default_factory=dict)

    @property
    def found(self) -> list[Completion]:
        return [reply for _, replies in sorted(self.replies.items()) for reply in replies]


@final
class ServedGenerator:
    """Asks `model` of the server at `base_url` ("http://localhost:8000/v1") for replies.

    `api` is "chat", where the server applies its chat template, or "completions", where it is sent the flat
    transcript. A server that ignores `n` is noticed and sent a request a reply; for one that refuses it there is
    `n_in_one_request=False`. Each request may take `timeout` seconds and is tried `retries` times more after
    a broken connection, a timeout, 429, 5xx or an answer that makes no sense; at most `concurrency` run at once.

    The key comes from the environment variable `key_variable` ("": none is sent). Raises InputError for an address
    that cannot be asked, or that the key would travel to unencrypted.
    """

    capabilities = Capabilities()

    def __init__(
        self, base_url: str, model: str, api: Literal["chat", "completions"] = "chat", n_in_one_request: bool = True,
        timeout: float = 60.0, retries: int = 3, key_variable: str = "OPENAI_API_KEY", concurrency: int = 8,
    ) -> None:  # fmt: skip
        refuse_out_of_bounds((
            Bound("api", api, api in PATHS, " or ".join(PATHS)),
            Bound("timeout", timeout, 0 < timeout <= threading.TIMEOUT_MAX, "seconds, above 0"),
            Bound("retries", retries, retries >= 0, "0 or more"),
            Bound("concurrency", concurrency, concurrency >= 1, "1 or more"),
        ))  # fmt: skip
        self.base_url, self.model, self.api, self.n_in_one_request = base_url.rstrip("/"), model, api, n_in_one_request
        self.timeout, self.retries, self.key_variable, self.concurrency = timeout, retries, key_variable, concurrency
        self._url, self._refused = _parse(self.base_url, PATHS[api]), set[tuple[str, Any]]()
        self._key()

    def __repr__(self) -> str:
        return f"ServedGenerator({self.base_url!r}, {self.model!r}, api={self.api!r})"

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation; `progress` is told (replies there, replies in all).

        `tokens` is what the server counted, 0 where it counted several replies together. Greedy replies are alike and
        asked for once. Raises ServerError after the last try, and InputError for what the server refuses, TooLong where
        it says that it reads no such length.
        """
        if n < 1:
            raise InputError(f"n={n} replies; needed: 1 or more")
        self._key()
        if known := self._refused & set(_extras(sampling).items()):
            raise self._refusal(400, "as it said before", known)
        asked = n if sampling.temperature else 1  # vLLM refuses n greedy replies, which would be the same
        seeds = seeds_of(sampling, len(conversations))
        chats = [_Chat(self._content(c, sampling), s) for c, s in zip(conversations, seeds, strict=True)]
        self._gather(chats, asked, n // asked, sampling.stop, progress)
        return [chat.found * (n // asked) for chat in chats]

    def _content(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        chat = self.api == "chat"
        return {
            "model": self.model,
            **({"messages": messages(conversation)} if chat else {"prompt": to_transcript(conversation)}),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **_extras(sampling),
        }

    def _gather(
        self, chats: list[_Chat], asked: int, copies: int, stop: tuple[str, ...], progress: Progress | None
    ) -> None:
        """Asks until every conversation has its replies. Threads are daemons: none holds up the end of the process."""
        tasks: SimpleQueue = SimpleQueue()
        results: SimpleQueue = SimpleQueue()
        wires, workers, done = _Wires(), min(self.concurrency, len(chats) * asked), 0

        def ask(chat: _Chat, at_once: int) -> None:
            missing = asked - len(chat.found)
            for start in range(0, missing, at_once):
                tasks.put((chat, chat.requests, min(at_once, missing - start)))
                chat.requests, chat.waiting = chat.requests + 1, chat.waiting + 1

        def work() -> None:
            while (task := tasks.get()) is not None:
                chat, request, size = task
                try:
                    results.put((chat, request, self._ask(wires, chat, request, size, stop)))
                except BaseException as error:  # raised again below
                    results.put((chat, request, error))

        try:
            for _ in range(workers):
                threading.Thread(target=work, name="served-generation", daemon=True).start()
            for chat in chats:
                ask(chat, asked if self.n_in_one_request else 1)
            while any(chat.waiting for chat in chats):
                chat, request, found = results.get()
                if isinstance(found, BaseException):
                    raise found
                if request == 0 and len(found) == 1 < asked:
                    self.n_in_one_request = False
                chat.replies[request], chat.waiting, done = found, chat.waiting - 1, done + len(found)
                if progress:
                    progress(done * copies, len(chats) * asked * copies)
                if not chat.waiting:
                    ask(chat, len(found))  # an answer has a reply at least: no more requests than replies
        finally:
            wires.cut()
            for _ in range(workers):
                tasks.put(None)

    def _ask(self, wires: _Wires, chat: _Chat, request: int, size: int, stop: tuple[str, ...]) -> list[Completion]:
        """1 to `size` replies: request number `request` of a conversation, tried again within the bounds."""
        seed = (chat.seed + request * SEED_STEP) % SEEDS
        body = json.dumps({**chat.content, "n": size, "seed": seed, "stream": False}).encode()
        last = _Failure("not asked")
        for tries in range(self.retries + 1):
            if tries:
                wires.are_cut.wait(max(min(FIRST_WAIT * 2 ** (tries - 1), LONGEST_WAIT), last.wait))
            if wires.are_cut.is_set():
                raise last
            try:
                return _completions(self._answer(wires, body), self.api, stop)[:size]
            except _Failure as failure:
                last = failure
        raise ServerError(
            f"{self.base_url} gave no usable answer in {self.retries + 1} tries, the last: {self._words(str(last))}; "
            f"needed: a server of {self.model!r} that answers {PATHS[self.api]}; see its log, {self.base_url}/models; "
            f"timeout={self.timeout:g} may be short, or one reply a request all it takes (n_in_one_request=False)"
        )

    def _answer(self, wires: _Wires, body: bytes) -> bytes:
        key = self._key()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        status, said, data = wires.post(self._url, body, headers, self.timeout)
        if status == 200:
            return data
        text = f"status {status}: {said.get('Location') or data.decode(errors='replace')}"
        if status == 429 or status >= 500:
            raise _Failure(text, _seconds(said.get("Retry-After", "")))
        sent = json.loads(body)
        refused = {(name, sent[name]) for name in EXTRAS & set(sent) if re.search(rf"\b{name}\b", text)}
        self._refused |= refused
        raise self._refusal(status, text, refused)

    def _refusal(self, status: int, text: str, extras: set[tuple[str, Any]]) -> InputError:
        needed = NEEDED.get(status, "what it takes; n_in_one_request=False where that is n")
        if extras:
            names = ", ".join(f"{name}={value}" for name, value in sorted(extras))
            needed = f"a sampling without {names}, or a server that knows it, such as vLLM"
        needed = needed.format(base=self.base_url, path=PATHS[self.api], variable=self.key_variable or "key_variable")
        kind = TooLong if status in (400, 413, 422) and TOO_LONG.search(text) else InputError
        return kind(f"{self.base_url} refused a request for {self.model!r}, {self._words(text)}; needed: {needed}")

    def _words(self, text: str) -> str:
        """What a server or a library said, fit to be shown: without the key, control characters or great length."""
        shown = text.replace(self._key() or "\0", "(the key)")
        return "".join(c if c.isprintable() else " " for c in shown[:400])

    def _key(self) -> str:
        """The key, read anew each time and kept nowhere. Raises InputError where it must not or cannot be sent."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        if not re.fullmatch("[!-~]*", key):
            raise InputError(f"{self.key_variable} has characters that a key cannot have; needed: visible ASCII alone")
        if key and self._url.scheme == "http" and not _is_loopback(self._url.hostname or ""):
            raise InputError(
                f"{self.base_url} is not encrypted and {self.key_variable} holds a key; needed: https, a tunnel to "
                'localhost, or key_variable="" for a server that wants none'
            )
        return key


def _extras(sampling: Sampling) -> dict[str, Any]:
    """What OpenAI's own interface lacks, where it differs from none."""
    extras: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.repetition_penalty != 1:
        extras["repetition_penalty"] = sampling.repetition_penalty
    return extras if sampling.ends_at_eos else {**extras, "ignore_eos": True}


def _parse(base_url: str, path: str) -> SplitResult:
    """Where to post. What it refuses it does not repeat: it may hold a secret."""
    with contextlib.suppress(ValueError):
        url = urlsplit(base_url + path)
        host = (url.hostname or "").encode("idna")
        fits = url.scheme in ("http", "https") and host and url.port != 0
        if fits and "@" not in url.netloc and re.fullmatch("[!-~]+", base_url) and not re.search("[?#]", base_url):
            return url
    raise InputError(
        "base_url is no plain address; needed: such as http://localhost:8000/v1, without a name, password or query "
        "(a key goes into the environment variable that key_variable names)"
    )


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _seconds(asked: str) -> float:
    """Of a Retry-After header, within its bound; a date counts from now."""
    with contextlib.suppress(ValueError):
        try:
            wait = float(asked)
        except ValueError:
            wait = parsedate_to_datetime(asked).timestamp() - time.time()
        return min(max(wait, 0.0), LONGEST_ASKED_WAIT)
    return 0.0


def _completions(data: bytes, api: str, stop: tuple[str, ...]) -> list[Completion]:
    """The replies of an answer, at least one. Raises _Failure where it is not what the interface promises."""
    try:
        answer = json.loads(data)
        choices = answer["choices"]
        texts = [choice["message"]["content"] if api == "chat" else choice["text"] for choice in choices]
        reasons = [(choice.get("finish_reason"), choice.get("stop_reason", "unknown")) for choice in choices]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TypeError("a choice without text (a model that thinks may have run out of tokens)")
        counted = answer.get("usage") if len(texts) == 1 else None
        tokens = int((counted or {}).get("completion_tokens") or 0)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        said = data.decode(errors="replace")
        raise _Failure(f"an answer that makes no sense ({type(error).__name__}: {error}): {said}") from None
    return [_completion(text, *reason, stop, tokens) for text, reason in zip(texts, reasons, strict=True)]


def _completion(text: str, reason: Any, by: Any, stop: tuple[str, ...], tokens: int) -> Completion:
    """Cut before its first stop string. Servers say "stop" of an eos too; vLLM's stop_reason tells them apart."""
    cut = min((place for s in stop if (place := text.find(s)) >= 0), default=None)
    ended: FinishReason = "length" if reason == "length" else "eos"
    if cut is not None or (stop and reason == "stop" and isinstance(by, str)):
        ended = "stop"
    # JSON can spell half a surrogate pair, which no file or terminal takes
    return Completion(text[:cut].encode(errors="replace").decode(), ended, tokens=tokens)

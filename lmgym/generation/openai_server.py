"""Replies from any server with OpenAI's HTTP interface: vLLM, llama.cpp, Ollama, OpenAI itself.

The seed of request j for a conversation is a function of the conversation's seed and j: no two replies have the same
seed if a server ignores `n`, and a conversation gets the same replies alone as among others.
"""

import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal, final

from lmgym.config import Range
from lmgym.errors import MOST_STEPS, InputError, ServerError, TooLong, shown
from lmgym.generation.http_connections import (
    Connections,
    RequestFailed,
    is_loopback,
    parse_address,
    parse_retry_after,
    repeat,
)
from lmgym.generation.protocol import Completion, FinishReason, LikelyTokens, Progress, Sampling, seeds_of
from lmgym.generation.usage import Usage
from lmgym.text import Conversation, messages, to_transcript

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0  # seconds before the second try, doubled for each further try up to the longest
SEED_STEP, SEEDS = 1_000_003, 1 << 31  # an odd step visits every seed before it repeats one; every server takes 31 bits
MOST_LOGPROBS = 20  # OpenAI's limit
PATHS = {"chat": "/chat/completions", "completions": "/completions"}
EXTRAS = {"top_k", "repetition_penalty", "ignore_eos"}  # parameters that OpenAI's own interface lacks
# the words of OpenAI, vLLM, SGLang, llama.cpp, LM Studio and TGI
TOO_LONG = re.compile(
    r"context.?(length|size|window)|reduce the length|too long|max_new_tokens. must be", re.IGNORECASE
)
NEEDED = dict.fromkeys((301, 302, 303, 307, 308), "the address that it redirects to as base_url") | {
    401: "a key that it accepts, in the environment variable {variable}",
    403: "a key with this permission, in the environment variable {variable}",
    404: "a base_url that ends before {path}, often in /v1, and a model that it serves (GET {base}/models lists them)",
}


@dataclass
class _Pending:
    """A conversation, the requests sent for it, and the replies so far by request."""

    content: dict[str, Any]
    """the body of a request without n and seed"""
    seed: int
    requests: int = 0
    waiting: int = 0
    answers: dict[int, list[Completion]] = field(default_factory=dict)

    @property
    def replies(self) -> list[Completion]:
        return [reply for _, replies in sorted(self.answers.items()) for reply in replies]


@final
class ServedGenerator:
    """Samples replies from `model` on the server at `base_url` ("http://localhost:8000/v1").

    `api` is "chat", where the server applies its chat template, or "completions", which receives the flat transcript.
    A server that ignores `n` is detected and gets one request a reply; use `n_in_one_request=False` for one that
    refuses `n`. With `top_logprobs` replies have so many of the likeliest tokens at each place, if the server gives
    them. A request may take `timeout` seconds and is repeated up to `retries` times after a broken connection,
    a timeout, 429, 5xx or an invalid answer; at most `concurrency` run at once.

    The key comes from the environment variable `key_variable` ("": no key is sent). Raises InputError for an invalid
    address, and for one to which the key would travel unencrypted.
    """

    def __init__(
        self, base_url: str, model: str, api: Literal["chat", "completions"] = "chat", n_in_one_request: bool = True,
        timeout: float = 60.0, retries: int = 3, key_variable: str = "OPENAI_API_KEY", concurrency: int = 8,
        top_logprobs: int = 0,
    ) -> None:  # fmt: skip
        if api not in PATHS:
            raise InputError(f"api={shown(api)}; needed: {' or '.join(PATHS)}")
        Range(0, threading.TIMEOUT_MAX, above=True, hint="seconds").check("timeout", timeout)
        Range(0, MOST_STEPS).check("retries", retries)
        Range(1, MOST_STEPS).check("concurrency", concurrency)
        Range(0, MOST_LOGPROBS, hint="0: none").check("top_logprobs", top_logprobs)
        self.base_url, self.model, self.api, self.n_in_one_request = base_url.rstrip("/"), model, api, n_in_one_request
        self.timeout, self.retries, self.key_variable, self.concurrency = timeout, retries, key_variable, concurrency
        self.top_logprobs = top_logprobs
        self._asked_logprobs = (
            {"logprobs": True, "top_logprobs": top_logprobs} if api == "chat" else {"logprobs": top_logprobs}
        )
        self._url = parse_address(self.base_url, PATHS[api])
        self.usage = Usage()
        self._refused_extras: set[tuple[str, Any]] = set()
        self._key()

    def __repr__(self) -> str:
        return f"ServedGenerator({self.base_url!r}, {self.model!r}, api={self.api!r})"

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation; `progress` is called with (replies received, replies in all).

        `tokens` is the server's count, 0 if it counted several replies together. Greedy replies are equal and requested
        once. Raises ServerError after the last try, InputError for a request that the server refuses, and TooLong if it
        refuses the length.
        """
        if n < 1:
            raise InputError(f"n={n} replies; needed: 1 or more")
        self._key()
        if refused := self._refused_extras & set(_extras(sampling).items()):
            raise self._refusal(400, "as before", refused)
        requested = n if sampling.temperature else 1  # vLLM refuses n greedy replies, which would be equal
        seeds = seeds_of(sampling, len(conversations))
        pending = [_Pending(self._content(c, sampling), s) for c, s in zip(conversations, seeds, strict=True)]
        copies = n // requested
        self._gather(pending, requested, copies, sampling, progress)
        return [conversation.replies * copies for conversation in pending]

    def _content(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        chat = self.api == "chat"
        return {
            "model": self.model,
            **({"messages": messages(conversation)} if chat else {"prompt": to_transcript(conversation)}),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **(self._asked_logprobs if self.top_logprobs else {}),
            **_extras(sampling),
        }

    def _gather(
        self, pending: list[_Pending], n: int, copies: int, sampling: Sampling, progress: Progress | None
    ) -> None:
        """Send requests until every conversation has n replies. Daemon threads do not delay the end of the process."""
        tasks: SimpleQueue = SimpleQueue()
        results: SimpleQueue = SimpleQueue()
        connections, workers, received = Connections(), min(self.concurrency, len(pending) * n), 0

        def request(conversation: _Pending, at_once: int) -> None:
            missing = n - len(conversation.replies)
            for start in range(0, missing, at_once):
                tasks.put((conversation, conversation.requests, min(at_once, missing - start)))
                conversation.requests, conversation.waiting = conversation.requests + 1, conversation.waiting + 1

        def work() -> None:
            while (task := tasks.get()) is not None:
                conversation, number, size = task
                try:
                    answer: Any = self._request(connections, conversation, number, size, sampling)
                except BaseException as error:  # raised in the calling thread
                    answer = error
                results.put((conversation, number, answer))

        try:
            for _ in range(workers):
                threading.Thread(target=work, name="served-generation", daemon=True).start()
            for conversation in pending:
                request(conversation, n if self.n_in_one_request else 1)
            while any(conversation.waiting for conversation in pending):
                conversation, number, answer = results.get()
                if isinstance(answer, BaseException):
                    raise answer
                if number == 0 and len(answer) == 1 < n:
                    self.n_in_one_request = False
                conversation.answers[number] = answer
                conversation.waiting -= 1
                received += len(answer)
                if progress:
                    progress(received * copies, len(pending) * n * copies)
                if not conversation.waiting:
                    request(conversation, len(answer))  # an answer has at least one reply, so this ends
        finally:
            connections.close()
            for _ in range(workers):
                tasks.put(None)

    def _request(
        self, connections: Connections, conversation: _Pending, number: int, size: int, sampling: Sampling
    ) -> list[Completion]:
        """1 to `size` replies from request `number` of a conversation, repeated if it fails."""
        seed = (conversation.seed + number * SEED_STEP) % SEEDS
        body = json.dumps({**conversation.content, "n": size, "seed": seed, "stream": False}).encode()

        def attempt() -> list[Completion]:
            completions, prompt_tokens, tokens = _read_completions(self._post(connections, body), self.api, sampling)
            self.usage.add(prompt_tokens, tokens)
            return completions[:size]

        try:
            return repeat(connections, attempt, self.retries, FIRST_WAIT, LONGEST_WAIT)
        except RequestFailed as last:
            if connections.closed.is_set():
                raise
            failure = str(last)
        raise ServerError(
            f"{self.base_url} gave no usable answer in {self.retries + 1} tries, the last: "
            f"{self._printable(failure)}; needed: a server of {self.model!r} that answers {PATHS[self.api]}; see its "
            f"log and {self.base_url}/models; try a longer timeout than {self.timeout:g} s, or n_in_one_request=False"
        )

    def _post(self, connections: Connections, body: bytes) -> bytes:
        key = self._key()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        status, response_headers, data = connections.post(self._url, body, headers, self.timeout)
        if status == 200:
            return data
        text = f"status {status}: {response_headers.get('Location') or data.decode(errors='replace')}"
        if status == 429 or status >= 500:
            raise RequestFailed(text, parse_retry_after(response_headers.get("Retry-After", "")))
        sent = json.loads(body)
        refused = {(name, sent[name]) for name in EXTRAS & set(sent) if re.search(rf"\b{name}\b", text)}
        self._refused_extras |= refused
        raise self._refusal(status, text, refused)

    def _refusal(self, status: int, text: str, extras: set[tuple[str, Any]]) -> InputError:
        needed = NEEDED.get(status, "a request that it accepts; n_in_one_request=False if it refuses n")
        if extras:
            names = ", ".join(f"{name}={value}" for name, value in sorted(extras))
            needed = f"a sampling without {names}, or a server that supports it, such as vLLM"
        needed = needed.format(base=self.base_url, path=PATHS[self.api], variable=self.key_variable or "key_variable")
        kind = TooLong if status in (400, 413, 422) and TOO_LONG.search(text) else InputError
        return kind(f"{self.base_url} refused a request for {self.model!r}, {self._printable(text)}; needed: {needed}")

    def _printable(self, text: str) -> str:
        """A message of a server or library, without the key and control characters, and shortened."""
        shown = text.replace(self._key() or "\0", "(the key)")
        return "".join(c if c.isprintable() else " " for c in shown[:400])

    def _key(self) -> str:
        """The key, read each time and never stored. Raises InputError if it must not or cannot be sent."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        if not re.fullmatch("[!-~]*", key):
            raise InputError(f"{self.key_variable} has characters that a key cannot have; needed: visible ASCII alone")
        if key and self._url.scheme == "http" and not is_loopback(self._url.hostname or ""):
            raise InputError(
                f"{self.base_url} is not encrypted and {self.key_variable} holds a key; needed: https, a tunnel to "
                'localhost, or key_variable="" for a server that needs no key'
            )
        return key


def _extras(sampling: Sampling) -> dict[str, Any]:
    """Parameters that OpenAI's own interface lacks, if they are not neutral."""
    extras: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.repetition_penalty != 1:
        extras["repetition_penalty"] = sampling.repetition_penalty
    return extras if sampling.ends_at_eos else {**extras, "ignore_eos": True}


def _read_completions(data: bytes, api: str, sampling: Sampling) -> tuple[list[Completion], int, int]:
    """(the replies in an answer, at least one; tokens of the prompt and of the replies, 0 if they are not counted).

    Raises RequestFailed if the answer does not follow the interface.
    """
    try:
        answer = json.loads(data)
        choices = answer["choices"]
        texts = [choice["message"]["content"] if api == "chat" else choice["text"] for choice in choices]
        reasons = [(choice.get("finish_reason"), choice.get("stop_reason", "unknown")) for choice in choices]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TypeError("a choice without text (a reasoning model may have run out of tokens)")
        likely = [_read_likely(choice.get("logprobs")) for choice in choices]
        usage = answer.get("usage") or {}
        read, written = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        tokens = written if len(texts) == 1 else 0
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        text = data.decode(errors="replace")
        raise RequestFailed(f"an answer that makes no sense ({type(error).__name__}: {error}): {text}") from None
    replies = [
        _completion(text, *reason, sampling, tokens, places)
        for text, reason, places in zip(texts, reasons, likely, strict=True)
    ]
    return replies, read, written


def _read_likely(logprobs: Any) -> tuple[LikelyTokens, ...]:
    """The likeliest tokens by place, of either interface; none of a server that does not give them."""
    if not isinstance(logprobs, dict):
        return ()
    if "content" in logprobs:
        places = [(place["token"], {top["token"]: float(top["logprob"]) for top in place["top_logprobs"]})
                  for place in logprobs["content"] or ()]  # fmt: skip
    else:
        places = list(zip(logprobs.get("tokens") or (), logprobs.get("top_logprobs") or (), strict=False))
    return tuple(LikelyTokens(token, {text: float(p) for text, p in top.items()}) for token, top in places)


def _completion(
    text: str, finish_reason: Any, stop_reason: Any, sampling: Sampling, tokens: int, likely: tuple[LikelyTokens, ...]
) -> Completion:
    """The reply up to its first stop string. Servers report "stop" for an eos too; vLLM's `stop_reason` differs."""
    end = sampling.find_stop(text)
    reason: FinishReason = "length" if finish_reason == "length" else "eos"
    if end is not None or (sampling.stop and finish_reason == "stop" and isinstance(stop_reason, str)):
        reason = "stop"
    # JSON can contain half a surrogate pair, which no file or terminal accepts
    return Completion(text[:end].encode(errors="replace").decode(), reason, tokens=tokens, likely=likely)

"""Replies from Anthropic's Messages interface, or from a server that speaks it.

The interface has neither `n` nor a seed: each reply is a request of its own, and no reply can be repeated. A
conversation there begins with the user and alternates; what does not is refused by the server.
Source of the fields: https://docs.anthropic.com/en/api/messages.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

from lmgym.config import Range
from lmgym.errors import MOST_SECONDS, MOST_STEPS, InputError, ServerError, TooLong, one_line
from lmgym.generation.http_connections import (
    Connections,
    RequestFailed,
    is_loopback,
    parse_address,
    parse_retry_after,
    repeat,
)
from lmgym.generation.openai_server import FIRST_WAIT, LONGEST_WAIT, TOO_LONG
from lmgym.generation.protocol import Completion, FinishReason, Progress, Sampling
from lmgym.generation.usage import Usage
from lmgym.text import Conversation, messages

BASE_URL, PATH, VERSION = "https://api.anthropic.com", "/v1/messages", "2023-06-01"
REASONS: dict[str, FinishReason] = {"max_tokens": "length", "stop_sequence": "stop"}
MOST_TEMPERATURE = 1.0


@final
class AnthropicGenerator:
    """Samples replies from `model`.

    A request may take `timeout` seconds and is repeated up to `retries` times after a broken connection, a timeout,
    429, 5xx (529: overloaded) or an invalid answer; at most `concurrency` run at once. The key comes from the
    environment variable `key_variable`, for each request. `usage` counts requests and tokens.

    Raises InputError for an invalid address, and for one to which the key would travel unencrypted.
    """

    def __init__(
        self, model: str, base_url: str = BASE_URL, timeout: float = 120.0, retries: int = 5,
        key_variable: str = "ANTHROPIC_API_KEY", concurrency: int = 4,
    ) -> None:  # fmt: skip
        Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", timeout)
        Range(0, MOST_STEPS).check("retries", retries)
        Range(1, MOST_STEPS).check("concurrency", concurrency)
        self.model, self.base_url, self.timeout, self.retries = model, base_url.rstrip("/"), timeout, retries
        self.key_variable, self.concurrency = key_variable, concurrency
        self.usage = Usage()
        self._url = parse_address(self.base_url, PATH)
        self._key()

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation. The sampling's seed is not sent.

        Raises ServerError after the last try, InputError for a request that the server refuses or that it cannot
        express, and TooLong if it refuses the length.
        """
        _refuse_unsupported(sampling)
        self._key()
        bodies = [json.dumps(self._content(c, sampling)).encode() for c in conversations for _ in range(n)]
        connections, replies = Connections(), []
        pool = ThreadPoolExecutor(min(self.concurrency, max(1, len(bodies))), "anthropic")
        try:
            for reply in pool.map(lambda body: self._request(connections, body, sampling), bodies):
                replies.append(reply)
                if progress:
                    progress(len(replies), len(bodies))
        finally:
            connections.close()  # ends what still runs after an error
            pool.shutdown(cancel_futures=True)
        return [replies[i * n : (i + 1) * n] for i in range(len(conversations))]

    def _content(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        rows = messages(conversation)
        system = "\n\n".join(row["content"] for row in rows if row["role"] == "system")
        return {
            "model": self.model,
            "max_tokens": sampling.max_new_tokens,
            "messages": [row for row in rows if row["role"] != "system"],
            "temperature": sampling.temperature,
            **({"system": system} if system else {}),
            **({"top_p": sampling.top_p} if sampling.top_p < 1 else {}),
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            **({"stop_sequences": list(sampling.stop)} if sampling.stop else {}),
        }

    def _request(self, connections: Connections, body: bytes, sampling: Sampling) -> Completion:
        def attempt() -> Completion:
            completion, read = _read(self._post(connections, body), sampling)
            self.usage.add(read, completion.tokens)
            return completion

        try:
            return repeat(connections, attempt, self.retries, FIRST_WAIT, LONGEST_WAIT)
        except RequestFailed as last:
            raise ServerError(
                f"{self.base_url} gave no usable answer in {self.retries + 1} tries, the last: "
                f"{self._printable(str(last))}; needed: a server of {self.model!r} that answers {PATH}"
            ) from None

    def _post(self, connections: Connections, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "anthropic-version": VERSION}
        if key := self._key():
            headers["x-api-key"] = key
        status, response_headers, data = connections.post(self._url, body, headers, self.timeout)
        if status == 200:
            return data
        text = f"status {status}: {data.decode(errors='replace')}"
        if status == 429 or status >= 500:
            raise RequestFailed(text, parse_retry_after(response_headers.get("Retry-After", "")))
        needed = "a request that it accepts"
        if status in (401, 403):
            needed = f"a key that it accepts, in the environment variable {self.key_variable}"
        elif status == 404:
            needed = "a model that it serves"
        kind = TooLong if status in (400, 413) and TOO_LONG.search(text) else InputError
        raise kind(f"{self.base_url} refused a request for {self.model!r}, {self._printable(text)}; needed: {needed}")

    def _printable(self, text: str) -> str:
        """A message of the server, without the key, on one line."""
        return one_line(text.replace(self._key() or "\0", "(the key)"), 400)

    def _key(self) -> str:
        """The key, never stored. Raises InputError if it must not be sent."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise InputError(f"{self.key_variable} has characters that a key cannot have; needed: visible ASCII alone")
        if key and self._url.scheme == "http" and not is_loopback(self._url.hostname or ""):
            raise InputError(
                f"{self.base_url} is not encrypted and {self.key_variable} holds a key; needed: https, or a tunnel to "
                "localhost"
            )
        return key


def _refuse_unsupported(sampling: Sampling) -> None:
    """Raises InputError for settings that the interface lacks."""
    faults = {
        f"temperature={sampling.temperature:g}": sampling.temperature > MOST_TEMPERATURE,
        f"repetition_penalty={sampling.repetition_penalty:g}": sampling.repetition_penalty != 1,
        "ends_at_eos=False": not sampling.ends_at_eos,
    }
    if found := [name for name, faulty in faults.items() if faulty]:
        raise InputError(f"Anthropic's interface has no {', '.join(found)}; needed: a temperature of 0 to 1 alone")


def _read(data: bytes, sampling: Sampling) -> tuple[Completion, int]:
    """(the reply, tokens of the prompt). Raises RequestFailed if the answer does not follow the interface."""
    try:
        answer = json.loads(data)
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        usage = answer.get("usage") or {}
        read, written = (int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens"))
        reason = REASONS.get(answer.get("stop_reason"), "eos")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RequestFailed(f"an answer that makes no sense ({type(error).__name__}: {error})") from None
    end = sampling.find_stop(text)
    text = text[:end].encode(errors="replace").decode()  # JSON can contain half a surrogate pair
    return Completion(text, "stop" if end is not None else reason, tokens=written), read

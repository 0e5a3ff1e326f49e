"""Requests to model servers through their official clients: addresses, keys, retries, Ctrl-C, and what was used.

What a server limits is in request_limits.py; here are its failures.

The clients send and the waits between tries are tenacity's. Ours is what they lack: a time limit of the whole answer
(theirs begins anew with each byte), another try after an answer that makes no sense, and headers and credentials that
nobody gave here (theirs come from OPENAI_ORG_ID, ANTHROPIC_AUTH_TOKEN, OPENAI_CUSTOM_HEADERS, profiles on disk).
"""

import asyncio
import contextlib
import json
import os
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address
from socket import create_connection
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from lmgym.config import Range
from lmgym.errors import MOST_SECONDS, MOST_STEPS, InputError, ServerError, TooLong, one_line, shown
from lmgym.generation.request_limits import RequestLimits, Slots, TooMany, spent_quota, too_many
from lmgym.text import Conversation, messages

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0  # seconds before the second try, doubled for each further try up to the longest
HEADERS = {
    "host",
    "accept",
    "accept-encoding",
    "connection",
    "content-type",
    "content-length",
    "user-agent",
    "anthropic-version",
    "x-stainless-raw-response",
}
"""those of the clients that are sent; the last one says what their methods return"""
# the words of OpenAI, vLLM, SGLang, llama.cpp, LM Studio and TGI
TOO_LONG = re.compile(
    r"context.?(length|size|window)|reduce the length|too long|max_new_tokens. must be", re.IGNORECASE
)
NEEDED = dict.fromkeys((301, 302, 303, 307, 308), "the address that it redirects to as base_url") | {
    401: "a key that it accepts, in the environment variable {variable}",
    403: "a key with this permission, in the environment variable {variable}",
}
T = TypeVar("T")
Counted = tuple[list[Any], int, int]
"""(the replies of an answer, or the rows of a list; tokens of the prompt and of the replies, 0 if they are unknown)"""
Send = Callable[[], Awaitable[Any]]
"""sends a request through a client and returns its raw response"""
Needed = Callable[[int, str], str]
"""what to do about a refusal, by its status and text"""
Read = Callable[[Any], Counted]
"""reads an answer's JSON; may raise an error if the answer does not follow the interface"""
Most = tuple[int, int]
"""the most tokens that a request reads and writes"""
NO_TOKENS: Most = (0, 0)


class Ask(Protocol):
    """Sends a request, again if it fails, and returns what `read` reads."""

    def __call__(self, send: Send, read: Read, needed: Needed, most: Most = NO_TOKENS) -> Awaitable[list[Any]]:
        """`most`: what the request may cost, where there is a limit."""
        ...


class RequestFailed(Exception):
    """A request that failed and may be repeated."""


class Refusal(InputError):
    """A request that the server refuses, in its own words; `error` is the object of that name in its answer."""

    def __init__(self, message: str, text: str, error: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.text, self.error = text, error


@dataclass
class Usage:
    """Sums over the requests of a generator, whose threads add to it."""

    requests: int = 0
    """answered ones; a repeated request counts once"""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def __str__(self) -> str:
        """The sums, in words."""
        tokens = f"{self.prompt_tokens:,} tokens read, {self.completion_tokens:,} written"
        return f"{self.requests:,} request{'s' * (self.requests != 1)}, {tokens}"

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count an answered request."""
        with self.lock:
            self.requests += 1
            self.prompt_tokens += prompt_tokens
            self.completion_tokens += completion_tokens

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """In the currency of the prices, which are per million tokens."""
        return (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6


@dataclass(frozen=True)
class ModelServer:
    """A model at an address, and how it is asked.

    Raises InputError for an invalid address, and for one to which the key would travel unencrypted.
    """

    base_url: str
    path: str
    model: str
    timeout: float
    retries: int
    key_variable: str
    limits: RequestLimits
    key_header: tuple[str, str]
    """its name, and its value with {} for the key"""
    lost_hint: str = ""
    """what else may help if no try has a usable answer"""
    usage: Usage = field(default_factory=Usage)
    headers: Mapping[str, str] = field(default_factory=dict)
    """others to send"""

    def __post_init__(self) -> None:
        Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", self.timeout)
        Range(0, MOST_STEPS).check("retries", self.retries)
        Range(1, MOST_STEPS).check("concurrency", self.limits.most)
        self.key()

    def key(self) -> str:
        """The key, read each time and never stored. Raises InputError if it must not or cannot be sent."""
        url = parse_address(self.base_url)
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        if not re.fullmatch("[!-~]*", key):
            raise InputError(f"{self.key_variable} has characters that a key cannot have; needed: visible ASCII alone")
        if key and url.scheme == "http" and not is_loopback(url.hostname or ""):
            raise InputError(
                f"{self.base_url} is not encrypted and {self.key_variable} holds a key; needed: https, a tunnel to "
                f'localhost, or for a server that needs no key no {self.key_variable} (key_variable="")'
            )
        return key

    async def session(
        self,
        sdk: Any,
        client: Any,
        work: Callable[[Any, Ask], Coroutine[Any, Any, T]],
        slots: Slots | None = None,
    ) -> T:
        """The result of `work(client, ask)`, where `client` is a class of the package `sdk`; a coroutine for `run`.

        `ask(send, read, needed, most)` returns the replies to a request, sent again if it fails. `slots` hold the
        requests that run, by default under this server's limits. An error is raised once those under way have ended.
        """
        own = slots or Slots(self.limits)

        async def ask(send: Send, read: Read, needed: Needed, most: Most = NO_TOKENS) -> list[Any]:
            spending = self.limits.spending
            most_cost = spending.cost(*most) if spending else 0.0
            while True:
                sent = await own.take(most_cost)
                try:
                    replies, *tokens = await self._ask(sdk, send, read, needed, most_cost, own)
                except TooMany as refusal:
                    await own.give(most_cost, 0.0)
                    self.limits.refused(sent, refusal, self.base_url)
                    continue
                except Exception as error:
                    own.ended |= not isinstance(error, Refusal)  # which the caller may answer with another request
                    await own.give(most_cost, 0.0)
                    raise
                self.limits.answered()
                await own.give(most_cost, spending.cost(*tokens) if spending and any(tokens) else most_cost)
                return replies

        async with client(
            api_key="-", base_url=self.base_url, timeout=None, max_retries=0, http_client=self._http_client(sdk)
        ) as opened:
            try:
                return await work(opened, ask)
            except Exception:
                await own.end()
                raise

    def _http_client(self, sdk: Any) -> Any:
        """No proxy, netrc or redirect: each would take the key, or the prompts, where nobody sent them."""

        async def set_headers(request: Any) -> None:
            for name in set(request.headers) - HEADERS:
                del request.headers[name]
            if key := self.key():
                request.headers[self.key_header[0]] = self.key_header[1].format(key)
            request.headers.update(self.headers)

        return sdk.DefaultAsyncHttpxClient(
            trust_env=False,
            mounts={"http://": None, "https://": None},  # some versions read only one of the two settings
            follow_redirects=False,
            verify=_certificates(),
            event_hooks={"request": [set_headers]},
        )

    async def _ask(self, sdk: Any, send: Send, read: Read, needed: Needed, most_cost: float, slots: Slots) -> Counted:
        stop, wait = stop_after_attempt(self.retries + 1), wait_exponential(FIRST_WAIT, LONGEST_WAIT)
        again = retry_if_exception(lambda error: isinstance(error, RequestFailed) and not slots.ended)
        retrying = AsyncRetrying(stop=stop, wait=wait, retry=again, reraise=True)
        try:
            return await retrying(self._attempt, sdk, send, read, needed, most_cost)
        except RequestFailed as last:
            raise ServerError(
                f"{self.base_url} gave no usable answer in {self.retries + 1} tries, the last: {last}; needed: a "
                f"server of {self.model!r} that answers {self.path}; see its log; try a longer timeout than "
                f"{self.timeout:g} s{self.lost_hint}"
            ) from None

    async def _attempt(self, sdk: Any, send: Send, read: Read, needed: Needed, most_cost: float) -> Counted:
        try:
            async with asyncio.timeout(self.timeout):
                response = (await send()).http_response
        except TimeoutError:
            self._lose(most_cost)
            raise RequestFailed(f"no answer within timeout={self.timeout:g} s") from None
        except sdk.APIConnectionError as error:
            if not isinstance(_first_cause(error), ConnectionRefusedError):
                self._lose(most_cost)
            raise RequestFailed(self.printable(_root(error))) from None
        except sdk.APIStatusError as error:
            raise self._status_error(error.status_code, error.response, needed) from None
        try:
            replies, prompt_tokens, tokens = read(_parsed(await response.aread()))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            self._lose(most_cost)
            text = f"an answer that makes no sense ({type(error).__name__}: {error}): {response.text}"
            raise RequestFailed(self.printable(text)) from None
        self.usage.add(prompt_tokens, tokens)
        return replies, prompt_tokens, tokens

    def read_answer(self, answer: Any, read: Read) -> Any | None:
        """The first reply of an answer that came by another way, counted as if it were asked here; None without one."""
        try:
            replies, prompt_tokens, tokens = read(answer)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            return None
        self.usage.add(prompt_tokens, tokens)
        if self.limits.spending:
            self.limits.spending.spent += self.limits.spending.cost(prompt_tokens, tokens)
        return replies[0]

    def _lose(self, cost: float) -> None:
        """Counts a request that the server may have answered, and charged, without use."""
        if self.limits.spending:
            self.limits.spending.lose(cost)

    def _status_error(self, status: int, response: Any, needed: Needed) -> Exception:
        """The error of an answer that is none: to try again, to wait, or to give up."""
        body = response.text
        text = f"status {status}: {response.headers.get('Location') or body}"
        if wait := too_many(status, response.headers, body, self.printable(text)):
            return wait
        if spent_quota(status, body):
            words = self.printable(text)
            return ServerError(f"{self.base_url} has no quota left, {words}; needed: credit, or another account's key")
        if status == 429 or status >= 500:
            return RequestFailed(self.printable(text))
        return self.refusal(status, text, needed(status, text), body)

    def refusal(self, status: int, text: str, needed: str, body: str = "") -> InputError:
        """The error of a request that the server refuses."""
        needed = needed.format(path=self.path, base=self.base_url, variable=self.key_variable or "key_variable")
        kind = TooLong if status in (400, 413, 422) and TOO_LONG.search(text) else Refusal
        if kind is TooLong:
            needed = "shorter texts, fewer new tokens, or a server with a longer context (vLLM: --max-model-len)"
        message = f"{self.base_url} refused a request for {self.model!r}, {self.printable(text)}; needed: {needed}"
        return TooLong(message) if kind is TooLong else Refusal(message, text, _error_of(body))

    def printable(self, text: str) -> str:
        """A message of a server or library on one line, without the key, and shortened."""
        return one_line(text.replace(self.key() or "\0", "(the key)"), 400)


def _parsed(content: bytes) -> Any:
    """JSON, or of several lines of JSON a list. Raises ValueError for anything else."""
    try:
        return json.loads(content)
    except ValueError:
        lines = content.splitlines()
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines if line.strip()]


def _error_of(body: str) -> Mapping[str, Any]:
    """The `error` of an answer; empty if it has none."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        error = json.loads(body).get("error")
        return error if isinstance(error, dict) else {}
    return {}


def sent_messages(conversation: Conversation) -> list[dict[str, str]]:
    """The messages of a conversation, as the clients can send them."""
    return [{**row, "content": encodable(row["content"])} for row in messages(conversation)]


def encodable(text: str) -> str:
    """Text with "?" for half a surrogate pair, which JSON can contain and no client, file or terminal accepts."""
    return text.encode(errors="replace").decode()


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, in a thread of its own: the caller may have an event loop, as Jupyter does.

    What ends the wait for it, such as Ctrl-C, ends all requests at once.
    """
    loop = asyncio.new_event_loop()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop().run_forever()

    try:
        threading.Thread(target=serve, name="model-server", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)  # the runner then cancels what still runs, which closes its connections


@cache
def _certificates() -> ssl.SSLContext:
    """Those of this machine; made once, since it takes 40 ms."""
    return ssl.create_default_context()


def _root(error: BaseException) -> str:
    """The first cause of an error, such as ConnectionRefusedError of a client's "Connection error."."""
    first = _first_cause(error)
    return f"{type(first).__name__}: {first}"


def _first_cause(error: BaseException) -> BaseException:
    while cause := error.__cause__ or error.__context__:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    return error


def parse_address(base_url: str) -> SplitResult:
    """The parts of an address. Raises InputError, without repeating the address, which may contain a secret."""
    with contextlib.suppress(ValueError):
        url = urlsplit(base_url)
        host = (url.hostname or "").encode("idna")
        is_http = url.scheme in ("http", "https") and host and url.port != 0
        if is_http and "@" not in url.netloc and re.fullmatch("[!-~]+", base_url) and not re.search("[?#]", base_url):
            return url
    raise InputError(
        "base_url is no plain address; needed: such as http://localhost:8000/v1, without a name, password or query "
        "(a key goes into the environment variable that key_variable names)"
    )


def refuse_unreachable(base_url: str, model: str = "", seconds: float = 10.0) -> None:
    """Raises InputError if nothing listens at an address, before anything is asked of it."""
    url = urlsplit(base_url)
    try:
        create_connection((url.hostname or "", url.port or (443 if url.scheme == "https" else 80)), seconds).close()
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise InputError(
            f"{one_line(base_url, 120)} cannot be reached ({one_line(why, 60)}); needed: a server of "
            f"{shown(model, 40) if model else 'models'} that runs there, or another address"
        ) from error


def is_loopback(host: str) -> bool:
    """True if the host is this machine."""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"

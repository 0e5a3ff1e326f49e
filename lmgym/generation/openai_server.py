"""Replies from any server with OpenAI's HTTP interface: vLLM, llama.cpp, Ollama, OpenAI itself.

The seed of request j for a conversation is a function of the conversation's seed and j: no two replies have the same
seed if a server ignores `n`, and a conversation gets the same replies alone as among others.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, final
from urllib.parse import urlsplit

from lmgym.config import Range
from lmgym.console import say
from lmgym.errors import InputError, ServerError, shown
from lmgym.generation.batches import OpenAIBatches, names_of, replies_by_batch
from lmgym.generation.model_server import (
    NEEDED,
    Ask,
    Counted,
    ModelServer,
    Refusal,
    Send,
    Usage,
    encodable,
    refuse_unreachable,
    run,
    sent_messages,
)
from lmgym.generation.openai_answers import read_replies, withheld
from lmgym.generation.openai_parameters import TakenParameters
from lmgym.generation.protocol import Completion, Each, Progress, Sampling, seeds_of
from lmgym.generation.request_limits import RequestLimits, Slots, most_tokens_of
from lmgym.text import Conversation, to_transcript

SEED_STEP, SEEDS = 1_000_003, 1 << 31  # an odd step visits every seed before it repeats one; every server takes 31 bits
MOST_LOGPROBS = 20  # OpenAI's limit
FEW_CHARACTERS = 40  # short replies may well be equal
CONCURRENCY = 8
KEY = "OPENAI_API_KEY"
LIST_SECONDS = 15.0
Request = Callable[[int, int], Awaitable[list[Completion]]]
"""1 to so many replies from one request with a seed"""
Work = Callable[[list[int], Any, Ask], Coroutine[Any, Any, list[list[Completion]]]]
"""replies to the conversations of these numbers, through a client"""
PATHS = {"chat": "/chat/completions", "completions": "/completions"}
NEEDED_HERE = NEEDED | {
    404: "a base_url that ends before {path}, often in /v1, and a model that it serves (GET {base}/models lists them)"
}


@final
class ServedGenerator:
    """Samples replies from `model` on the server at `base_url` ("http://localhost:8000/v1").

    Several addresses share the conversations: each conversation goes to the same one, whatever else is asked for.

    `api` is "chat", where the server applies its chat template, or "completions", which receives the flat transcript.
    A server that ignores `n` is detected and gets one request a reply; use `n_in_one_request=False` for one that
    refuses `n`. With `top_logprobs` replies have so many of the likeliest tokens at each place, if the server gives
    them. `vllm`: the server is vLLM's, so it is asked for token ids, and is sent neutral settings too, without which it
    would take those of its model's folder. `continues`, of vLLM alone: conversations end in a turn of the bot, and a
    reply goes on with it.

    A request may take `timeout` seconds and is repeated up to `retries` times after a broken connection, a timeout,
    5xx or an invalid answer. `limits` hold over all addresses. `reasoning_effort` is sent as it is. What the server
    refuses is sent otherwise where that means the same (openai_parameters.py).

    The key comes from the environment variable `key_variable` ("": no key is sent), and goes with the name of an
    `organization` of OpenAI's if there is one. Raises InputError for an invalid address, and for one to which the key
    would travel unencrypted.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        api: Literal["chat", "completions"] = "chat",
        n_in_one_request: bool = True,
        timeout: float = 60.0,
        retries: int = 3,
        key_variable: str = KEY,
        limits: RequestLimits | None = None,
        top_logprobs: int = 0,
        vllm: bool = False,
        continues: bool = False,
        reasoning_effort: str = "",
        organization: str = "",
    ) -> None:
        if api not in PATHS:
            raise InputError(f"api={shown(api)}; needed: {' or '.join(PATHS)}")
        Range(0, MOST_LOGPROBS, hint="0: none").check("top_logprobs", top_logprobs)
        if not re.fullmatch("[!-~]*", organization):
            raise InputError(f"organization {shown(organization)}; needed: visible ASCII alone, such as org-123")
        urls = [url.rstrip("/") for url in ([base_url] if isinstance(base_url, str) else base_url)]
        self.base_url, self.model, self.api, self.n_in_one_request = ",".join(urls), model, api, n_in_one_request
        self.top_logprobs, self.vllm, self.continues, self.reasoning_effort = (
            top_logprobs,
            vllm,
            continues,
            reasoning_effort,
        )
        self.limits, self.usage = limits or RequestLimits(CONCURRENCY), Usage()
        self._servers = [
            ModelServer(
                url,
                PATHS[api],
                model,
                timeout,
                retries,
                key_variable,
                self.limits,
                ("Authorization", "Bearer {}"),
                f", or n_in_one_request=False; {url}/models lists its models",
                self.usage,
                {"OpenAI-Organization": organization} if organization else {},
            )
            for url in urls
        ]
        self._asked_logprobs = (
            {"logprobs": True, "top_logprobs": top_logprobs} if api == "chat" else {"logprobs": top_logprobs}
        )
        self._refused_extras: set[tuple[str, Any]] = set()
        self._warned: set[str] = set()
        self._taken = TakenParameters(self._warn)

    @property
    def concurrency(self) -> int:
        """Most requests at a time."""
        return self.limits.most

    def __repr__(self) -> str:
        return f"ServedGenerator({self.base_url!r}, {self.model!r}, api={self.api!r})"

    def reply(
        self,
        conversations: Sequence[Conversation],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        each: Each | None = None,
    ) -> list[list[Completion]]:
        """n replies to each conversation; `progress` is called with (replies received, replies in all).

        `each` is called with a conversation's number and replies as soon as they are there, in another thread.

        `tokens` is 0 if the server counted several replies together and gives no tokens of each. Greedy replies are
        equal and requested once; of sampled ones that are all equal, the first time is a warning. Raises ServerError
        after the last try, InputError for a request that the server refuses, and TooLong if it refuses the length.
        """
        if n < 1:
            raise InputError(f"n={n} replies; needed: 1 or more")
        for server in self._servers:
            server.key()
        extras = self._extras(sampling)
        if refused := self._refused_extras & set(extras.items()):
            raise self._servers[0].refusal(400, "as before", _without(refused))
        requested = n if sampling.temperature else 1  # vLLM refuses n greedy replies, which would be equal
        copies, received = n // requested, 0
        seeds = seeds_of(sampling, len(conversations))

        def count(replies: int) -> None:
            nonlocal received
            received += replies * copies
            if progress:
                progress(received, len(conversations) * n)

        contents = [self._content(conversation, sampling) for conversation in conversations]
        read = partial(read_replies, self.api, sampling, self._warn)

        async def work(numbers: list[int], client: Any, ask: Ask) -> list[list[Completion]]:
            api = client.chat.completions if self.api == "chat" else client.completions

            async def request(content: dict[str, Any], size: int, seed: int) -> list[Completion]:
                asked = content | {"n": size, "seed": seed % SEEDS}
                most = (most_tokens_of(content), size * sampling.max_new_tokens)
                send = partial(api.with_raw_response.create, stream=False, extra_body=extras)
                replies = await self._sent(send, asked, lambda one: ask(one, read, partial(self._needed, extras), most))
                count(len(replies[:size]))
                return replies[:size]

            async def answer(i: int) -> list[Completion]:
                replies = await self._replies(partial(request, contents[i]), seeds[i], requested)
                if each:
                    each(i, replies * copies)
                return replies

            return await asyncio.gather(*map(answer, numbers))

        found = run(self._share(contents, work))
        if requested > 1 and sampling.top_k != 1:
            self._warn_of_copies(found, sampling)
        return [replies * copies for replies in found]

    def reply_by_batch(
        self, conversations: Sequence[Conversation], sampling: Sampling, record: Path
    ) -> list[Completion | None]:
        """One reply to each conversation by the batch interface, which may take a day; None where it gave none.

        `record` keeps the batch's id, so that a process that is started again waits for it.
        """
        import openai

        contents = [self._taken.fit(self._content(c, sampling)) for c in conversations]
        names, server = names_of(contents), self._servers[0]

        async def work(client: Any, ask: Ask) -> dict[str, Any]:
            api = OpenAIBatches(partial(self._needed, {}))
            return await replies_by_batch(
                api, client, ask, dict(zip(names, contents, strict=True)), record, self.base_url
            )

        answers = run(server.session(openai, openai.AsyncOpenAI, work))
        return [
            server.read_answer(answers.get(name), partial(read_replies, self.api, sampling, self._warn))
            for name in names
        ]

    async def _sent(self, send: Any, asked: dict[str, Any], ask: Callable[[Send], Awaitable[Any]]) -> list[Completion]:
        """The replies to a request, sent as the server takes it."""
        while True:
            fitted = self._taken.fit(asked)
            try:
                return await ask(partial(send, **fitted))
            except Refusal as refusal:
                if why := withheld(refusal):
                    return [Completion("", "eos", withheld=why)] * asked["n"]
                if fitted == self._taken.fit(asked) and not self._taken.learn(refusal, asked):
                    raise

    async def _share(self, contents: Sequence[dict[str, Any]], work: Work) -> list[list[Completion]]:
        """The replies to each content by `work`, for each server with the numbers of its share."""
        import openai

        shares: dict[int, list[int]] = {}
        for number, content in enumerate(contents):
            text = json.dumps(content.get("messages", content.get("prompt")))
            shares.setdefault(zlib.crc32(text.encode()) % len(self._servers), []).append(number)
        slots, client = Slots(self.limits), openai.AsyncOpenAI
        answered = await asyncio.gather(
            *(self._servers[i].session(openai, client, partial(work, own), slots) for i, own in shares.items())
        )
        found = {
            i: replies
            for own, some in zip(shares.values(), answered, strict=True)
            for i, replies in zip(own, some, strict=True)
        }
        return [found[i] for i in range(len(contents))]

    def _warn(self, kind: str, text: str) -> None:
        """Says a fault of the server, each kind once."""
        if kind not in self._warned:
            self._warned.add(kind)
            say(f"warning: {self.base_url} {text}", error=True)

    def _warn_of_copies(self, replies: Sequence[Sequence[Completion]], sampling: Sampling) -> None:
        if any(len({one.text for one in some}) == 1 and len(some[0].text) > FEW_CHARACTERS for some in replies):
            self._warn(
                "copies",
                f"gave {len(replies[0])} equal replies at temperature {sampling.temperature:g}: if that happens again, "
                "it ignores temperature and seeds, and the best of N chooses among copies; needed: a server that "
                "samples, such as vLLM",
            )

    async def _replies(self, request: Request, seed: int, n: int) -> list[Completion]:
        """n replies from as few requests as the server permits, in the order of the requests."""
        replies: list[Completion] = []
        requests, at_once = 0, n if self.n_in_one_request else 1
        while missing := n - len(replies):
            sizes = [min(at_once, missing - start) for start in range(0, missing, at_once)]
            answers = await asyncio.gather(
                *(request(size, seed + (requests + i) * SEED_STEP) for i, size in enumerate(sizes))
            )
            at_once = len(answers[0])  # an answer has at least one reply, so this ends
            if not requests and at_once == 1 < n:
                self.n_in_one_request = False
            requests += len(sizes)
            replies += (reply for answer in answers for reply in answer)
        return replies

    def _content(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        chat = self.api == "chat"
        return {
            "model": self.model,
            **(
                {"messages": sent_messages(conversation)}
                if chat
                else {"prompt": encodable(to_transcript(conversation))}
            ),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **(self._asked_logprobs if self.top_logprobs else {}),
            **({"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}),
        }

    def _extras(self, sampling: Sampling) -> dict[str, Any]:
        """Parameters that OpenAI's own interface lacks: those that are not neutral, and all of them for vLLM."""
        extras: dict[str, Any] = {"return_token_ids": True} if self.vllm else {}
        if sampling.top_k or self.vllm:
            extras["top_k"] = sampling.top_k
        if sampling.repetition_penalty != 1 or self.vllm:
            extras["repetition_penalty"] = sampling.repetition_penalty
        if self.continues:
            extras |= {"add_generation_prompt": False, "continue_final_message": True}
        return extras if sampling.ends_at_eos else {**extras, "ignore_eos": True}

    def _needed(self, extras: dict[str, Any], status: int, text: str) -> str:
        """Advice on a refusal; parameters that it names are not sent again."""
        refused = {(name, value) for name, value in extras.items() if re.search(rf"\b{name}\b", text)}
        self._refused_extras |= refused
        if refused:
            return _without(refused)
        return NEEDED_HERE.get(status, "a request that it accepts; n_in_one_request=False if it refuses n")


def _without(extras: set[tuple[str, Any]]) -> str:
    names = ", ".join(f"{name}={value}" for name, value in sorted(extras))
    return f"a sampling without {names}, or a server that supports it, such as vLLM"


def list_models(base_url: str, key_variable: str) -> list[dict[str, Any]]:
    """The rows of a server's list of models, each with an `id`; none of a server that has no list.

    Raises InputError for an address where nothing answers, for a key that is refused, and for what is no list.
    """
    header, limits = ("Authorization", "Bearer {}"), RequestLimits(1, patience=LIST_SECONDS)
    server = ModelServer(base_url, "/models", "the list of its models", LIST_SECONDS, 0, key_variable, limits, header)
    refuse_unreachable(base_url)

    statuses: list[int] = []

    def needed(status: int, _: str) -> str:
        statuses.append(status)
        return NEEDED.get(status, "an address that ends before {path}, often in /v1")

    async def work(client: Any, ask: Ask) -> list[dict[str, Any]]:
        return await ask(client.models.with_raw_response.list, _read_models, needed)

    import openai

    try:
        return run(server.session(openai, openai.AsyncOpenAI, work))
    except InputError:
        if statuses[:1] in ([404], [405]) and urlsplit(base_url).path.strip("/"):
            return []
        raise
    except ServerError as error:
        raise InputError(str(error)) from None


def _read_models(answer: Any) -> Counted:
    rows = [row for row in answer["data"] if isinstance(row["id"], str)]
    if not rows:
        raise ValueError("it lists no model")
    return rows, 0, 0

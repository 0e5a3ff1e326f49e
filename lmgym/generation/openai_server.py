"""Replies from any server with OpenAI's HTTP interface: vLLM, llama.cpp, Ollama, OpenAI itself.

The seed of request j for a conversation is a function of the conversation's seed and j: no two replies have the same
seed if a server ignores `n`, and a conversation gets the same replies alone as among others.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, final

from lmgym.config import Range
from lmgym.errors import InputError, shown
from lmgym.generation.model_server import NEEDED, Ask, Counted, ModelServer, encodable, sent_messages
from lmgym.generation.protocol import Completion, FinishReason, LikelyTokens, Progress, Sampling, seeds_of
from lmgym.text import Conversation, to_transcript

SEED_STEP, SEEDS = 1_000_003, 1 << 31  # an odd step visits every seed before it repeats one; every server takes 31 bits
MOST_LOGPROBS = 20  # OpenAI's limit
Request = Callable[[int, int], Awaitable[list[Completion]]]
"""1 to so many replies from one request with a seed"""
PATHS = {"chat": "/chat/completions", "completions": "/completions"}
NEEDED_HERE = NEEDED | {
    404: "a base_url that ends before {path}, often in /v1, and a model that it serves (GET {base}/models lists them)"
}


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
        self,
        base_url: str,
        model: str,
        api: Literal["chat", "completions"] = "chat",
        n_in_one_request: bool = True,
        timeout: float = 60.0,
        retries: int = 3,
        key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 8,
        top_logprobs: int = 0,
    ) -> None:
        if api not in PATHS:
            raise InputError(f"api={shown(api)}; needed: {' or '.join(PATHS)}")
        Range(0, MOST_LOGPROBS, hint="0: none").check("top_logprobs", top_logprobs)
        self.base_url, self.model, self.api, self.n_in_one_request = base_url.rstrip("/"), model, api, n_in_one_request
        self.concurrency, self.top_logprobs = concurrency, top_logprobs
        self._server = ModelServer(
            self.base_url,
            PATHS[api],
            model,
            timeout,
            retries,
            key_variable,
            concurrency,
            ("Authorization", "Bearer {}"),
            f", or n_in_one_request=False; {self.base_url}/models lists its models",
        )
        self.usage = self._server.usage
        self._asked_logprobs = (
            {"logprobs": True, "top_logprobs": top_logprobs} if api == "chat" else {"logprobs": top_logprobs}
        )
        self._refused_extras: set[tuple[str, Any]] = set()

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
        self._server.key()
        extras = _extras(sampling)
        if refused := self._refused_extras & set(extras.items()):
            raise self._server.refusal(400, "as before", _without(refused))
        requested = n if sampling.temperature else 1  # vLLM refuses n greedy replies, which would be equal
        copies, received = n // requested, 0
        seeds = seeds_of(sampling, len(conversations))

        def count(replies: int) -> None:
            nonlocal received
            received += replies * copies
            if progress:
                progress(received, len(conversations) * n)

        async def work(client: Any, ask: Ask) -> list[list[Completion]]:
            api = client.chat.completions if self.api == "chat" else client.completions

            async def request(content: dict[str, Any], size: int, seed: int) -> list[Completion]:
                send = partial(
                    api.with_raw_response.create, **content, n=size, seed=seed % SEEDS, stream=False, extra_body=extras
                )
                replies = (await ask(send, partial(_read, self.api, sampling), partial(self._needed, extras)))[:size]
                count(len(replies))
                return replies

            contents = [self._content(conversation, sampling) for conversation in conversations]
            return await asyncio.gather(
                *(self._replies(partial(request, c), seed, requested) for c, seed in zip(contents, seeds, strict=True))
            )

        import openai

        return [replies * copies for replies in self._server.run(openai, openai.AsyncOpenAI, work)]

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
        }

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


def _extras(sampling: Sampling) -> dict[str, Any]:
    """Parameters that OpenAI's own interface lacks, if they are not neutral."""
    extras: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.repetition_penalty != 1:
        extras["repetition_penalty"] = sampling.repetition_penalty
    return extras if sampling.ends_at_eos else {**extras, "ignore_eos": True}


def _read(api: str, sampling: Sampling, answer: Any) -> Counted:
    """The replies in an answer, at least one. Raises an error if it does not follow the interface."""
    choices = answer["choices"]
    texts = [choice["message"]["content"] if api == "chat" else choice["text"] for choice in choices]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise TypeError("a choice without text (a reasoning model may have run out of tokens)")
    usage = answer.get("usage") or {}
    read, written = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
    tokens = written if len(texts) == 1 else 0
    replies = [_completion(text, choice, sampling, tokens) for text, choice in zip(texts, choices, strict=True)]
    return replies, read, written


def _read_likely(logprobs: Any) -> tuple[LikelyTokens, ...]:
    """The likeliest tokens by place, of either interface; none of a server that does not give them."""
    if not isinstance(logprobs, dict):
        return ()
    if "content" in logprobs:
        places = [
            (place["token"], {top["token"]: float(top["logprob"]) for top in place["top_logprobs"]})
            for place in logprobs["content"] or ()
        ]
    else:
        places = list(zip(logprobs.get("tokens") or (), logprobs.get("top_logprobs") or (), strict=False))
    return tuple(LikelyTokens(token, {text: float(p) for text, p in top.items()}) for token, top in places)


def _completion(text: str, choice: dict[str, Any], sampling: Sampling, tokens: int) -> Completion:
    """The reply up to its first stop string. Servers report "stop" for an eos too; vLLM's `stop_reason` differs."""
    end, finish, stop = sampling.find_stop(text), choice.get("finish_reason"), choice.get("stop_reason", "unknown")
    reason: FinishReason = "length" if finish == "length" else "eos"
    if end is not None or (sampling.stop and finish == "stop" and isinstance(stop, str)):
        reason = "stop"
    likely = _read_likely(choice.get("logprobs"))
    return Completion(encodable(text[:end]), reason, tokens=tokens, likely=likely)

"""Replies from Anthropic's Messages interface, or from a server that speaks it.

The interface has neither `n` nor a seed: each reply is a request of its own, and no reply can be repeated. A
conversation there begins with the user and alternates; what does not is refused by the server.
Source of the fields: https://docs.anthropic.com/en/api/messages.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from lmgym.errors import InputError, one_line
from lmgym.generation.batches import AnthropicBatches, names_of, replies_by_batch
from lmgym.generation.model_server import NEEDED, Ask, Counted, ModelServer, encodable, run, sent_messages
from lmgym.generation.protocol import Completion, Each, FinishReason, Progress, Sampling
from lmgym.generation.request_limits import RequestLimits, most_tokens_of
from lmgym.text import Conversation

BASE_URL, PATH = "https://api.anthropic.com", "/v1/messages"
VERSION = "2023-06-01"  # the next one, 2026-10-21, which the client names itself, refuses any temperature
REASONS: dict[str, FinishReason] = {"max_tokens": "length", "stop_sequence": "stop"}
MOST_TEMPERATURE, CONCURRENCY = 1.0, 4
REFUSAL = "refusal"


@final
class AnthropicGenerator:
    """Samples replies from `model`.

    A request may take `timeout` seconds and is repeated up to `retries` times after a broken connection, a timeout,
    5xx (529: overloaded) or an invalid answer, under `limits`. The key comes from the environment variable
    `key_variable`, for each request. `usage` counts requests and tokens. `reasoning_effort` is sent as it is.

    Raises InputError for an invalid address, and for one to which the key would travel unencrypted.
    """

    def __init__(
        self,
        model: str,
        base_url: str = BASE_URL,
        timeout: float = 120.0,
        retries: int = 5,
        key_variable: str = "ANTHROPIC_API_KEY",
        limits: RequestLimits | None = None,
        reasoning_effort: str = "",
    ) -> None:
        self.model, self.base_url, self.reasoning_effort = model, base_url.rstrip("/"), reasoning_effort
        self.limits = limits or RequestLimits(CONCURRENCY)
        self._server = ModelServer(
            self.base_url,
            PATH,
            model,
            timeout,
            retries,
            key_variable,
            self.limits,
            ("x-api-key", "{}"),
        )
        self.usage = self._server.usage

    @property
    def concurrency(self) -> int:
        """Most requests at a time."""
        return self.limits.most

    def reply(
        self,
        conversations: Sequence[Conversation],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        each: Each | None = None,
    ) -> list[list[Completion]]:
        """n replies to each conversation. The sampling's seed is not sent.

        `each` is called with a conversation's number and replies as soon as they are there, in another thread.

        Raises ServerError after the last try, InputError for a request that the server refuses or that it cannot
        express, and TooLong if it refuses the length.
        """
        _refuse_unsupported(sampling)
        self._server.key()
        received, wanted = 0, len(conversations) * n

        async def work(client: Any, ask: Ask) -> list[list[Completion]]:
            async def request(content: dict[str, Any]) -> Completion:
                nonlocal received
                send = partial(client.messages.with_raw_response.create, **content)
                most = (most_tokens_of(content), sampling.max_new_tokens)
                [reply] = await ask(send, partial(_read, sampling), _needed, most)
                received += 1
                if progress:
                    progress(received, wanted)
                return reply

            async def answer(number: int, conversation: Conversation) -> list[Completion]:
                content = self._content(conversation, sampling)
                replies = await asyncio.gather(*(request(content) for _ in range(n)))
                if each:
                    each(number, replies)
                return replies

            return await asyncio.gather(*(answer(i, conversation) for i, conversation in enumerate(conversations)))

        import anthropic

        return run(self._server.session(anthropic, anthropic.AsyncAnthropic, work))

    def reply_by_batch(
        self, conversations: Sequence[Conversation], sampling: Sampling, record: Path
    ) -> list[Completion | None]:
        """One reply to each conversation by the batch interface, which may take a day; None where it gave none.

        `record` keeps the batch's id, so that a process that is started again waits for it.
        """
        import anthropic

        _refuse_unsupported(sampling)
        contents = [self._content(conversation, sampling) for conversation in conversations]
        names = names_of(contents)

        async def work(client: Any, ask: Ask) -> dict[str, Any]:
            given = dict(zip(names, contents, strict=True))
            return await replies_by_batch(AnthropicBatches(_needed), client, ask, given, record, self.base_url)

        answers = run(self._server.session(anthropic, anthropic.AsyncAnthropic, work))
        return [self._server.read_answer(answers.get(name), partial(_read, sampling)) for name in names]

    def _content(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        rows = sent_messages(conversation)
        system = "\n\n".join(row["content"] for row in rows if row["role"] == "system")
        return {
            "model": self.model,
            "max_tokens": sampling.max_new_tokens,
            "messages": [row for row in rows if row["role"] != "system"],
            **({"system": system} if system else {}),
            **({"stop_sequences": list(sampling.stop)} if sampling.stop else {}),
            "extra_headers": {"anthropic-version": VERSION},
            "extra_body": {  # the client has no parameters for them
                "temperature": sampling.temperature,
                **({"top_p": sampling.top_p} if sampling.top_p < 1 else {}),
                **({"top_k": sampling.top_k} if sampling.top_k else {}),
                **({"output_config": {"effort": self.reasoning_effort}} if self.reasoning_effort else {}),
            },
        }


def _needed(status: int, _: str) -> str:
    return (NEEDED | {404: "a model that it serves"}).get(status, "a request that it accepts")


def _refuse_unsupported(sampling: Sampling) -> None:
    """Raises InputError for settings that the interface lacks."""
    faults = {
        f"temperature={sampling.temperature:g}": sampling.temperature > MOST_TEMPERATURE,
        f"repetition_penalty={sampling.repetition_penalty:g}": sampling.repetition_penalty != 1,
        "ends_at_eos=False": not sampling.ends_at_eos,
    }
    if found := [name for name, faulty in faults.items() if faulty]:
        raise InputError(f"Anthropic's interface has no {', '.join(found)}; needed: a temperature of 0 to 1 alone")


def _read(sampling: Sampling, answer: Any) -> Counted:
    """The reply in an answer. Raises an error if it does not follow the interface."""
    text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    thought = "\n\n".join(block["thinking"] for block in answer["content"] if block["type"] == "thinking")
    usage = answer.get("usage") or {}
    read, written = (int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens"))
    end = sampling.find_stop(text)
    reason = "stop" if end is not None else REASONS.get(answer.get("stop_reason"), "eos")
    why = one_line(f"stop_reason {REFUSAL}: {text}", 200) if answer.get("stop_reason") == REFUSAL else ""
    shown_text = "" if why else encodable(text[:end])
    return [Completion(shown_text, reason, tokens=written, reasoning=encodable(thought), withheld=why)], read, written

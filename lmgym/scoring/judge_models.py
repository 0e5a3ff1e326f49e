"""Any model as a judge that answers with one of a few labels: in this process, or behind a server.

A model that continues a reply is given its beginning, "[[", and read at the next token: one in this process from its
whole vocabulary, one behind vLLM from the likeliest tokens. Another server writes a greedy reply, and is read from the
likeliest tokens at its verdict, or, without log-probabilities, from what it writes. A model that thinks, or is to give
its reasons first, writes its reply in any case, and what it writes is the verdict.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmgym.console import say
from lmgym.errors import InputError, TooLong, shown
from lmgym.generation.batches import refuse_batches
from lmgym.generation.model_server import Usage
from lmgym.generation.model_specs import KEYS, ModelSpec, load_generator, read_model_spec
from lmgym.generation.openai_server import CONCURRENCY, MOST_LOGPROBS, ServedGenerator, list_models
from lmgym.generation.protocol import Completion, LikelyTokens, Sampling
from lmgym.generation.request_limits import PATIENCE, RequestLimits, Spending
from lmgym.runs.files import read_json
from lmgym.scoring.judge_prompts import OPENING
from lmgym.scoring.judge_settings import JUDGE_FILE, PRICES_DATE, JudgeConfig, known_prices, read_prices
from lmgym.scoring.label_probabilities import WORD, Reading, read_further, read_likely, read_reply
from lmgym.text import Conversation, Turn, render_all, tokenize_texts

if TYPE_CHECKING:
    from lmgym.generation.local_generation import LocalGenerator

THINKING_TOKENS = 4096  # most of a reply with its thoughts, by default
LEAST_TIMEOUT, SECONDS_A_TOKEN = 60.0, 0.25  # of a request, and for each token that a busy server may write
NEXT = Sampling(max_new_tokens=1, temperature=0)
LOGPROBS = (MOST_LOGPROBS, 5)  # some servers allow no more than 5
TRIAL = Conversation((Turn("user", "Answer with this number alone: 7"),))
BATCH_TOKENS = 8192
Each = Callable[[int, Reading], None]
"""called with the number of a conversation and its reading, as soon as it is there, perhaps in another thread"""


class JudgeModel(Protocol):
    """A model that is asked for labels."""

    @property
    def identity(self) -> str:
        """Equal for models that answer alike: part of the keys of kept verdicts."""
        ...

    @property
    def continues(self) -> bool:
        """True if it is given the beginning of a label and goes on with it."""
        ...

    @property
    def tokens(self) -> int:
        """Most tokens of a reply."""
        ...

    @property
    def reasons(self) -> bool:
        """True if it is asked for its reasons before the verdict."""
        ...

    @property
    def limits(self) -> RequestLimits | None:
        """Those of a server; None of a model in this process."""
        ...

    @property
    def usage(self) -> Usage:
        """Requests and tokens so far."""
        ...

    def ask(self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each) -> None:
        """Reads a label as the reply to each conversation."""
        ...

    @property
    def by_batch(self) -> bool:
        """True if all questions of a command are asked at once, by a batch interface."""
        ...

    def ask_by_batch(
        self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each, record: Path
    ) -> None:
        """As `ask`, for a day at most; `record` keeps the batch's id."""
        ...

    def go_on(
        self, conversations: Sequence[Conversation], begun: Sequence[str], labels: Sequence[str], each: Each
    ) -> None:
        """Divides a probability of 1 among the labels with each beginning, by how the reply goes on from it."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """A judge behind a server; `further` goes on with beginnings."""

    generator: Any
    identity: str
    tokens: int
    reasons: bool
    further: ServedGenerator | None = None
    by_batch: bool = False

    def ask_by_batch(
        self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each, record: Path
    ) -> None:
        """One reply to each conversation; those without an answer are left out."""
        replies = self.generator.reply_by_batch(conversations, _greedy(self.tokens), record)
        for number, reply in enumerate(replies):
            if reply is not None:
                each(number, read_reply(reply, labels))

    @property
    def limits(self) -> RequestLimits:
        """Of both generators."""
        return self.generator.limits

    @property
    def continues(self) -> bool:
        """True of vLLM, which continues a reply."""
        return self.further is not None

    @property
    def usage(self) -> Usage:
        """Of both generators."""
        mine, more = self.generator.usage, self.further.usage if self.further else Usage()
        return Usage(
            mine.requests + more.requests,
            mine.prompt_tokens + more.prompt_tokens,
            mine.completion_tokens + more.completion_tokens,
        )

    def ask(self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each) -> None:
        """One request a conversation; raises ServerError for a server that gives no answer."""

        def read_next(number: int, replies: list[Completion]) -> None:
            each(number, read_likely(replies[0].text, replies[0].likely, labels))

        def read(number: int, replies: list[Completion]) -> None:
            each(number, read_reply(replies[0], labels))

        if self.further is None:
            self.generator.reply(conversations, 1, _greedy(self.tokens), each=read)
        else:
            self.further.reply(_begun(conversations, [""] * len(conversations)), 1, NEXT, each=read_next)

    def go_on(
        self, conversations: Sequence[Conversation], begun: Sequence[str], labels: Sequence[str], each: Each
    ) -> None:
        """One request a conversation."""
        assert self.further is not None, "asked only of a model that continues"

        def read(number: int, replies: list[Completion]) -> None:
            likely = replies[0].likely
            each(number, read_further(begun[number], 1.0, likely[0].logprobs if likely else {}, labels))

        self.further.reply(_begun(conversations, begun), 1, NEXT, each=read)


def _greedy(tokens: int) -> Sampling:
    return Sampling(max_new_tokens=tokens, temperature=0)


def _begun(conversations: Sequence[Conversation], begun: Sequence[str]) -> list[Conversation]:
    """The conversations with the beginning of an answer."""
    return [
        replace(c, turns=(*c.turns, Turn("bot", OPENING + words)))
        for c, words in zip(conversations, begun, strict=True)
    ]


class LocalModel:
    """A causal model in this process; with `tokens` it writes its reply, and without it is read at the next token."""

    limits, by_batch = None, False

    def ask_by_batch(self, *_: Any) -> None:
        """Nothing: a model in this process has no batch interface."""

    def __init__(
        self, generator: "LocalGenerator", identity: str, tokens: int | None = None, reasons: bool = False
    ) -> None:
        self.generator, self.identity, self.usage = generator, identity, Usage()
        self.continues, self.tokens, self.reasons = tokens is None, tokens or 1, reasons

    @cached_property
    def _vocabulary(self) -> list[str]:
        """The text of each token."""
        size = self.generator.model.get_output_embeddings().weight.shape[0]
        return self.generator.tokenizer.batch_decode([[i] for i in range(size)])

    def ask(self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each) -> None:
        """One forward pass over a batch of prompts, or their replies. Raises TooLong where the context is exceeded."""
        own = self.generator
        if not self.continues:
            prompts = tokenize_texts(own.tokenizer, render_all(own.tokenizer, conversations))
            replies = own.reply(conversations, 1, _greedy(self.tokens))
            for number, (prompt, [reply]) in enumerate(zip(prompts, replies, strict=True)):
                self.usage.add(len(prompt), reply.tokens)
                each(number, read_reply(reply, labels))
            return

        def read(number: int, place: LikelyTokens) -> None:
            each(number, read_likely(place.token, [place], labels))

        self._read_next(conversations, [""] * len(conversations), labels, read)

    def go_on(
        self, conversations: Sequence[Conversation], begun: Sequence[str], labels: Sequence[str], each: Each
    ) -> None:
        """As `ask`, behind the beginnings."""

        def read(number: int, place: LikelyTokens) -> None:
            each(number, read_further(begun[number], 1.0, place.logprobs, labels))

        self._read_next(conversations, begun, labels, read)

    def _read_next(
        self,
        conversations: Sequence[Conversation],
        begun: Sequence[str],
        labels: Sequence[str],
        read: Callable[[int, LikelyTokens], None],
    ) -> None:
        """Calls `read` with the tokens that may follow each conversation and beginning, of those that labels have."""
        import torch

        from lmgym.data.batching import length_batches
        from lmgym.models.forward.packed_rows import pack_last_tokens

        own, decoder = self.generator, self.generator.decoder
        prompts = tokenize_texts(own.tokenizer, render_all(own.tokenizer, conversations))
        rows = [ids + self._ids_of(OPENING + words) for ids, words in zip(prompts, begun, strict=True)]
        if (longest := max(map(len, rows), default=0)) > own.max_length:
            raise TooLong(f"a judge's prompt has {longest:,} tokens, and its model reads {own.max_length:,}")
        characters, longest_label = {*"".join(labels)}, max(map(len, labels))
        words = [match[1] if (match := WORD.search(text)) else "" for text in self._vocabulary]
        chosen = [i for i, word in enumerate(words) if word and len(word) <= longest_label and {*word} <= characters]
        for batch in length_batches([len(row) for row in rows], BATCH_TOKENS):
            with torch.inference_mode():
                packed = pack_last_tokens([rows[i] for i in batch]).to(decoder.device)
                logprobs = decoder.logits(decoder.hidden(packed)).float().log_softmax(-1)
                first, some = logprobs.argmax(-1).tolist(), logprobs[:, chosen].tolist()
            for i, greedy, numbers in zip(batch, first, some, strict=True):
                self.usage.add(len(rows[i]), 0)
                read(i, LikelyTokens(self._vocabulary[greedy], self._by_text(chosen, numbers)))

    def _ids_of(self, words: str) -> list[int]:
        return self.generator.tokenizer(words, add_special_tokens=False).input_ids

    def _by_text(self, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, float]:
        """Log-probabilities by text, of which several tokens may have one."""
        import numpy as np

        found: dict[str, float] = {}
        for i, logprob in zip(ids, logprobs, strict=True):
            text = self._vocabulary[i]
            found[text] = float(np.logaddexp(found[text], logprob)) if text in found else logprob
        return found


def load_judge_model(text: str, config: JudgeConfig | None = None) -> JudgeModel:
    """The judge of a model's spec (lmgym/generation/model_specs.py). A server is asked for a short answer first.

    Raises InputError for what does not load. How its verdicts are read is said.
    """
    spec, config = read_model_spec(text), config or JudgeConfig()
    if config.batch:
        refuse_batches(spec.kind)
    if not spec.served:
        return _local_judge(text, config)
    patience = PATIENCE if config.patience is None else config.patience
    limits = RequestLimits(config.concurrency or CONCURRENCY, patience)
    tokens = config.judge_tokens or THINKING_TOKENS
    load = partial(
        load_generator,
        text,
        limits,
        reasoning_effort=config.reasoning_effort,
        timeout=LEAST_TIMEOUT + SECONDS_A_TOKEN * tokens,
    )
    generator, reply = _tried(load, spec, config, tokens)
    reasons, thinks = config.judge_tokens is not None, bool(reply.thought)
    identity, further = _identity(spec, generator), None
    if reasons or thinks:
        does = "gives its reasons" if reasons else "thinks"
        say(f"{text} {does} first, in at most {tokens:,} tokens: what it writes is the verdict", error=True)
        identity = f"{identity}, {config.reasoning_effort or 'usual'} effort"
    elif not reply.likely:
        say(f"{text} gives no log-probabilities: what it writes is the verdict, without its uncertainty", error=True)
        identity = f"{identity}, as written"
    elif spec.kind == "vllm":
        further = ServedGenerator(
            generator.base_url.split(","),
            generator.model,
            key_variable=KEYS[spec.kind],
            limits=limits,
            top_logprobs=generator.top_logprobs,
            vllm=True,
            continues=True,
        )
    most = NEXT.max_new_tokens if further else tokens
    return ServedModel(generator, identity, most, reasons, further, config.batch)


def _local_judge(text: str, config: JudgeConfig) -> LocalModel:
    from lmgym.data.thoughts import opening
    from lmgym.models.fingerprint import fingerprint

    if config.reasoning_effort:
        raise InputError(
            f"--reasoning_effort is a server's setting; {shown(text)} runs in this process: --judge_tokens"
        )
    local: Any = load_generator(text)
    trained = Path(text) / JUDGE_FILE
    asked = read_json(trained).get("judge_tokens") if trained.is_file() else None
    tokens, thinks = config.judge_tokens or asked, opening(local.tokenizer) is not None
    if thinks and tokens is None:
        tokens = min(THINKING_TOKENS, local.max_length // 2)
        say(f"{text} thinks first, in at most {tokens:,} tokens: what it writes is the verdict", error=True)
    return LocalModel(
        local, json.dumps(["local", fingerprint(text, role="scorer")]), tokens, bool(config.judge_tokens or asked)
    )


def _tried(load: Callable[..., Any], spec: ModelSpec, config: JudgeConfig, tokens: int) -> tuple[Any, Completion]:
    """(a generator, its reply to a trial), with as many log-probabilities as the server gives."""
    for logprobs in (*LOGPROBS, 0) if spec.kind != "anthropic" else (0,):
        generator = load(top_logprobs=logprobs)
        limits: RequestLimits = generator.limits  # of all of these generators
        limits.spending = limits.spending or _spending(config, generator.model)
        try:
            [[reply]] = generator.reply([TRIAL], 1, _greedy(tokens))
        except InputError as error:
            if not logprobs or "logprobs" not in str(error):
                raise
            continue
        break
    return generator, reply


def _spending(config: JudgeConfig, model: str) -> Spending | None:
    """The cost of requests, as far as prices are given or known. Raises InputError for a limit without prices."""
    prices = read_prices(config.prices) if config.prices else None
    if prices is None and (prices := known_prices(model)):
        say(
            f"{model}: {prices[0]:g} and {prices[1]:g} dollars a million tokens read and written, the list prices of "
            f"{PRICES_DATE}; --prices overrules them",
            error=True,
        )
    if prices is None and config.max_cost is not None:
        raise InputError(f"--max_cost {config.max_cost:g} without prices of {model}; needed: --prices READ,WRITTEN")
    return Spending(prices, config.max_cost or math.inf) if prices else None


def _identity(spec: ModelSpec, generator: Any) -> str:
    """The model's name, and what its server says of its version; its weights, if they lie in a folder here."""
    parts: list[Any] = [spec.kind, generator.model]
    if spec.kind == "vllm":
        url = generator.base_url.split(",")[0]
        row = next((row for row in list_models(url, KEYS["vllm"]) if row["id"] == generator.model), {})
        root = str(row.get("root") or "")
        if os.path.isdir(root):
            from lmgym.models.fingerprint import fingerprint

            return json.dumps([*parts, fingerprint(root)])
        return json.dumps([*parts, root, *([] if root else spec.urls)])
    return json.dumps([*parts, *spec.urls])

"""Any model as a judge that answers with one of a few labels: in this process, or behind a server.

A model that continues a reply is given its beginning, "[[", and read at the next token: one in this process from its
whole vocabulary, one behind vLLM from the likeliest tokens. Another server writes a short greedy reply, and is read
from the likeliest tokens at its places, or, without log-probabilities, from what it writes.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from lmgym.console import say
from lmgym.errors import InputError, TooLong
from lmgym.generation.model_server import Usage
from lmgym.generation.model_specs import KEYS, ModelSpec, load_generator, read_model_spec
from lmgym.generation.openai_server import CONCURRENCY, MOST_LOGPROBS, ServedGenerator, list_models
from lmgym.generation.protocol import Completion, LikelyTokens, Sampling
from lmgym.scoring.judge_prompts import OPENING
from lmgym.scoring.label_probabilities import WORD, Reading, read_further, read_likely
from lmgym.text import Conversation, Turn, render_all, tokenize_texts

if TYPE_CHECKING:
    from lmgym.generation.local_generation import LocalGenerator

WRITTEN = Sampling(max_new_tokens=16, temperature=0)
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
        """True if it can go on with a beginning of a label."""
        ...

    @property
    def usage(self) -> Usage:
        """Requests and tokens so far."""
        ...

    def ask(self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each) -> None:
        """Reads a label as the reply to each conversation."""
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
    further: ServedGenerator | None = None

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

        def read(number: int, replies: list[Completion]) -> None:
            each(number, read_likely(replies[0].text, replies[0].likely, labels))

        if self.further is None:
            self.generator.reply(conversations, 1, WRITTEN, each=read)
        else:
            self.further.reply(_begun(conversations, [""] * len(conversations)), 1, NEXT, each=read)

    def go_on(
        self, conversations: Sequence[Conversation], begun: Sequence[str], labels: Sequence[str], each: Each
    ) -> None:
        """One request a conversation."""
        assert self.further is not None, "asked only of a model that continues"

        def read(number: int, replies: list[Completion]) -> None:
            likely = replies[0].likely
            each(number, read_further(begun[number], 1.0, likely[0].logprobs if likely else {}, labels))

        self.further.reply(_begun(conversations, begun), 1, NEXT, each=read)


def _begun(conversations: Sequence[Conversation], begun: Sequence[str]) -> list[Conversation]:
    """The conversations with the beginning of an answer."""
    return [
        replace(c, turns=(*c.turns, Turn("bot", OPENING + words)))
        for c, words in zip(conversations, begun, strict=True)
    ]


class LocalModel:
    """A causal model in this process."""

    continues = True

    def __init__(self, generator: "LocalGenerator", identity: str) -> None:
        self.generator, self.identity, self.usage = generator, identity, Usage()

    @cached_property
    def _vocabulary(self) -> list[str]:
        """The text of each token."""
        size = self.generator.model.get_output_embeddings().weight.shape[0]
        return self.generator.tokenizer.batch_decode([[i] for i in range(size)])

    def ask(self, conversations: Sequence[Conversation], labels: Sequence[str], each: Each) -> None:
        """One forward pass over a batch of prompts. Raises TooLong for one that exceeds the context."""

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


def load_judge_model(text: str, concurrency: int = CONCURRENCY) -> JudgeModel:
    """The judge of a model's spec (lmgym/generation/model_specs.py). A server is asked for a short answer first.

    Raises InputError for what does not load. A server without log-probabilities is said.
    """
    spec = read_model_spec(text)
    if not spec.served:
        from lmgym.models.fingerprint import fingerprint

        local: Any = load_generator(text)
        return LocalModel(local, json.dumps(["local", fingerprint(text, role="scorer")]))
    for logprobs in LOGPROBS if spec.kind != "anthropic" else ():
        generator: Any = load_generator(text, concurrency, logprobs)
        try:
            [[reply]] = generator.reply([TRIAL], 1, WRITTEN)
        except InputError as error:
            if "logprobs" not in str(error):
                raise
            continue
        if not reply.likely:
            break
        further = ServedGenerator(
            generator.base_url.split(","),
            generator.model,
            key_variable=KEYS[spec.kind],
            concurrency=concurrency,
            top_logprobs=logprobs,
            vllm=True,
            continues=True,
        )
        return ServedModel(generator, _identity(spec, generator), further if spec.kind == "vllm" else None)
    say(f"{text} gives no log-probabilities: what it writes is the verdict, without its uncertainty", error=True)
    generator = load_generator(text, concurrency)
    return ServedModel(generator, f"{_identity(spec, generator)}, as written")


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

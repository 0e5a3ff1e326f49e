"""Replies from a causal model in this process: equal prompts are read once, finished rows leave, and others start.

Design decisions:
- Sampled tokens stay on the device until the batch ends: on a GPU, waiting for a token costs more than a small model's
  step. Rows are checked for their end, an eos or a stop string, every CHECK_EVERY tokens; tokens sampled after the
  end are ignored.
- Prompts that wait start together, once a quarter of the rows is free, so that their forward is a large one. What
  starts when depends on the tokens alone: the same request is computed in the same batches.
- With top-p without top-k every token is waited for: it may need more than the likeliest tokens
  (lmgym/generation/token_sampling.py).
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch

from lmgym.console import say
from lmgym.errors import InputError
from lmgym.generation.kept_turns import KeptTurns
from lmgym.generation.protocol import Completion, Progress, Sampling, seeds_of
from lmgym.generation.reply_batch import ReplyBatch
from lmgym.generation.steps import PackedSteps, PaddedSteps
from lmgym.generation.token_sampling import row_seeds
from lmgym.models.classifiers import autocast_dtype
from lmgym.models.config_fields import context_length, refuse_encoder
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.policies import read_causal, with_adapter
from lmgym.models.forward.prefixes import Prefix
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.memory import GIB, cache_numbers_per_token
from lmgym.models.sources import base_of_adapter
from lmgym.text import Conversation, render_all, tokenize_texts
from lmgym.turn_ends import turn_ends

CHECK_EVERY = 8  # tokens between checks for ended rows on a GPU, which waits for each check
MOST_ENDINGS = 64  # whose tokens are kept: clients of a server choose the stop strings
CACHE_GIB = 2.0  # of all batches on a CPU, and of kept turns; a constant, since both must not depend on free memory
REFILL_SHARE = 0.25  # of the rows is free before waiting prompts start: a prompt alone is read slowly
_Request = tuple[list[int], list[int]]
"""a prompt, and the numbers of its replies"""


@final
class LocalGenerator:
    """Samples from any causal model, `generation_batch_size` replies at a time.

    `autocast` is a dtype to compute in; by default that of `autocast_dtype`.
    """

    def __init__(
        self,
        model,
        tokenizer,
        generation_batch_size: int = 64,
        decoder: Decoder | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.tokenizer, self.generation_batch_size = model, tokenizer, generation_batch_size
        self.autocast = autocast or autocast_dtype(model)
        self.decoder = Decoder(model) if decoder is None else decoder
        self.prefix = Prefix(self.decoder)
        self.check_every = 1 if self.decoder.device.type == "cpu" else CHECK_EVERY
        self.eos, self.stops = end_ids(model, tokenizer), turn_ends(tokenizer).stops
        self.max_length = context_length(model.config)
        self.kept_turns: KeptTurns | None = None
        """within `turns`"""
        self._may_stop: dict[frozenset[str], np.ndarray] = {}

    @property
    def generation_config(self):
        """The model's, as transformers has it; None if it has none."""
        return getattr(self.model, "generation_config", None)

    def renew(self) -> None:
        """Forget cached keys and values. Needed after weight updates that torch does not count, as by DeepSpeed."""
        self.prefix.forget()

    @contextlib.contextmanager
    def turns(self) -> Iterator[None]:
        """Within it calls are turns: a prompt that goes on from an earlier one and its reply computes only the rest.

        The weights must stay the same.
        """
        self.kept_turns = KeptTurns(self.decoder, self.cache_tokens())
        try:
            yield
        finally:
            self.kept_turns = None

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, rendered by the tokenizer's chat template."""
        prompts = tokenize_texts(self.tokenizer, render_all(self.tokenizer, conversations))
        return self.generate(prompts, n, sampling, progress)

    def generate(
        self, prompts: Sequence[list[int]], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n completions of each prompt of token ids.

        Raises InputError for an empty prompt, and for one that leaves no room for `max_new_tokens`.
        """
        self.check(prompts, n, sampling)
        sampling = sampling.with_stops(self.stops)
        self.model.eval()
        seeds = row_seeds(seeds_of(sampling, len(prompts)), n)
        decoding = _Decoding(self, self._requests(prompts, n), seeds, sampling.with_stops(self.stops))
        with torch.autocast(self.decoder.device.type, self.autocast, enabled=self.autocast is not None):
            found = decoding.run(progress)
        return [[found[i * n + reply] for reply in range(n)] for i in range(len(prompts))]

    def _requests(self, prompts: Sequence[list[int]], n: int) -> list[_Request]:
        """Prompts with the numbers of their replies, among n to each; equal prompts are one. Most replies come first,
        and of those the longest prompts.
        """
        replies: dict[tuple[int, ...], list[int]] = {}
        for i, prompt in enumerate(prompts):
            replies.setdefault(tuple(prompt), []).extend(range(i * n, (i + 1) * n))
        size = max(n, self.generation_batch_size)
        requests = [(list(p), own[at : at + size]) for p, own in replies.items() for at in range(0, len(own), size)]
        return sorted(requests, key=lambda request: (-len(request[1]), -len(request[0])))

    def cache_tokens(self) -> float:
        """Tokens whose keys and values take CACHE_GIB."""
        return CACHE_GIB * GIB / max(1, 4 * cache_numbers_per_token(self.model.config))  # fp32

    def check(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> None:
        """Raises InputError for no replies, an empty prompt, and one that leaves too little room for its reply."""
        if n < 1:
            raise InputError(f"n={n} replies; needed: 1 or more")
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise InputError(f"prompt {i} has no token; needed: at least one, such as a BOS")
            if len(prompt) + sampling.max_new_tokens > self.max_length:
                raise InputError(
                    f"prompt {i} has {len(prompt)} tokens and max_new_tokens is {sampling.max_new_tokens}; the model "
                    f"reads {self.max_length}: shorten one of them"
                )

    def tokens_that_may_stop(self, stops: tuple[str, ...]) -> np.ndarray:
        """[vocabulary] bool: tokens with the last character of a stop string, or with a part of a character."""
        endings = frozenset(stop[-1] for stop in stops)
        if endings not in self._may_stop:
            vocabulary = self.model.get_output_embeddings().weight.shape[0]
            texts = self.tokenizer.batch_decode([[i] for i in range(vocabulary)])
            if len(self._may_stop) == MOST_ENDINGS:
                self._may_stop.clear()
            self._may_stop[endings] = np.array([not endings.isdisjoint(text) or "\ufffd" in text for text in texts])
        return self._may_stop[endings]


@final
class _Decoding:
    """The replies of one call, in batches that start where others have ended."""

    def __init__(
        self, generator: LocalGenerator, waiting: list[_Request], seeds: np.ndarray, sampling: Sampling
    ) -> None:
        self._generator, self._waiting, self._seeds, self._sampling = generator, waiting, seeds, sampling
        decoder, room = generator.decoder, sampling.max_new_tokens
        # a single prompt may begin with the one before it, as the next turn of a conversation does
        one_prompt = all(prompt == waiting[0][0] for prompt, _ in waiting)
        known = generator.prefix if one_prompt else generator.kept_turns
        self._steps = PackedSteps(decoder, room, known) if decoder.packed else PaddedSteps(decoder)
        self._may_stop = generator.tokens_that_may_stop(sampling.stop) if sampling.stop else None
        self._running: list[ReplyBatch] = []
        """in the order of `steps`"""
        self._found: dict[int, Completion] = {}

    @torch.inference_mode()
    def run(self, progress: Progress | None) -> dict[int, Completion]:
        """The completions by number."""
        if self._generator.kept_turns is not None:
            self._generator.kept_turns.begin_turn()
        since_check = 0
        while self._waiting or self._running:
            self._start_waiting()
            for batch in self._running:
                batch.sample()
            if progress:
                progress(max(batch.tokens for batch in self._running), self._sampling.max_new_tokens)
            since_check += 1
            if since_check == self._generator.check_every or any(batch.is_full for batch in self._running):
                since_check = 0
                self._close_ended()
            if self._running:
                found = self._steps.advance([batch.last_ids for batch in self._running])
                for batch, logits in zip(self._running, found, strict=True):
                    batch.logits = logits
        return self._found

    def _start_waiting(self) -> None:
        if not (requests := self._next_requests()):
            return
        prompts, numbers = [prompt for prompt, _ in requests], [number for _, own in requests for number in own]
        logits, own = self._steps.start(prompts, len(numbers) // len(prompts)), self._generator
        self._running.append(
            ReplyBatch(prompts, numbers, self._seeds, self._sampling, own.tokenizer, own.eos, self._may_stop, logits)
        )

    def _next_requests(self) -> list[_Request]:
        """Takes what starts now from `waiting`: requests with equally many replies."""
        size, packed = self._generator.generation_batch_size, self._generator.decoder.packed
        free = size - sum(len(batch.rows.open) for batch in self._running)
        if not self._waiting or (self._running and (not packed or free < REFILL_SHARE * size)):
            return []
        prompt, replies = self._waiting[0]
        several = min(len(replies), free) if self._running else len(replies)
        room = len(prompt) + several * self._sampling.max_new_tokens  # of the longest prompt
        most = free // several
        if self._generator.decoder.device.type == "cpu":
            most = min(most, int((self._generator.cache_tokens() - self._steps.tokens) // room))
        if self._running and most < 1:
            return []
        if several < len(replies):
            self._waiting[0] = (prompt, replies[several:])
            return [(prompt, replies[:several])]
        alike = itertools.takewhile(
            lambda one: len(one[1]) == several and (packed or len(one[0]) == len(prompt)), self._waiting
        )
        taken = list(itertools.islice(alike, max(1, most)))
        del self._waiting[: len(taken)]
        return taken

    def _close_ended(self) -> None:
        """Let rows whose reply has ended leave, and batches of which all have ended."""
        for place in reversed(range(len(self._running))):
            batch = self._running[place]
            closed = batch.close_ended()
            if isinstance(self._steps, PackedSteps) and isinstance(self._steps.known, KeptTurns):
                for row in closed.tolist():
                    self._steps.known.keep(batch.read_ids(row), self._steps.caches[place].read(row))
            if not batch.rows.open.any():
                self._found |= zip(batch.numbers, batch.completions(), strict=True)
                self._steps.end(place)
                del self._running[place]
            elif self._steps.drop(place, batch.rows.open):
                batch.drop_closed()


def end_ids(model, tokenizer) -> list[int]:
    """The ids that end a reply: those of the model's generation config, and the ends of a turn (lmgym/turn_ends.py)."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    known = [] if eos is None else [eos] if isinstance(eos, int) else eos
    return list(dict.fromkeys([*known, *turn_ends(tokenizer).ids]))


def load_causal(name: str) -> LocalGenerator:
    """A generator of that model, in bf16 on a GPU and in fp32 elsewhere; of an adapter's folder with its base model.

    Raises InputError if it does not load.
    """
    base = base_of_adapter(name)
    config = load_config(base or name)
    refuse_encoder(base or name, config)
    tokenizer = load_tokenizer(name, role="scorer" if base else "model")  # an adapter's folder has one too
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = read_causal(base or name, config, dtype=dtype)
    if base:
        model = with_adapter(model, tokenizer, name)
    generator = LocalGenerator(model.to(device).eval(), tokenizer)
    if generator.decoder.note:
        say(generator.decoder.note, error=True)
    return generator

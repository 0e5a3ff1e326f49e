"""Replies from a causal model in this process: equal prompts are read once, and finished rows leave.

Design decisions:
- Sampled tokens stay on the device until the batch ends: on a GPU, waiting for a token costs more than a small model's
  step. Rows are checked for their end, an eos or a stop string, every CHECK_EVERY tokens; tokens sampled after the
  end are ignored.
- With top-p without top-k every token is waited for: it may need more than the likeliest tokens
  (lmgym/generation/token_sampling.py).
"""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from lmgym.console import say
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Progress, Sampling, seeds_of
from lmgym.generation.reply_batch import ReplyBatch
from lmgym.generation.steps import Steps, start_packed, start_padded
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
CACHE_GIB = 2.0  # of a batch on a CPU; a constant, since batches must not depend on free memory


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
        self._may_stop: dict[frozenset[str], np.ndarray] = {}

    @property
    def generation_config(self):
        """The model's, as transformers has it; None if it has none."""
        return getattr(self.model, "generation_config", None)

    def renew(self) -> None:
        """Forget cached keys and values. Needed after weight updates that torch does not count, as by DeepSpeed."""
        self.prefix.forget()

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
        found: dict[int, Completion] = {}
        waiting = self._requests(prompts, n)
        while waiting:
            longest, several = len(waiting[0][0]), len(waiting[0][1])
            batch = waiting[: self._batch_size(longest, several, sampling.max_new_tokens)]
            batch = [
                (prompt, replies)
                for prompt, replies in batch
                if len(replies) == several and (self.decoder.packed or len(prompt) == longest)
            ]
            waiting = waiting[len(batch) :]
            numbers = [number for _, replies in batch for number in replies]
            with torch.autocast(self.decoder.device.type, self.autocast, enabled=self.autocast is not None):
                found |= zip(
                    numbers,
                    self._generate_batch([prompt for prompt, _ in batch], seeds[numbers], several, sampling, progress),
                    strict=True,
                )
        return [[found[i * n + reply] for reply in range(n)] for i in range(len(prompts))]

    def _requests(self, prompts: Sequence[list[int]], n: int) -> list[tuple[list[int], list[int]]]:
        """Prompts with the numbers of their replies, among n to each; equal prompts are one. Most replies come first,
        and of those the longest prompts.
        """
        replies: dict[tuple[int, ...], list[int]] = {}
        for i, prompt in enumerate(prompts):
            replies.setdefault(tuple(prompt), []).extend(range(i * n, (i + 1) * n))
        size = max(n, self.generation_batch_size)
        requests = [(list(p), own[at : at + size]) for p, own in replies.items() for at in range(0, len(own), size)]
        return sorted(requests, key=lambda request: (-len(request[1]), -len(request[0])))

    def _batch_size(self, longest: int, n: int, room: int) -> int:
        """Prompts of up to `longest` tokens in a batch; on a CPU their cache takes at most CACHE_GIB."""
        size = max(1, self.generation_batch_size // n)
        if self.decoder.device.type != "cpu":
            return size
        bytes_a_token = max(1, 4 * cache_numbers_per_token(self.model.config))  # fp32
        return max(1, min(size, int(CACHE_GIB * GIB) // (bytes_a_token * (longest + n * room))))

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

    @torch.inference_mode()
    def _generate_batch(
        self, prompts: list[list[int]], seeds: np.ndarray, n: int, sampling: Sampling, progress: Progress | None
    ) -> list[Completion]:
        """n completions of each prompt, in order; `seeds` are those of the replies."""
        length = sampling.max_new_tokens
        logits, steps = self._start(prompts, n, length)
        logits = logits if n == 1 else logits.repeat_interleave(n, 0)
        may_stop = self._tokens_that_may_stop(sampling.stop) if sampling.stop else None
        batch = ReplyBatch(prompts, seeds, n, sampling, self.tokenizer, self.eos, may_stop, logits)
        for position in range(length):
            ids = batch.sample(logits, position)
            if progress:
                progress(position + 1, length)
            is_last = position + 1 == length
            if is_last or (position + 1) % self.check_every == 0:
                batch.close_ended(position, position % self.check_every + 1)
                if is_last or not batch.rows.open.any():
                    break
                ids = batch.drop_closed(steps, ids)
            logits = steps.advance(ids)
        return batch.completions(position + 1)

    def _start(self, prompts: list[list[int]], n: int, room: int) -> tuple[torch.Tensor, Steps]:
        """Logits [P, vocabulary] after each prompt, and the steps that follow."""
        if not self.decoder.packed:
            return start_padded(self.decoder, prompts, n)
        # a single prompt may begin with the one before it, as the next turn of a conversation does
        return start_packed(self.decoder, prompts, n, room, self.prefix if len(prompts) == 1 else None)

    def _tokens_that_may_stop(self, stops: tuple[str, ...]) -> np.ndarray:
        """[vocabulary] bool: tokens with the last character of a stop string, or with a part of a character."""
        endings = frozenset(stop[-1] for stop in stops)
        if endings not in self._may_stop:
            vocabulary = self.model.get_output_embeddings().weight.shape[0]
            texts = self.tokenizer.batch_decode([[i] for i in range(vocabulary)])
            if len(self._may_stop) == MOST_ENDINGS:
                self._may_stop.clear()
            self._may_stop[endings] = np.array([not endings.isdisjoint(text) or "\ufffd" in text for text in texts])
        return self._may_stop[endings]


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

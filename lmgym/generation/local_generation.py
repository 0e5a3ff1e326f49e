"""Replies from a causal model in this process: one prefill a prompt, however many replies; finished rows leave.

Design decisions:
- What is sampled stays on the device until the batch ends: to wait for a token costs a GPU more than a small model's
  step. Which rows have ended is looked at every LOOK_EVERY tokens; what they say meanwhile counts nothing.
- Stop strings are text, which the device does not know: with them every token is waited for. So it is with top-p
  without top-k, which may need more than the likeliest tokens (lmgym/generation/token_sampling.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.console import say
from lmgym.errors import InputError
from lmgym.generation.protocol import Capabilities, Completion, FinishReason, Generator, Progress, Sampling, seeds_of
from lmgym.generation.steps import Steps, start_packed, start_padded
from lmgym.generation.token_sampling import choose, penalise, row_seeds, uniforms
from lmgym.models.architectures import refuse_encoder
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.policies import read_causal
from lmgym.models.forward.prefixes import Prefix
from lmgym.models.loading import context_length, load_config, load_tokenizer
from lmgym.models.memory import GIB, cached_numbers
from lmgym.text import Conversation, render_all, tokenize_texts

LOOK_EVERY = 8  # tokens between two looks at which rows have ended: a GPU waits for each look, a CPU for none
CACHE_GIB = 2.0  # of a batch on a CPU; a constant: which replies share a batch must not depend on what is free


@dataclass
class _Rows:
    """Replies under way, a row each; `row` numbers them among all replies of the request."""

    row: np.ndarray
    index: torch.Tensor
    """the same on the device"""
    open: np.ndarray
    """as was known at the last look"""
    noise: torch.Tensor
    """[rows, room]"""
    seen: torch.Tensor | None


@dataclass
class _Replies:
    """What was sampled of all replies of a request, on the device until the last token."""

    ids: torch.Tensor
    """[replies, room] int64; behind a reply's end there may be tokens that count nothing"""
    logprobs: torch.Tensor
    """[replies, room] float32"""
    eos: torch.Tensor
    """ids that end a reply, none where nothing does"""
    ended: torch.Tensor
    """[replies] bool: by an eos"""
    stopped: dict[int, int]
    """lengths of those that ended by a stop string"""

    @staticmethod
    def of(replies: int, room: int, eos: Sequence[int], device: torch.device) -> "_Replies":
        """None sampled yet."""
        return _Replies(
            torch.zeros(replies, room, dtype=torch.int64, device=device), torch.zeros(replies, room, device=device),
            torch.tensor(eos, dtype=torch.int64, device=device), torch.zeros(replies, dtype=torch.bool, device=device),
            {},
        )  # fmt: skip

    def add(self, position: int, rows: _Rows, chosen: torch.Tensor, logprobs: torch.Tensor) -> None:
        """The tokens of the rows under way, and their log-probabilities, at a position."""
        self.ids[:, position].index_copy_(0, rows.index, chosen)
        self.logprobs[:, position].index_copy_(0, rows.index, logprobs)
        if len(self.eos):
            ends = (chosen[:, None] == self.eos).any(1)
            self.ended.index_copy_(0, rows.index, self.ended[rows.index] | ends)


@final
class LocalGenerator:
    """Samples from any causal model. `batch_rows` replies advance together; `autocast` is a type to compute in."""

    capabilities = Capabilities(token_ids=True, logprobs=True)

    def __init__(
        self, model, tokenizer, batch_rows: int = 64, decoder: Decoder | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.generation_batch_size = model, tokenizer, batch_rows
        self.autocast = autocast
        self.decoder = Decoder(model) if decoder is None else decoder
        self.prefix = Prefix(self.decoder)
        self.look_every = 1 if self.decoder.device.type == "cpu" else LOOK_EVERY
        config = getattr(model, "generation_config", None)
        eos = getattr(config, "eos_token_id", None)
        eos = tokenizer.eos_token_id if eos is None else eos
        self.eos: list[int] = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        self.max_length = context_length(model.config)
        self._ends_of_stops: dict[tuple[str, ...], np.ndarray] = {}

    def renew(self) -> None:
        """To be called once weights have changed in a way that leaves no trace: by DeepSpeed, or a fused optimizer."""
        self.prefix.forget()

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, as the tokenizer's chat template renders it."""
        prompts = tokenize_texts(self.tokenizer, render_all(self.tokenizer, conversations))
        return self.generate(prompts, n, sampling, progress)

    def generate(
        self, prompts: Sequence[list[int]], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n completions of each prompt of token ids.

        Raises InputError for an empty prompt, and for one that leaves no room for `max_new_tokens`.
        """
        self._refuse(prompts, n, sampling)
        self.model.eval()
        seeds = seeds_of(sampling, len(prompts))
        found: list[list[Completion]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        start = 0
        while start < len(order):
            longest = len(prompts[order[start]])
            batch = order[start : start + self._prompts_at_once(longest, n, sampling.max_new_tokens)]
            if not self.decoder.packed:
                batch = [i for i in batch if len(prompts[i]) == longest]
            start += len(batch)
            with torch.autocast(self.decoder.device.type, self.autocast, enabled=self.autocast is not None):
                replies = self._batch([prompts[i] for i in batch], [seeds[i] for i in batch], n, sampling, progress)
            for place, i in enumerate(batch):
                found[i] = replies[place * n : (place + 1) * n]
        return found

    def _prompts_at_once(self, longest: int, n: int, room: int) -> int:
        """How many prompts of up to `longest` tokens make a batch: on a CPU as many as CACHE_GIB lets."""
        size = max(1, self.generation_batch_size // n)
        if self.decoder.device.type != "cpu":
            return size
        bytes_a_token = max(1, 4 * cached_numbers(self.model.config))  # attention is in fp32 on a CPU
        return max(1, min(size, int(CACHE_GIB * GIB) // (bytes_a_token * (longest + n * room))))

    def _refuse(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> None:
        if n < 1:
            raise InputError(f"n={n} replies; needed: 1 or more")
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise InputError(f"prompt {i} has no token; needed: at least one, such as a BOS")
            if len(prompt) + sampling.max_new_tokens > self.max_length:
                raise InputError(
                    f"prompt {i} has {len(prompt)} tokens and max_new_tokens is {sampling.max_new_tokens}; the model "
                    f"reads {self.max_length}: shorten the one or the other"
                )

    @torch.inference_mode()
    def _batch(
        self, prompts: list[list[int]], seeds: list[int], n: int, sampling: Sampling, progress: Progress | None
    ) -> list[Completion]:
        total = len(prompts) * n
        room = sampling.max_new_tokens
        logits, steps = self._start(prompts, n, room)
        logits = logits if n == 1 else logits.repeat_interleave(n, 0)
        noise = torch.from_numpy(uniforms(row_seeds(seeds, n)[:, None], np.arange(room))).to(logits.device)
        every_row = np.arange(total)
        index = torch.from_numpy(every_row).to(logits.device)
        rows = _Rows(every_row, index, np.ones(total, dtype=bool), noise, None)
        if sampling.repetition_penalty != 1:
            rows.seen = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
            for i, prompt in enumerate(prompts):
                rows.seen[i * n : (i + 1) * n, prompt] = True
        replies = _Replies.of(total, room, self.eos if sampling.ends_at_eos else [], logits.device)
        # only what stop strings need is text: for them each token is looked at
        every = 1 if sampling.stop else self.look_every
        for position in range(room):
            chosen, chosen_logprobs = self._next(logits, rows, sampling, position)
            replies.add(position, rows, chosen, chosen_logprobs)
            if progress:
                progress(position + 1, room)
            if position + 1 == room:
                break
            going_on = chosen
            if (position + 1) % every == 0:
                self._look(rows, replies, position, sampling.stop)
                if not rows.open.any():
                    break
                going_on = self._leave(rows, chosen, steps)
            logits = steps.advance(going_on)
        if sampling.stop:
            self._look(rows, replies, position, sampling.stop)
        return self._completions(replies, position + 1, sampling)

    def _start(self, prompts: list[list[int]], n: int, room: int) -> tuple[torch.Tensor, Steps]:
        """Logits [P, vocabulary] after each prompt, and the steps that follow."""
        if not self.decoder.packed:
            return start_padded(self.decoder, prompts, n)
        # the next turn of a conversation goes on from this one
        return start_packed(self.decoder, prompts, n, room, self.prefix if len(prompts) == 1 else None)

    def _next(
        self, logits: torch.Tensor, rows: _Rows, sampling: Sampling, position: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The token of each row, and its log-probability under the model at this temperature."""
        logits = logits.float()
        weakened = logits if rows.seen is None else penalise(logits, rows.seen, sampling.repetition_penalty)
        chosen, logprobs = choose(logits, weakened, sampling, rows.noise[:, position])
        if rows.seen is not None:
            rows.seen.scatter_(1, chosen[:, None], True)
        return chosen, logprobs

    def _look(self, rows: _Rows, replies: _Replies, position: int, stops: tuple[str, ...]) -> None:
        """Which rows are still open, after the token at a position; waits for the device."""
        rows.open &= ~replies.ended[rows.index].cpu().numpy()
        if not stops:
            return
        chosen = replies.ids[rows.index, position].cpu().numpy()
        candidates = self._last_tokens_of(stops)[chosen]
        for place in np.flatnonzero(rows.open & candidates):
            row = rows.row[place]
            if _first_stop(self._decode(replies.ids[row, : position + 1].cpu().numpy()), stops) is not None:
                replies.stopped[int(row)] = position + 1
                rows.open[place] = False

    def _last_tokens_of(self, stops: tuple[str, ...]) -> np.ndarray:
        """[vocabulary] bool: tokens whose text has the last character of a stop string, and all that are no text."""
        if stops not in self._ends_of_stops:
            size = self.model.get_output_embeddings().weight.shape[0]
            texts = self.tokenizer.batch_decode([[i] for i in range(size)])
            ends = {stop[-1] for stop in stops}
            mask = np.array([not ends.isdisjoint(text) or "\ufffd" in text for text in texts])
            self._ends_of_stops[stops] = mask
        return self._ends_of_stops[stops]

    def _leave(self, rows: _Rows, chosen: torch.Tensor, steps: Steps) -> torch.Tensor:
        """The tokens to go on with; once enough rows are closed, they and their caches are dropped."""
        share = steps.keep_share
        if np.count_nonzero(rows.open) >= share * len(rows.open):
            return chosen
        grid = rows.open.reshape(-1, steps.replies)
        alive = grid.sum(1)
        most, prompts = int(alive.max()), np.flatnonzero(alive)
        # open rows first; a prompt with fewer than the others keeps some closed ones beside
        places = np.argsort(~grid[prompts], axis=1, kind="stable")[:, :most]
        kept = (prompts[:, None] * steps.replies + places).ravel()
        if len(kept) > share * len(rows.row):
            return chosen
        index = torch.from_numpy(kept).to(chosen.device)
        steps.keep(torch.from_numpy(prompts).to(chosen.device), index)
        rows.row, rows.open, rows.noise = rows.row[kept], rows.open[kept], rows.noise[index]
        rows.index = torch.from_numpy(rows.row).to(chosen.device)
        rows.seen = None if rows.seen is None else rows.seen[index]
        return chosen[index]

    def _decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _completions(self, replies: _Replies, tokens: int, sampling: Sampling) -> list[Completion]:
        """What was sampled in so many tokens a row, each up to its end."""
        ids, logprobs = (part[:, :tokens].cpu().numpy() for part in (replies.ids, replies.logprobs))
        is_end = np.isin(ids, self.eos) if sampling.ends_at_eos else np.zeros(ids.shape, dtype=bool)
        has_end = np.asarray(is_end.any(1))
        lengths = np.where(has_end, is_end.argmax(1) + 1, tokens)
        found = []
        for row, (length, ended) in enumerate(zip(lengths.tolist(), has_end.tolist(), strict=True)):
            # behind its end a row was still sampled: an eos there is none
            stopped = replies.stopped.get(row)
            reason: FinishReason = "stop" if stopped is not None else "eos" if ended else "length"
            length = length if stopped is None else stopped
            found.append(self._completion(ids[row, :length], logprobs[row, :length], reason, sampling))
        return found

    def _completion(
        self, ids: np.ndarray, logprobs: np.ndarray, reason: FinishReason, sampling: Sampling
    ) -> Completion:
        text = self._decode(ids[:-1] if reason == "eos" else ids)
        cut = _first_stop(text, sampling.stop)
        return Completion(
            text if cut is None else text[:cut], reason, tuple(ids.tolist()), tuple(logprobs.tolist()), len(ids)
        )


def _first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the first of the stop strings begins."""
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(found) if found else None


def load_causal(name: str) -> Generator:
    """A generator of that model, in bf16 on a GPU and in fp32 elsewhere. Raises InputError where it does not load."""
    config = load_config(name)
    refuse_encoder(name, config)
    tokenizer = load_tokenizer(name)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    generator = LocalGenerator(read_causal(name, config, dtype=dtype).to(device).eval(), tokenizer)
    if generator.decoder.note:
        say(generator.decoder.note, error=True)
    return generator

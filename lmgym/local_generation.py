"""Replies from a causal model in this process: one prefill a prompt, however many replies; finished rows leave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.decoding import Cache, GraphedStep, prefill, prefill_from, step
from lmgym.errors import InputError
from lmgym.families import family_of
from lmgym.generation import Capabilities, Completion, FinishReason, Progress, Sampling, seeds_of
from lmgym.kept_states import KeptStates
from lmgym.models import context_length
from lmgym.prefixes import Prefix
from lmgym.text import Conversation, render_all, tokenize_texts
from lmgym.token_sampling import choose, penalise, row_seeds, uniforms

KEEP_SHARE = 0.75  # the batch is cut down once fewer of its rows than this are open: copying the caches costs too
GRAPHED_KEEP_SHARE = 0.5  # a smaller batch needs another graph
GRAPH_STEPS = 16  # a capture costs about three steps


@dataclass
class _Rows:
    """Replies under way, a row each; `row` numbers them among all replies of the request."""

    row: np.ndarray
    open: np.ndarray
    noise: torch.Tensor
    """[rows, room]"""
    seen: torch.Tensor | None


@final
class LocalGenerator:
    """Samples from a causal model of a tested family (lmgym/decoding.py). `batch_rows` replies advance together."""

    capabilities = Capabilities(token_ids=True, logprobs=True)

    def __init__(self, model, tokenizer, batch_rows: int = 64) -> None:
        self.model, self.tokenizer, self.batch_rows = model, tokenizer, batch_rows
        self.family = family_of(model)
        self.prefix = Prefix(self.family)
        self.graphs = self.family.device.type == "cuda"
        self.keeps: KeptStates | None = None
        """what is kept of a request, for who asks for it; captured graphs keep nothing"""
        config = getattr(model, "generation_config", None)
        eos = getattr(config, "eos_token_id", None)
        eos = tokenizer.eos_token_id if eos is None else eos
        self.eos: list[int] = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        self.max_length = context_length(model.config)
        self._ends_of_stops: dict[tuple[str, ...], np.ndarray] = {}

    def renew(self) -> None:
        """To be called once weights have changed in a way that leaves no trace: by DeepSpeed, or a fused optimizer."""
        self.family.refresh(renew=True)
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
        self.family.refresh()
        seeds = seeds_of(sampling, len(prompts))
        found: list[list[Completion]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        size = max(1, self.batch_rows // n)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            replies = self._batch([prompts[i] for i in batch], [seeds[i] for i in batch], n, sampling, progress)
            for place, i in enumerate(batch):
                found[i] = replies[place * n : (place + 1) * n]
        return found

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
        keeps = None if self.graphs else self.keeps
        if len(prompts) == 1 and keeps is None:  # the next turn of a conversation goes on from this one
            logits, cache = prefill_from(self.prefix, prompts[0], n, room)
        else:
            logits, cache = prefill(self.family, prompts, n, room, keeps.layer if keeps else None)
        if keeps is not None and cache.tapped is not None:
            keeps.begin(cache.tapped, total, room)
        logits = logits if n == 1 else logits.repeat_interleave(n, 0)
        noise = torch.from_numpy(uniforms(row_seeds(seeds, n)[:, None], np.arange(room))).to(logits.device)
        rows = _Rows(np.arange(total), np.ones(total, dtype=bool), noise, None)
        if sampling.repetition_penalty != 1:
            rows.seen = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
            for i, prompt in enumerate(prompts):
                rows.seen[i * n : (i + 1) * n, prompt] = True
        ids, logprobs = np.zeros((total, room), dtype=np.int64), np.zeros((total, room), dtype=np.float32)
        lengths, reasons = np.full(total, room), np.array(["length"] * total, dtype=object)
        advance = self._stepper(cache, room)
        for position in range(room):
            chosen, chosen_logprobs = self._next(logits, rows, sampling, position)
            # of rows that are closed too, behind their ends
            ids[rows.row, position] = tokens = chosen.cpu().numpy()
            logprobs[rows.row, position] = chosen_logprobs.cpu().numpy()
            ended = self._ended(rows, tokens, ids[:, : position + 1], reasons, sampling)
            if ended.any():
                lengths[rows.row[ended]] = position + 1
                rows.open &= ~ended
            if progress:
                progress(position + 1, room)
            if position + 1 == room or not rows.open.any():
                break
            going_on = self._leave(rows, chosen, cache)
            if len(going_on) < len(chosen):
                advance = self._stepper(cache, room)
            logits = advance(going_on)
            if keeps is not None and cache.tapped is not None:
                keeps.add(torch.from_numpy(rows.row), position, cache.tapped)
        found = [
            self._completion(ids[row, : lengths[row]], logprobs[row, : lengths[row]], reasons[row], sampling)
            for row in range(total)
        ]
        if keeps is not None:
            keeps.end(prompts, n, [reply.ids for reply in found])
        return found

    def _stepper(self, cache: Cache, room: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes logits out of the rows' new tokens; on a GPU a captured graph, where enough steps are left."""
        if self.graphs and room - cache.length >= GRAPH_STEPS:
            return GraphedStep(self.family, cache)
        return lambda tokens: step(self.family, tokens, cache)

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

    def _ended(
        self, rows: _Rows, chosen: np.ndarray, ids: np.ndarray, reasons: np.ndarray, sampling: Sampling
    ) -> np.ndarray:
        """[rows] bool: which open ones end with this token, the last of `ids`; notes why."""
        ended = np.zeros(len(chosen), dtype=bool)
        if sampling.ends_at_eos:
            for eos in self.eos:
                ended |= chosen == eos
            ended &= rows.open
            if ended.any():
                reasons[rows.row[ended]] = "eos"
        if sampling.stop:
            candidates = self._last_tokens_of(sampling.stop)[chosen]
            for place in np.flatnonzero(rows.open & ~ended & candidates):
                row = rows.row[place]
                if _first_stop(self._decode(ids[row]), sampling.stop) is not None:
                    reasons[row], ended[place] = "stop", True
        return ended

    def _last_tokens_of(self, stops: tuple[str, ...]) -> np.ndarray:
        """[vocabulary] bool: tokens whose text has the last character of a stop string, and all that are no text."""
        if stops not in self._ends_of_stops:
            size = self.model.get_output_embeddings().weight.shape[0]
            texts = self.tokenizer.batch_decode([[i] for i in range(size)])
            ends = {stop[-1] for stop in stops}
            mask = np.array([not ends.isdisjoint(text) or "\ufffd" in text for text in texts])
            self._ends_of_stops[stops] = mask
        return self._ends_of_stops[stops]

    def _leave(self, rows: _Rows, chosen: torch.Tensor, cache: Cache) -> torch.Tensor:
        """The tokens to go on with; once enough rows are closed, they and their caches are dropped."""
        share = GRAPHED_KEEP_SHARE if self.graphs else KEEP_SHARE
        if np.count_nonzero(rows.open) >= share * len(rows.open):
            return chosen
        grid = rows.open.reshape(-1, cache.replies)
        alive = grid.sum(1)
        most, prompts = int(alive.max()), np.flatnonzero(alive)
        # open rows first; a prompt with fewer than the others keeps some closed ones beside
        places = np.argsort(~grid[prompts], axis=1, kind="stable")[:, :most]
        kept = (prompts[:, None] * cache.replies + places).ravel()
        if len(kept) > share * len(rows.row):
            return chosen
        index = torch.from_numpy(kept).to(chosen.device)
        cache.keep(torch.from_numpy(prompts).to(chosen.device), index)
        rows.row, rows.open, rows.noise = rows.row[kept], rows.open[kept], rows.noise[index]
        rows.seen = None if rows.seen is None else rows.seen[index]
        return chosen[index]

    def _decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)

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

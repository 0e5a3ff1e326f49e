"""The replies of one batch while they are sampled; rows whose reply has ended leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.generation.protocol import Completion, FinishReason, Sampling
from lmgym.generation.token_sampling import penalise, sample_tokens, uniforms


@dataclass
class _Rows:
    """The replies that still advance, one a row."""

    reply: torch.Tensor
    """[rows] number of the reply in the batch"""
    noise: torch.Tensor
    """[rows, max_new_tokens] in [0, 1)"""
    seen: torch.Tensor | None
    """[rows, vocabulary] bool: tokens that the repetition penalty applies to"""
    open: np.ndarray
    """[rows] bool, on the host: had not ended at the last check"""


class ReplyBatch:
    """n replies to each of several prompts that start together. What is sampled stays on the device until they end."""

    def __init__(
        self,
        prompts: list[list[int]],
        numbers: list[int],
        seeds: np.ndarray,
        sampling: Sampling,
        tokenizer,
        eos: Sequence[int],
        may_stop: np.ndarray | None,
        logits: torch.Tensor,
    ) -> None:
        """`numbers` [prompts * n] are those of the replies in the request, `seeds` [replies] uint64 of all its replies.

        `may_stop` [vocabulary] bool: tokens that may complete a stop string. `logits` [prompts, vocabulary] after each
        prompt.
        """
        n = len(numbers) // len(prompts)
        self.prompts, self.numbers = prompts, numbers
        self.sampling, self.tokenizer, self.may_stop = sampling, tokenizer, may_stop
        self.logits = logits if n == 1 else logits.repeat_interleave(n, 0)
        """[rows, vocabulary] of the next token; set anew after each"""
        device, replies, length = logits.device, len(numbers), sampling.max_new_tokens
        noise = torch.from_numpy(uniforms(seeds[numbers][:, None], np.arange(length))).to(device)
        seen = None
        if sampling.repetition_penalty != 1:
            seen = torch.zeros(self.logits.shape, dtype=torch.bool, device=device)
            for i, prompt in enumerate(prompts):
                seen[i * n : (i + 1) * n, prompt] = True
        self.rows = _Rows(torch.arange(replies, device=device), noise, seen, np.ones(replies, dtype=bool))
        self.tokens, self.checked = 0, 0
        """of each reply: sampled, and of these seen by `close_ended`"""
        self.ids = torch.zeros(replies, length, dtype=torch.int64, device=device)
        """[replies, length]; tokens after the end of a reply are ignored"""
        self.logprobs = torch.zeros(replies, length, device=device)
        self.eos = torch.tensor(eos if sampling.ends_at_eos else [], dtype=torch.int64, device=device)
        self.has_eos = torch.zeros(replies, dtype=torch.bool, device=device)
        self.stopped: dict[int, int] = {}
        """lengths of the replies that ended with a stop string"""

    @property
    def is_full(self) -> bool:
        """True if the replies have as many tokens as they may have."""
        return self.tokens == self.sampling.max_new_tokens

    @property
    def last_ids(self) -> torch.Tensor:
        """[rows]: the last token of each."""
        return self.ids[self.rows.reply, self.tokens - 1]

    def sample(self) -> None:
        """The next token of each row, from `logits`."""
        rows, logits = self.rows, self.logits.float()
        penalised = logits if rows.seen is None else penalise(logits, rows.seen, self.sampling.repetition_penalty)
        ids, logprobs = sample_tokens(logits, penalised, self.sampling, rows.noise[:, self.tokens])
        if rows.seen is not None:
            rows.seen.scatter_(1, ids[:, None], True)
        self.ids[:, self.tokens].index_copy_(0, rows.reply, ids)
        self.logprobs[:, self.tokens].index_copy_(0, rows.reply, logprobs)
        if len(self.eos):
            ends = (ids[:, None] == self.eos).any(1)
            self.has_eos.index_copy_(0, rows.reply, self.has_eos[rows.reply] | ends)
        self.tokens += 1

    def close_ended(self) -> np.ndarray:
        """Close the rows whose reply has ended since the last call, or is full, and return them, by number. Waits for
        the device.
        """
        rows, first = self.rows, self.checked
        was_open, self.checked = rows.open, self.tokens
        rows.open = np.zeros_like(was_open) if self.is_full else was_open & ~self.has_eos[rows.reply].cpu().numpy()
        if self.may_stop is not None:
            self._close_stopped(was_open, first)
        return np.flatnonzero(was_open & ~rows.open)

    def _close_stopped(self, was_open: np.ndarray, first: int) -> None:
        """Close the rows whose tokens from the first of these places on have made a stop string."""
        rows = self.rows
        assert self.may_stop is not None
        may_stop = self.may_stop[self.ids[rows.reply, first : self.tokens].cpu().numpy()]
        for row in np.flatnonzero(was_open & may_stop.any(1)):
            reply = int(rows.reply[row])
            if end := self._stop(self.ids[reply, : self.tokens].cpu().numpy(), first + np.flatnonzero(may_stop[row])):
                self.stopped[reply] = end
                rows.open[row] = False

    def _stop(self, ids: np.ndarray, places: np.ndarray) -> int:
        """The length up to the first of these places by which a stop string is there, before any eos; 0: none."""
        eos = np.flatnonzero(np.isin(ids, self.eos.cpu().numpy()))
        ends = (int(place) + 1 for place in places if not len(eos) or place < eos[0])
        return next((end for end in ends if self.sampling.find_stop(self._decode(ids[:end])) is not None), 0)

    def read_ids(self, row: int) -> list[int]:
        """The ids of a row that the model has read: its prompt, and all sampled ids but the last."""
        reply = int(self.rows.reply[row])
        prompt = self.prompts[reply * len(self.prompts) // len(self.numbers)]
        return [*prompt, *self.ids[reply, : self.tokens - 1].tolist()]

    def drop_closed(self) -> None:
        """Forget the rows that are closed; their replies stay."""
        rows, kept = self.rows, np.flatnonzero(self.rows.open)
        index = torch.from_numpy(kept).to(rows.reply.device)
        seen = None if rows.seen is None else rows.seen[index]
        self.rows = _Rows(rows.reply[index], rows.noise[index], seen, rows.open[kept])

    def completions(self) -> list[Completion]:
        """The replies, in order, up to the end of each."""
        ids, logprobs = (part[:, : self.tokens].cpu().numpy() for part in (self.ids, self.logprobs))
        is_eos = np.isin(ids, self.eos.cpu().numpy())
        completions = []
        for reply, ends in enumerate(is_eos):
            reason: FinishReason = "eos" if ends.any() else "length"
            length = int(ends.argmax()) + 1 if ends.any() else self.tokens
            if reply in self.stopped:  # an eos after the stop string is not part of the reply
                reason, length = "stop", self.stopped[reply]
            sampled = ids[reply, :length]
            text = self._decode(sampled[:-1] if reason == "eos" else sampled)
            text = text[: self.sampling.find_stop(text)]
            completions.append(
                Completion(text, reason, tuple(sampled.tolist()), tuple(logprobs[reply, :length].tolist()), length)
            )
        return completions

    def _decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)

"""The replies of one batch while they are sampled; rows whose reply has ended leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.generation.protocol import Completion, FinishReason, Sampling
from lmgym.generation.steps import Steps
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
    """n replies to each of several prompts. What is sampled stays on the device until the batch ends."""

    def __init__(
        self,
        prompts: list[list[int]],
        seeds: np.ndarray,
        n: int,
        sampling: Sampling,
        tokenizer,
        eos: Sequence[int],
        may_stop: np.ndarray | None,
        logits: torch.Tensor,
    ) -> None:
        """`may_stop` [vocabulary] bool: tokens that may complete a stop string. `logits` [prompts * n, vocabulary],
        `seeds` [prompts * n] uint64.
        """
        self.sampling, self.tokenizer, self.may_stop = sampling, tokenizer, may_stop
        device, replies, length = logits.device, len(prompts) * n, sampling.max_new_tokens
        noise = torch.from_numpy(uniforms(seeds[:, None], np.arange(length))).to(device)
        seen = None
        if sampling.repetition_penalty != 1:
            seen = torch.zeros(logits.shape, dtype=torch.bool, device=device)
            for i, prompt in enumerate(prompts):
                seen[i * n : (i + 1) * n, prompt] = True
        self.rows = _Rows(torch.arange(replies, device=device), noise, seen, np.ones(replies, dtype=bool))
        self.ids = torch.zeros(replies, length, dtype=torch.int64, device=device)
        """[replies, length]; tokens after the end of a reply are ignored"""
        self.logprobs = torch.zeros(replies, length, device=device)
        self.eos = torch.tensor(eos if sampling.ends_at_eos else [], dtype=torch.int64, device=device)
        self.has_eos = torch.zeros(replies, dtype=torch.bool, device=device)
        self.stopped: dict[int, int] = {}
        """lengths of the replies that ended with a stop string"""

    def sample(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """The next token [rows] of each row, at this position in its reply, from logits [rows, vocabulary]."""
        rows, logits = self.rows, logits.float()
        penalised = logits if rows.seen is None else penalise(logits, rows.seen, self.sampling.repetition_penalty)
        ids, logprobs = sample_tokens(logits, penalised, self.sampling, rows.noise[:, position])
        if rows.seen is not None:
            rows.seen.scatter_(1, ids[:, None], True)
        self.ids[:, position].index_copy_(0, rows.reply, ids)
        self.logprobs[:, position].index_copy_(0, rows.reply, logprobs)
        if len(self.eos):
            ends = (ids[:, None] == self.eos).any(1)
            self.has_eos.index_copy_(0, rows.reply, self.has_eos[rows.reply] | ends)
        return ids

    def close_ended(self, position: int, tokens: int = 1) -> None:
        """Close the rows whose reply has ended by one of the last `tokens` tokens, up to this position. Waits for the
        device.
        """
        rows, was_open = self.rows, self.rows.open
        rows.open = was_open & ~self.has_eos[rows.reply].cpu().numpy()
        if self.may_stop is None:
            return
        first = position + 1 - tokens
        may_stop = self.may_stop[self.ids[rows.reply, first : position + 1].cpu().numpy()]
        for row in np.flatnonzero(was_open & may_stop.any(1)):
            reply = int(rows.reply[row])
            if end := self._stop(self.ids[reply, : position + 1].cpu().numpy(), first + np.flatnonzero(may_stop[row])):
                self.stopped[reply] = end
                rows.open[row] = False

    def _stop(self, ids: np.ndarray, places: np.ndarray) -> int:
        """The length up to the first of these places by which a stop string is there, before any eos; 0: none."""
        eos = np.flatnonzero(np.isin(ids, self.eos.cpu().numpy()))
        ends = (int(place) + 1 for place in places if not len(eos) or place < eos[0])
        return next((end for end in ends if self.sampling.find_stop(self._decode(ids[:end])) is not None), 0)

    def drop_closed(self, steps: Steps, ids: torch.Tensor) -> torch.Tensor:
        """Drop closed rows and their cache if few enough are open. Returns the ids of the rows that remain."""
        rows, is_open = self.rows, self.rows.open
        if np.count_nonzero(is_open) >= steps.keep_share * len(is_open):
            return ids
        by_prompt = is_open.reshape(-1, steps.replies)
        open_replies = by_prompt.sum(1)
        prompts = np.flatnonzero(open_replies)
        # every prompt keeps as many rows as the one with most open ones: its open rows first, then closed ones
        places = np.argsort(~by_prompt[prompts], axis=1, kind="stable")[:, : int(open_replies.max())]
        kept = (prompts[:, None] * steps.replies + places).ravel()
        if len(kept) > steps.keep_share * len(is_open):
            return ids
        index = torch.from_numpy(kept).to(ids.device)
        steps.keep(torch.from_numpy(prompts).to(ids.device), index)
        seen = None if rows.seen is None else rows.seen[index]
        self.rows = _Rows(rows.reply[index], rows.noise[index], seen, is_open[kept])
        return ids[index]

    def completions(self, tokens: int) -> list[Completion]:
        """The replies from the first `tokens` tokens of each, up to its end."""
        ids, logprobs = (part[:, :tokens].cpu().numpy() for part in (self.ids, self.logprobs))
        is_eos = np.isin(ids, self.eos.cpu().numpy())
        completions = []
        for reply, ends in enumerate(is_eos):
            reason: FinishReason = "eos" if ends.any() else "length"
            length = int(ends.argmax()) + 1 if ends.any() else tokens
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

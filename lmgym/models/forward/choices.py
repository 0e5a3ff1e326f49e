"""A policy over listed actions: from log-probabilities of tokens to those of candidate replies, one of which is chosen.

Design decisions:
- A candidate is a reply with its end of turn, so that none is the beginning of another.
- Its score is the sum of its tokens' log-probabilities (Carta et al. 2023), or that sum divided by its tokens or words
  (Tan et al. 2024). The policy is the softmax of the scores over the temperature.
- A choice is one packed row: the prompt once, and each candidate as a segment that continues it
  (`lmgym.models.forward.packed_rows.pack_choices`). To losses it is what a sampled token is: one log-probability, one
  value, read at the prompt's last token, and one entropy, which is exact.
- Choices after the same prompt among the same candidates are of one row: those of a group's episodes, at their start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Choices:
    """C choices in R rows of up to K candidates, of up to L tokens; M tokens in all."""

    places: torch.Tensor
    """[M] int64: of each token in [R, K, L], flat"""
    divisors: torch.Tensor
    """[R, K] float32: of each candidate's sum; 0 where there is no candidate"""
    rows: torch.Tensor
    """[C] int64: the row of each choice"""
    chosen: torch.Tensor
    """[C] int64: numbers of the chosen candidates"""
    prompts: torch.Tensor
    """[C] int64: index, among the M places that are read, of each prompt's last token"""
    longest: int
    """L"""

    @staticmethod
    def of(
        lengths: Sequence[Sequence[int]],
        divisors: Sequence[Sequence[float]],
        rows: Sequence[int],
        chosen: Sequence[int],
    ) -> "Choices":
        """From the tokens and the divisor of each row's candidates, and the row and the candidate of each choice."""
        width, longest = max(map(len, lengths)), max(map(max, lengths))
        table = torch.zeros(len(lengths), width)
        for row, own in zip(table, divisors, strict=True):
            row[: len(own)] = torch.tensor(own)
        first = [np.arange(len(own)) + row * width for row, own in enumerate(lengths)]
        tokens = np.concatenate([np.asarray(own) for own in lengths])
        starts = np.cumsum(tokens) - tokens
        within = np.arange(tokens.sum()) - np.repeat(starts, tokens)
        places = np.repeat(np.concatenate(first) * longest, tokens) + within
        first_read, of_choice = np.cumsum([0, *map(sum, lengths[:-1])]), np.asarray(rows)
        prompts = torch.from_numpy(first_read[of_choice])
        return Choices(
            torch.from_numpy(places), table, torch.from_numpy(of_choice), torch.tensor(chosen), prompts, longest
        )

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Choices":
        """The same with `function` of each tensor."""
        tensors = self.places, self.divisors, self.rows, self.chosen, self.prompts
        places, divisors, rows, chosen, prompts = map(function, tensors)
        return Choices(places, divisors, rows, chosen, prompts, self.longest)

    def scores(self, logprobs: torch.Tensor) -> torch.Tensor:
        """[R, K] of the candidates from log-probabilities [M] of their tokens; -inf where there is no candidate."""
        flat = logprobs.new_zeros(self.divisors.numel() * self.longest).index_copy(0, self.places, logprobs)
        sums = flat.view(*self.divisors.shape, self.longest).sum(-1)
        return (sums / self.divisors.clamp(min=1)).masked_fill(self.divisors == 0, -torch.inf)

    def logprobs_and_entropies(
        self, logprobs: torch.Tensor, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [C] of what is chosen, and entropies [C] in nats, from those [M] of tokens."""
        of_candidates = (self.scores(logprobs) / (temperature or 1.0)).log_softmax(-1)
        entropies = -(of_candidates.exp() * of_candidates.clamp(min=-1e9)).sum(-1)  # 0 times -inf would be NaN
        return of_candidates[self.rows, self.chosen], entropies[self.rows]

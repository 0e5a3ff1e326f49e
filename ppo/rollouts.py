"""What was sampled, ragged and flat: a row a turn of the policy's, a number a token that it sampled.

Design decisions:
- A row is a prompt as the policy saw it and the ids that it sampled after it, which are never tokenised again. A later
  turn of an episode is a row of its own: its prompt is rendered as in deployment.
- Numbers a token (`[M]`) lie in the order of rows, and rows in that of episodes: an episode's tokens are a slice, and
  advantages are carried from a turn to the one before.
- An episode of which a reward could not be had is not kept: none of its tokens has loss, and none a reward of 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from lmgym.environments.protocol import Task
from lmgym.environments.rollout_engine import Episode


@dataclass
class Rollouts:
    """R rows of E episodes with M sampled tokens. What is computed of them is filled in later."""

    rows: list[list[int]]
    """ids of prompt and reply"""
    counts: np.ndarray
    """[R] int64: sampled tokens"""
    episode_of_row: np.ndarray
    """[R] int64"""
    sampler_logprobs: torch.Tensor
    """[M]"""
    scores: torch.Tensor
    """[M]: what was earned, on the token that it lands on"""
    kept: np.ndarray
    """[E] bool: the rewards of all turns are known"""
    final_rows: list[list[int]] = field(default_factory=list)
    """what truncated episodes would have shown next"""
    final_episodes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    logprobs: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    reference_logprobs: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    values: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    bootstrap: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """[E]: values of what truncated episodes would have shown next, 0 for others"""
    advantages: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    returns: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    states: list[torch.Tensor] | None = None
    """[tokens, W] a row: of the frozen layers"""
    forward: tuple[torch.Tensor, torch.Tensor] | None = None
    """log-probabilities and values [M] with their graph, where the first update trains on all rows at once"""

    @cached_property
    def firsts(self) -> np.ndarray:
        """[R + 1] int64: where each row's tokens begin among the M."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def episodes(self) -> int:
        """E."""
        return len(self.kept)

    @cached_property
    def tokens_of_episode(self) -> np.ndarray:
        """[E] int64."""
        return np.bincount(self.episode_of_row, weights=self.counts, minlength=self.episodes).astype(np.int64)

    @cached_property
    def mask(self) -> torch.Tensor:
        """[E, T] bool: an episode's sampled tokens, side by side on the left."""
        return torch.from_numpy(np.arange(max(1, int(self.tokens_of_episode.max()))) < self.tokens_of_episode[:, None])

    @cached_property
    def trained(self) -> torch.Tensor:
        """[M] bool: tokens that have loss."""
        return torch.from_numpy(np.repeat(self.kept[self.episode_of_row], self.counts))

    def padded(self, flat: torch.Tensor) -> torch.Tensor:
        """[M] as [E, T]."""
        return flat.new_zeros(self.mask.shape).masked_scatter_(self.mask, flat)

    def flat(self, padded: torch.Tensor) -> torch.Tensor:
        """[E, T] as [M]."""
        return padded[self.mask]

    def targets(self, rows: np.ndarray) -> torch.Tensor:
        """The sampled ids of some rows, end to end."""
        ids = [id_ for i in rows for id_ in self.rows[i][len(self.rows[i]) - self.counts[i] :]]
        return torch.tensor(ids, dtype=torch.int64)

    def places(self, rows: np.ndarray) -> torch.Tensor:
        """Which of the M tokens are those of some rows, end to end."""
        if not len(rows):
            return torch.zeros(0, dtype=torch.int64)
        counts = self.counts[rows]
        starts = np.repeat(self.firsts[rows] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        return torch.from_numpy(starts + np.arange(counts.sum()))


def gather(
    episodes: Sequence[Episode], missing_eos_penalty: float = 0.0, clip: float = float("inf"), scale: float = 1.0
) -> Rollouts:
    """Rollouts out of episodes, in their order. A reply's number lands on its last token, dense ones on each.

    Rewards beyond +- `clip` are cut; the penalty comes off those of replies that did not end by themselves; what is
    left is multiplied by `scale`.
    """
    steps = [(e, step) for e, episode in enumerate(episodes) for step in episode.steps]
    counts = np.array([len(step.completion.ids) for _, step in steps], dtype=np.int64)
    kept = np.array([all(s.reward is not None for s in episode.steps) for episode in episodes], dtype=bool)
    scores = np.zeros(int(counts.sum()), dtype=np.float64)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    for i, (_, step) in enumerate(steps):
        own = slice(firsts[i], firsts[i + 1])
        if isinstance(step.reward, tuple):
            scores[own] = step.reward
        elif step.reward is not None:
            scores[firsts[i + 1] - 1] = step.reward
    np.clip(scores, -clip, clip, out=scores)
    unended = np.array([step.completion.finish_reason == "length" for _, step in steps], dtype=bool)
    scores[firsts[1:][unended] - 1] -= missing_eos_penalty
    scores *= scale
    finals = [(e, episode.final_prompt) for e, episode in enumerate(episodes) if episode.final_prompt]
    return Rollouts(
        rows=[[*step.prompt, *step.completion.ids] for _, step in steps],
        counts=counts,
        episode_of_row=np.array([e for e, _ in steps], dtype=np.int64),
        sampler_logprobs=torch.tensor([x for _, step in steps for x in step.completion.logprobs], dtype=torch.float32),
        scores=torch.from_numpy(scores).float(),
        kept=kept,
        final_rows=[list(ids) for _, ids in finals],
        final_episodes=np.array([e for e, _ in finals], dtype=np.int64),
    )


def similar_batches(lengths: Sequence[int], size: int, batches: int = 0) -> list[np.ndarray]:
    """Indices sorted by length, `size` at a time, longest first; then empty ones up to `batches`.

    Ranks whose forwards are collective need as many batches as the rank that has most.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    found = [order[first : first + size] for first in range(0, len(order), size)]
    return found + [order[:0]] * (batches - len(found))


def minibatches(
    episodes: int, batch: int, rank: int, ranks: int, chance: Sequence[int]
) -> list[np.ndarray]:  # fmt: skip
    """A fresh order of a rank's episodes, `batch / ranks` at a time; of `batch` together over all ranks.

    Episode i of rank r is number i * ranks + r of all. Each number modulo `batch` is drawn once a minibatch, so that
    minibatches hold the same episodes however many ranks share them. `chance` seeds the order.
    """
    columns, slots = batch // ranks, episodes * ranks // batch
    orders = np.stack(
        [np.random.default_rng([*chance, column * ranks + rank]).permutation(slots) for column in range(columns)]
    )
    return [orders[:, slot] * columns + np.arange(columns) for slot in range(slots)]


def tasks_of_iteration(tasks: Sequence[Task], number: int, iteration: int, seed: int) -> list[int]:
    """Which tasks an iteration plays: the next `number` of an endless series of fresh permutations."""
    first = iteration * number
    found: list[int] = []
    order = np.zeros(0, dtype=np.int64)
    for place in range(first, first + number):
        epoch, within = divmod(place, len(tasks))
        if not found or within == 0:
            order = np.random.default_rng([seed, epoch]).permutation(len(tasks))
        found.append(int(order[within]))
    return found

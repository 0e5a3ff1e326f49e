"""Best-of-n as a generator."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmgym.generation.protocol import Completion, Generator, Progress, Sampling
from lmgym.scoring.protocol import Scorer, text_for
from lmgym.text import Conversation


@dataclass(frozen=True)
class BestOfN:
    """A generator that samples n replies from another and returns the one with the highest score.

    Log-probabilities are the sampler's, not those of best-of-n.
    """

    generator: Generator
    scorer: Scorer
    n: int

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, each the best of `self.n` samples."""
        samples = self.generator.reply(conversations, n * self.n, sampling, progress)
        repeated = [c for c, replies in zip(conversations, samples, strict=True) for _ in replies]
        texts = [text_for(self.scorer, reply.text) for replies in samples for reply in replies]
        scores = self.scorer.score(repeated, texts)
        best = np.asarray(scores).reshape(len(conversations), n, self.n).argmax(-1).tolist()
        return [
            [replies[group * self.n + place] for group, place in enumerate(places)]
            for replies, places in zip(samples, best, strict=True)
        ]

"""A baseline scorer, without torch so that a session with it starts at once."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmgym.text import Conversation


@dataclass(frozen=True)
class RandomScorer:
    """Uniform scores in [0, 1), a function of seed, conversation and reply, whatever the batch."""

    seed: int = 0

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> np.ndarray:
        """float32 [replies]."""
        keys = [f"{self.seed}\0{c!r}\0{r}" for c, r in zip(conversations, replies, strict=True)]
        return np.array([random.Random(key).random() for key in keys], dtype=np.float32)

"""Episodes of named environments, recorded from a session, to be compared with those that other libraries play."""

from dataclasses import dataclass

import numpy as np

from lmgym.environments.named import TRAIN, load_environment
from lmgym.environments.session import Session

EXPORTED = ("games:blackjack", "arithmetic:+-", "world:1", "debate:letters", "dialogue:taboo/guesser")
"""one of each kind"""
SAYINGS = (
    "GUESS: cat", "GUESS: river", "l l l, will all", "7", "The answer is 12", "hello there", "GUESS: two words", "stick"
)  # fmt: skip
MOST_TURNS = 6


@dataclass(frozen=True)
class Recorded:
    """An episode: what the agent read, said and earned, turn by turn."""

    index: int
    texts: list[str]
    replies: list[str]
    rewards: list[float]
    info: dict[str, float]
    ended: bool
    """False if it was left after MOST_TURNS"""


def record(words: str, number: int, split: str = TRAIN) -> list[Recorded]:
    """So many episodes of a split, with replies that are drawn from the listed actions, or from SAYINGS."""
    found, chance = [], np.random.default_rng(0)
    with Session(load_environment(words)) as session:
        for index in range(number):
            seen = session.reset(*session.named.episode(split, index))
            texts, replies, rewards = [seen.text], list[str](), list[float]()
            while not seen.ended and len(replies) < MOST_TURNS:
                assert seen.observation is not None
                replies.append(str(chance.choice(seen.observation.actions or SAYINGS)))
                seen = session.reply(replies[-1])
                rewards.append(seen.reward)
                texts.append(seen.text)
            found.append(Recorded(index, texts, replies, rewards, dict(seen.info), seen.ended))
    return found

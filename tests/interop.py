"""Episodes of named environments, recorded from a session, to be compared with those that other libraries play."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmgym.environments.named import TRAIN, NamedEnvironment, load_environment
from lmgym.environments.protocol import Task
from lmgym.environments.session import Seen, Session
from lmgym.text import messages

EXPORTED = ("games:blackjack", "arithmetic:+-", "world:1", "debate:letters", "dialogue:taboo/guesser")
"""one of each kind"""
SAYINGS = (
    "GUESS: cat",
    "GUESS: two words",
    "CLUE: an animal",
    "l l l",
    "7",
    "It is 12",
    "hello, tell me more",
    "stick",
)
"""of which some are right somewhere"""


def play(named: NamedEnvironment, tasks: Sequence[Task], seeds: Sequence[int]) -> list[list[tuple[str, Seen]]]:
    """Of each episode (the reply, what was seen after it), the first without a reply.

    Replies are drawn from the listed actions, or from SAYINGS.
    """
    episodes = []
    with Session(named) as session:
        for number, (task, seed) in enumerate(zip(tasks, seeds, strict=True)):
            chance = np.random.default_rng(number)
            steps = [("", session.reset(task, seed))]
            while (observation := steps[-1][1].observation) is not None and not steps[-1][1].ended:
                reply = str(chance.choice(observation.actions or SAYINGS))
                steps.append((reply, session.reply(reply)))
            episodes.append(steps)
    return episodes


@dataclass(frozen=True)
class Recorded:
    """An episode: what the agent read, said and earned, turn by turn."""

    index: int
    texts: list[str]
    replies: list[str]
    rewards: list[float]
    info: dict[str, float]


def record(words: str, number: int, split: str = TRAIN) -> list[Recorded]:
    """So many episodes of a split."""
    named = load_environment(words)
    chosen = [named.episode(split, index) for index in range(number)]
    found = []
    for index, steps in enumerate(play(named, [task for task, _ in chosen], [seed for _, seed in chosen])):
        said = steps[1:]
        texts = [seen.text for _, seen in steps]
        rewards = [seen.reward for _, seen in said]
        found.append(Recorded(index, texts, [reply for reply, _ in said], rewards, dict(said[-1][1].info)))
    return found


def as_sent(seen: Seen, is_first: bool) -> dict[str, Any]:
    """The message of an OpenEnv server of ours for it."""
    chat = messages(seen.observation.conversation) if seen.observation else []
    actions = list(seen.observation.actions) if seen.observation else []
    info = dict(seen.info) | ({"truncated": float(not seen.terminated)} if seen.ended else {})
    fields = {"text": seen.text, "messages": chat, "actions": actions, "metadata": info}
    return {"observation": fields, "reward": None if is_first else seen.reward, "done": seen.ended}

"""Recorded episodes of sessions: what each reply gave, to compare other ways to play them with."""

from typing import Any

import numpy as np

from lmgym.environments.named import NamedEnvironment
from lmgym.environments.protocol import Task
from lmgym.environments.session import Seen, Session

FIVE = ("games:blackjack", "world:1", "debate:letters", "dialogue:taboo/guesser", "arithmetic:+-")
WORDS = ("GUESS: cat", "l l l", "7", "hello, tell me more about music", "CLUE: an animal")


def record(named: NamedEnvironment, tasks: list[Task], seeds: list[int]) -> list[list[tuple[str, Seen]]]:
    """Of each episode (the reply, what was seen after it); the first of these without a reply.

    Replies are drawn: a listed action, or words of which some are right somewhere.
    """
    episodes = []
    with Session(named) as session:
        for task, seed in zip(tasks, seeds, strict=True):
            rng = np.random.default_rng([7, seed])
            steps = [("", session.reset(task, seed))]
            while not steps[-1][1].ended:
                listed = steps[-1][1].observation.actions or WORDS
                reply = str(listed[int(rng.integers(len(listed)))])
                steps.append((reply, session.reply(reply)))
            episodes.append(steps)
    return episodes


def as_sent(seen: Seen, is_first: bool) -> dict[str, Any]:
    """What an OpenEnv server of ours sends for it."""
    from lmgym.text import messages

    chat = messages(seen.observation.conversation) if seen.observation else []
    actions = list(seen.observation.actions) if seen.observation else []
    info = dict(seen.info) | ({"truncated": float(not seen.terminated)} if seen.ended else {})
    fields = {"text": seen.text, "messages": chat, "actions": actions, "metadata": info}
    return {"observation": fields, "reward": None if is_first else seen.reward, "done": seen.ended}

"""The arena: two policies answer, a person votes without knowing whose reply is whose, and the votes are rated."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmgym.apps.chat.exchanges import Exchange
from lmgym.generation.context_fitting import reply_within
from lmgym.generation.protocol import Completion, Generator, Progress, Sampling
from lmgym.scoring.ratings import Game, rate
from lmgym.statistics import Estimate, notes, share
from lmgym.text import Conversation

SIDES = 2
EXPERIMENT = "arena"
"""of the header and the name of a session's file"""


@dataclass(frozen=True)
class SideBySide:
    """A generator that asks each policy for its replies, in the policy's own sampling with the seed of the request."""

    policies: Mapping[str, Generator]
    samplings: Mapping[str, Sampling]

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, of the policies in turn."""
        each, found = n // len(self.policies), []
        for conversation in conversations:
            replies = [
                reply_within(policy, conversation, each, replace(self.samplings[name], seed=sampling.seed), progress)[0]
                for name, policy in self.policies.items()
            ]
            found.append([reply for round in zip(*replies, strict=True) for reply in round])
        return found


def draw(policies: Mapping[str, Generator], samplings: Mapping[str, Sampling]) -> SideBySide:
    """Two of the policies. Unlike a seed, the system's randomness cannot be reconstructed by who votes."""
    names = random.SystemRandom().sample(list(policies), SIDES)
    return SideBySide({name: policies[name] for name in names}, {name: samplings[name] for name in names})


def vote_of(exchange: Exchange) -> Game | None:
    """The vote of an exchange between two policies; None if there is none, or if it was made with the names in view.

    As in Chatbot Arena (Chiang et al. 2024), "none is good" counts as a tie.
    """
    first, *others = [candidate.policy for candidate in exchange.candidates]
    pick = exchange.human_pick
    if len(others) != 1 or not first or first == others[0] or exchange.scores_visible or pick in (None, "written"):
        return None
    return Game(first, others[0], 0.5 if isinstance(pick, str) else 1.0 - float(pick or 0))


def results(votes: Iterable[Game]) -> dict[str, Any]:
    """{"policies": a row for each with its share of points and its rating, the strongest first; "votes"; "notes"}."""
    games = list(votes)
    if not games:
        return {"policies": [], "votes": 0, "notes": []}
    rows, estimates = [], []
    for rating in rate(games):
        points = [game.score if game.first == rating.player else 1 - game.score for game in _of(rating.player, games)]
        points_share = share(points)
        estimates += [points_share, rating.elo]
        counts = {name: points.count(value) for name, value in (("wins", 1.0), ("ties", 0.5), ("losses", 0.0))}
        rows.append(
            {"policy": rating.player, "votes": len(points), **counts}
            | {"share": _numbers(points_share), "rating": _numbers(rating.elo)}
        )
    return {"policies": rows, "votes": len(games), "notes": notes(estimates, "vote")}


def _of(player: str, games: Iterable[Game]) -> list[Game]:
    return [game for game in games if player in (game.first, game.second)]


def _numbers(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}

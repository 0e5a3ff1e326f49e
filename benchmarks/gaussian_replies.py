"""Replies without texts, for the statistics of A/B tests."""

from dataclasses import dataclass

from lmgym.apps.world.days import Moment
from lmgym.apps.world.streams import Population
from lmgym.apps.world.users import Floats, Reaction


@dataclass(frozen=True)
class GaussianReplies:
    """A ConversationDriver without texts: normally distributed utilities, for tests of statistics."""

    population: Population
    mean: float = 0.0
    spread: float = 1.0
    seed: int = 0

    def open(self, at: Moment) -> None:
        """No text to make."""

    def answer(self, at: Moment) -> Floats:
        """Utilities[n], drawn from the policy's random numbers."""
        chance = self.population.moments("policy", at.who, at.day, at.message, at.attempt, self.seed)
        return self.mean + self.spread * chance.standard_normal(len(at.who))

    def record(self, at: Moment, utilities: Floats, reaction: Reaction) -> None:
        """Nothing to record."""

    def advance(self, at: Moment) -> None:
        """No text to make."""

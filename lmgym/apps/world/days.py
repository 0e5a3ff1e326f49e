"""Users through their days: they open conversations, read replies, retry, continue, leave and come back.

Design decisions:
- Users behave as in the logged world (`users.py`), but for more days, and every day is complete.
- Users do not wait for each other: each has a current day, and all open conversations get their next reply at once. So
  a policy gets requests of a thousand conversations while a thousand users have days left.
- A `ConversationDriver` supplies the texts and their utility: without texts, a million users take seconds.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmgym.apps.world import users as behaviour
from lmgym.apps.world.streams import Ints, Population
from lmgym.apps.world.users import Floats, Noise, Reaction
from lmgym.generation.protocol import Progress


@dataclass(frozen=True)
class Moment:
    """The current point of some users: their places in the population, and the day, message and attempt of each."""

    who: Ints
    day: Ints
    message: Ints
    attempt: Ints


class ConversationDriver(Protocol):
    """Supplies the texts of conversations, of which each user has one at a time."""

    def open(self, at: Moment) -> None:
        """Starts a conversation of each user with the user's first message."""
        ...

    def answer(self, at: Moment) -> Floats:
        """Generates the bot's reply to each user; returns its utility[n] for that user."""
        ...

    def record(self, at: Moment, utilities: Floats, reaction: Reaction) -> None:
        """Records what the users did after the replies."""
        ...

    def advance(self, at: Moment) -> None:
        """Adds the last reply and the user's next message to each conversation."""
        ...


@dataclass(frozen=True)
class UserActivity:
    """messages[users, days] of the users (0 on days without a visit), replies[users] seen and retries[users]."""

    messages: Ints
    replies: Ints
    retries: Ints


class _State:
    """The current state of every user."""

    def __init__(self, n: int) -> None:
        self.day, self.message, self.attempt, self.seen = (np.zeros(n, dtype=np.int64) for _ in range(4))
        self.satisfaction, self.utility = np.zeros(n), np.zeros(n)
        self.talking = np.zeros(n, dtype=np.bool_)

    def at(self, who: Ints) -> Moment:
        return Moment(who, self.day[who], self.message[who], self.attempt[who])


def simulate_users(
    population: Population, days: int, driver: ConversationDriver, noise: Noise, progress: Progress = lambda *_: None
) -> UserActivity:
    """Every user's days, from the first conversation on day 0.

    `progress` is called with the days that users have completed and the number of all.
    """
    n = len(population.users)
    state = _State(n)
    activity = UserActivity(np.zeros((n, days), np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))
    _open(state, np.arange(n), driver)
    while True:
        away = np.flatnonzero(~state.talking & (state.day < days - 1))
        if len(away):
            state.day[away] += 1
            chance = population.moments("return", away, state.day[away])
            users, satisfaction = population.users.take(away), state.satisfaction[away]
            stays = behaviour.stays(chance, users, satisfaction, noise)
            back = behaviour.comes_back(chance, users, satisfaction, noise)
            state.day[away[~stays]] = days - 1
            _open(state, away[stays & back], driver)
        talking = np.flatnonzero(state.talking)
        if len(talking):
            _exchange(state, activity, population, talking, driver, noise)
        elif not len(away):
            return activity
        progress(int(state.day.sum() + (~state.talking).sum()), n * days)


def _open(state: _State, who: Ints, driver: ConversationDriver) -> None:
    if len(who):
        state.talking[who], state.message[who], state.attempt[who] = True, 1, 0
        state.seen[who], state.utility[who] = 0, 0.0
        driver.open(state.at(who))


def _exchange(
    state: _State, activity: UserActivity, population: Population, who: Ints, driver: ConversationDriver, noise: Noise
) -> None:
    """One reply to each open conversation, and the user's reaction."""
    at = state.at(who)
    utilities = driver.answer(at)
    chance = population.moments("reaction", who, at.day, at.message, at.attempt)
    reaction = behaviour.react(chance, population.users.take(who), utilities, at.message, at.attempt, noise)
    driver.record(at, utilities, reaction)
    activity.replies[who] += reaction.shown
    activity.retries[who] += reaction.retried
    state.seen[who] += reaction.shown
    state.utility[who] += np.where(reaction.shown, utilities, 0.0)
    again = reaction.retried | ~reaction.shown
    state.attempt[who] += again
    continuing = who[~again & ~reaction.ended]
    state.message[continuing] += 1
    state.attempt[continuing] = 0
    if len(continuing):
        driver.advance(state.at(continuing))
    leaving = who[reaction.ended]
    activity.messages[leaving, state.day[leaving]] = state.message[leaving]
    mean = state.utility[leaving] / np.maximum(1, state.seen[leaving])
    state.satisfaction[leaving] += noise.memory * (mean - state.satisfaction[leaving])
    state.talking[leaving] = False

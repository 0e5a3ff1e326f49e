"""Users through their days: who opens a conversation, reads a reply, asks again, goes on, leaves, and comes back.

Design decisions:
- What users do is the world's own (`users.py`); here it only goes on for longer, and every day is lived to its end.
- Users wait for nobody: each is in a day of their own, and all open conversations get their next reply at once. So a
  policy is asked for a thousand replies while there are a thousand users who have not seen all of their days.
- A `ConversationDriver` decides the texts and their utility: without texts, a million users take seconds.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmgym.world import users as behaviour
from lmgym.world.streams import Ints, Population
from lmgym.world.users import Floats, Noise, Reaction


@dataclass(frozen=True)
class Moment:
    """Where some users are: their places in the population, and the day, message and try of each."""

    who: Ints
    day: Ints
    message: Ints
    attempt: Ints


class ConversationDriver(Protocol):
    """What is said in conversations, of which a user has one at a time."""

    def open(self, at: Moment) -> None:
        """These users write the first message of a conversation."""
        ...

    def answer(self, at: Moment) -> Floats:
        """The bot replies to each; what each reply is worth to its user."""
        ...

    def note(self, at: Moment, worth: Floats, reaction: Reaction) -> None:
        """What they did about it."""
        ...

    def go_on(self, at: Moment) -> None:
        """These users take the last reply and write their next message."""
        ...


@dataclass(frozen=True)
class UserActivity:
    """What users did: messages[users, days] (0 where they did not come), replies[users] seen and retries[users]."""

    messages: Ints
    replies: Ints
    retries: Ints


class _State:
    """Where every user stands."""

    def __init__(self, n: int) -> None:
        self.day, self.message, self.attempt, self.seen = (np.zeros(n, dtype=np.int64) for _ in range(4))
        self.satisfaction, self.worth = np.zeros(n), np.zeros(n)
        self.talking = np.zeros(n, dtype=np.bool_)

    def at(self, who: Ints) -> Moment:
        return Moment(who, self.day[who], self.message[who], self.attempt[who])


def simulate_users(population: Population, days: int, talk: ConversationDriver, noise: Noise) -> UserActivity:
    """Every user's days from their first conversation on, which is on day 0."""
    n = len(population.users)
    state, lives = _State(n), UserActivity(np.zeros((n, days), np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))
    _start(state, np.arange(n), talk)
    while True:
        away = np.flatnonzero(~state.talking & (state.day < days - 1))
        if len(away):
            state.day[away] += 1
            chance = population.moments("return", away, state.day[away])
            back = behaviour.comes_back(chance, population.users.take(away), state.satisfaction[away], noise)
            _start(state, away[back], talk)
        talking = np.flatnonzero(state.talking)
        if len(talking):
            _exchange(state, lives, population, talking, talk, noise)
        elif not len(away):
            return lives


def _start(state: _State, who: Ints, talk: ConversationDriver) -> None:
    if len(who):
        state.talking[who], state.message[who], state.attempt[who] = True, 1, 0
        state.seen[who], state.worth[who] = 0, 0.0
        talk.open(state.at(who))


def _exchange(
    state: _State, lives: UserActivity, population: Population, who: Ints, talk: ConversationDriver, noise: Noise
) -> None:
    """A reply to each open conversation, and what its user does."""
    at = state.at(who)
    worth = talk.answer(at)
    chance = population.moments("reaction", who, at.day, at.message, at.attempt)
    did = behaviour.react(chance, population.users.take(who), worth, at.message, at.attempt, noise)
    talk.note(at, worth, did)
    lives.replies[who] += did.shown
    lives.retries[who] += did.retried
    state.seen[who] += did.shown
    state.worth[who] += np.where(did.shown, worth, 0.0)
    again = did.retried | ~did.shown
    state.attempt[who] += again
    on = who[~again & ~did.ended]
    state.message[on] += 1
    state.attempt[on] = 0
    if len(on):
        talk.go_on(state.at(on))
    _leave(state, lives, who[did.ended], noise)


def _leave(state: _State, lives: UserActivity, who: Ints, noise: Noise) -> None:
    """Conversations end: how they were on average is what decides about coming back."""
    lives.messages[who, state.day[who]] = state.message[who]
    mean = state.worth[who] / np.maximum(1, state.seen[who])
    state.satisfaction[who] += noise.memory * (mean - state.satisfaction[who])
    state.talking[who] = False


@dataclass(frozen=True)
class GaussianReplies:
    """Replies that are worth what a normal distribution says, the same one to every user: for trials of statistics."""

    population: Population
    mean: float = 0.0
    spread: float = 1.0
    seed: int = 0

    def open(self, at: Moment) -> None:
        """Nothing is said."""

    def answer(self, at: Moment) -> Floats:
        """[n] drawn by the policy's own chance."""
        chance = self.population.moments("policy", at.who, at.day, at.message, at.attempt, self.seed)
        return self.mean + self.spread * chance.standard_normal(len(at.who))

    def note(self, at: Moment, worth: Floats, reaction: Reaction) -> None:
        """Nothing is kept."""

    def go_on(self, at: Moment) -> None:
        """Nothing is said."""

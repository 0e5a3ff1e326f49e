"""Users: tastes, which decide the utility of a reply to them, and habits, which decide much of their behaviour anyway.

Design decisions:
- Structures of arrays: the reactions of a thousand users are one vector operation.
- Habits are confounders, as in real apps: returning depends on habit more than on any reply, impatient users retry at
  random, slow users answer late after any reply, and talkative users write longer messages and stay longer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.world.grammar import USER_TEMPLATES, Grammar, pick
from lmgym.apps.world.utility import FEATURES

Floats = NDArray[np.float64]
MAX_MESSAGES, MAX_RETRIES = 30, 3


class RandomSource(Protocol):
    """Random numbers, one per row: a numpy Generator, or the users' own streams (`streams.py`)."""

    def random(self, size: int, /) -> Floats:
        """Uniform in [0, 1)."""
        ...

    def standard_normal(self, size: int, /) -> Floats:
        """Normal, of mean 0 and variance 1."""
        ...

    def uniform(self, low: float, high: float, size: int, /) -> Floats:
        """Uniform in [low, high)."""
        ...


@dataclass(frozen=True)
class Noise:
    """Parameters of behaviour beyond the reply's utility. Fixed for a version of the world."""

    taste: float = 0.35  # standard deviation of log tastes
    retry: float = -2.3  # log odds of a retry at utility 0
    retry_slope: float = -1.3  # change of the log odds per unit of utility
    retry_habit: float = 0.4
    impatient_users: float = 0.15
    impatient_retries: float = 0.2  # probability to retry any reply, good or bad
    patient_retries: float = 0.02
    leave: float = -1.9
    leave_slope: float = -1.0
    leave_habit: float = 0.45
    seconds: float = 3.6  # log seconds to answer at utility 0
    seconds_slope: float = -0.4
    seconds_habit: float = 0.7
    seconds_noise: float = 0.9
    away: float = 0.05  # share of answers that come hours later
    unshown: float = 0.03  # share of replies that were logged but not seen
    unlogged_time: float = 0.02
    habit: float = 0.5  # log odds to open the app on a day, for users who have not left it
    habit_spread: float = 1.1
    habit_slope: float = 1.2  # per unit of satisfaction
    new_user: float = -0.5
    # log odds to stay in the app from one day to the next: the level of retention. Frozen at .41, .20 and .08 on days
    # 1, 7 and 30 for replies of utility 0, within what is published of consumer apps, before any figure was measured
    retention: float = 2.0
    retention_spread: float = 1.8
    retention_slope: float = 0.6  # per unit of satisfaction
    memory: float = 0.6  # weight of the newest conversation in the satisfaction
    annotator: float = 0.6  # scale of the annotators' Gumbel noise


NOISE = Noise()


@dataclass(frozen=True)
class Users:
    """n users as arrays [n] (tastes [n, FEATURES], favourites [n, topics] as probabilities)."""

    tastes: Floats
    favourites: Floats
    retry_habit: Floats
    random_retries: Floats
    leave_habit: Floats
    pace: Floats
    habit: Floats
    talkative: Floats
    is_new: NDArray[np.bool_]
    loyalty: Floats

    def __len__(self) -> int:
        return len(self.habit)

    def take(self, rows: NDArray[np.int64]) -> "Users":
        """The users of some rows, in that order; rows may repeat."""
        return Users(*(getattr(self, field.name)[rows] for field in fields(self)))


def join(parts: Sequence[Users]) -> Users:
    """The users of all parts, in that order."""
    return Users(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Users)))


def draw_users(rng: np.random.Generator, n: int, topics: int, noise: Noise = NOISE) -> Users:
    """Draws n users."""
    engagement = rng.standard_normal(n)
    impatient = rng.random(n) < noise.impatient_users
    return Users(
        tastes=np.exp(noise.taste * rng.standard_normal((n, len(FEATURES)))),
        favourites=rng.dirichlet(np.full(topics, 1.5), n),
        retry_habit=noise.retry_habit * rng.standard_normal(n),
        random_retries=np.where(impatient, noise.impatient_retries, noise.patient_retries),
        leave_habit=-noise.leave_habit * engagement,
        pace=noise.seconds_habit * rng.standard_normal(n),
        habit=noise.habit_spread * (0.3 * engagement + 0.95 * rng.standard_normal(n)),
        talkative=_sigmoid(-0.7 + 0.25 * engagement + 0.8 * rng.standard_normal(n)),
        is_new=rng.random(n) < 0.4,
        loyalty=noise.retention_spread * (0.3 * engagement + 0.95 * rng.standard_normal(n)),
    )


def stays(rng: RandomSource, users: Users, satisfaction: Floats, noise: Noise = NOISE) -> NDArray[np.bool_]:
    """True for each user who does not leave the app for good before a day.

    Users differ in their daily odds to stay (`loyalty`), so the first days lose most: those who stay are the loyal ones
    (the heterogeneous lifetimes of Fader and Hardie 2007, with log-normal odds).
    """
    odds = noise.retention + users.loyalty + noise.retention_slope * satisfaction + noise.new_user * users.is_new
    return rng.random(len(satisfaction)) < _sigmoid(odds)


def comes_back(rng: RandomSource, users: Users, satisfaction: Floats, noise: Noise = NOISE) -> NDArray[np.bool_]:
    """True for each user, of those who stay, who opens the app on a day, by habit and satisfaction."""
    odds = noise.habit + users.habit + noise.habit_slope * satisfaction + noise.new_user * users.is_new
    return rng.random(len(satisfaction)) < _sigmoid(odds)


@dataclass(frozen=True)
class Reaction:
    """The users' reactions to a reply, each [n]."""

    shown: NDArray[np.bool_]
    retried: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    seconds: Floats  # -1 never, NaN unknown


def react(
    rng: RandomSource,
    users: Users,
    utility: Floats,
    messages: NDArray[np.int64],
    attempts: NDArray[np.int64],
    noise: Noise = NOISE,
) -> Reaction:
    """The users' reactions to replies of utility[n], after messages[n] and attempts[n] at answering the last one."""
    n = len(utility)
    shown = rng.random(n) >= noise.unshown
    dissatisfied = rng.random(n) < _sigmoid(noise.retry + noise.retry_slope * utility + users.retry_habit)
    retried = (dissatisfied | (rng.random(n) < users.random_retries)) & shown & (attempts < MAX_RETRIES)
    leaving = rng.random(n) < _sigmoid(noise.leave + noise.leave_slope * utility + users.leave_habit)
    ended = leaving & shown & (~retried | (rng.random(n) < 0.4))  # some retry and then leave all the same
    ended |= shown & ~retried & (messages >= MAX_MESSAGES)
    seconds = np.where(retried | ended, -1.0, _response_seconds(rng, users, utility, noise))
    unknown = ~shown | (rng.random(n) < noise.unlogged_time)
    return Reaction(shown, retried, ended, np.where(unknown, np.nan, seconds))


def _response_seconds(rng: RandomSource, users: Users, utility: Floats, noise: Noise) -> Floats:
    """Log-normal times to answer, of which some are hours long."""
    n = len(utility)
    log = noise.seconds + users.pace + noise.seconds_slope * utility + noise.seconds_noise * rng.standard_normal(n)
    away = np.where(rng.random(n) < noise.away, rng.uniform(4, 7, n), 0)
    return np.exp(log + away).round(1)


def message(grammar: Grammar, rng: random.Random, topic: str, talkative: float, opening: bool) -> str:
    """A user's next message on a topic."""
    kind = "opening" if opening else ("ask" if rng.random() < 0.35 else "tell")
    text = grammar.say(rng, USER_TEMPLATES[kind], topic)
    if rng.random() < talkative:
        text = f"{pick(rng, USER_TEMPLATES['chatter'])} {text}"
    return text


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))

"""An app of simulated users, to deploy a policy in: they chat for days, and what they do says what it is worth.

Design decisions:
- The world's own users with their tastes, habits and hidden utility (`world.py`); the policy takes the place of its
  bots, and sees of a conversation what those see and the log shows.
- All open conversations get their next reply in one request (`days.py`), each by a seed of its own: so who else is
  talking changes no reply, and a model runs in full batches.
- What comes out is a log in the world's schema (`behaviour.py`), for scorers to learn from, and the counts that an app
  team looks at (`ab_testing.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.errors import InputError, shown
from lmgym.generation.protocol import Capabilities, Completion, Generator, Progress, Sampling, seeds_of
from lmgym.text import Conversation, Turn
from lmgym.world.behaviour import Behaviour, Traces
from lmgym.world.days import Moment, simulate_users
from lmgym.world.streams import Ints, Population, draw_population
from lmgym.world.users import Floats, Reaction
from lmgym.world.vocabulary import ADULT_TOPIC
from lmgym.world.world import SimulatedChat, World, open_chat, say

DAYS, MOST_DAYS = 31, 100  # retention on day 30 needs the first; a conversation's id has room for the second
REPLY = Sampling(max_new_tokens=48)


def refuse_days(days: int) -> None:
    """Raises InputError for a number of days that users do not live."""
    if not 1 <= days <= MOST_DAYS:
        raise InputError(f"{shown(days)} days; needed: 1 to {MOST_DAYS} (31 for retention on day 30)")


def deploy(
    policy: Generator, users: int | Ints, days: int, seed: int, world: World | None = None, sampling: Sampling = REPLY
) -> Behaviour:
    """Lets users of a world (of World(0) unless given) talk to a policy for so many days from their first one.

    `users` is how many, or the numbers of those who take part. What users bring is a function of (world, seed, user);
    the policy's own chance is of `sampling.seed` too, so the same users can meet two policies, or one policy twice.
    Raises InputError for no users, a user twice, a number below 0, and days that are not 1 to 100; what the policy
    raises goes through.
    """
    numbers = _numbers(users)
    refuse_days(days)
    world = world or World(0)
    population = draw_population(world, numbers, seed)
    talk = _Conversations(world, population, policy, sampling)
    lives = simulate_users(population, days, talk, world.noise)
    return Behaviour(world, seed, days, population, lives, talk.traces, talk.chats)


def _numbers(users: int | Ints) -> Ints:
    numbers = np.arange(users) if isinstance(users, int | np.integer) else np.sort(np.asarray(users))
    if not len(numbers):
        raise InputError(f"{len(numbers)} users: nobody to deploy to; needed: 1 or more")
    if numbers[0] < 0 or len(np.unique(numbers)) < len(numbers):
        raise InputError("users have numbers from 0 on, each once")
    return numbers


class _Conversations:
    """What is said, in words."""

    def __init__(self, world: World, population: Population, policy: Generator, sampling: Sampling) -> None:
        self.world, self.population, self.policy, self.sampling = world, population, OneLine(policy), sampling
        [self.chance] = seeds_of(sampling, 1)
        self.open_chats: dict[int, SimulatedChat] = {}
        self.chats: list[SimulatedChat] = []
        self.replies: dict[int, str] = {}
        self.traces = Traces()

    def open(self, at: Moment) -> None:
        """Each user's first message of the day."""
        for user, day in zip(at.who.tolist(), at.day.tolist(), strict=True):
            chat = open_chat(self.world, self.population.words(user, day, 0), self.population.users, user)
            self.open_chats[user] = chat
            self.chats.append(chat)

    def answer(self, at: Moment) -> Floats:
        """The policy's replies, and what each is worth to its user."""
        chats = [self.open_chats[user] for user in at.who.tolist()]
        conversations = [chat.conversation for chat in chats]
        try:
            found = self.policy.reply(conversations, 1, replace(self.sampling, seed=self._seeds(at)))
        except Exception as error:
            error.add_note(f"while {len(chats)} users waited for replies, one of them on day {at.day.max()}")
            raise
        replies = [one.text for [one] in found]
        self.replies = dict(zip(at.who.tolist(), replies, strict=True))
        self.traces.conversation += conversations
        self.traces.reply += replies
        self.traces.nsfw += [chat.topic == ADULT_TOPIC for chat in chats]
        return self.world.utility(conversations, replies, self.population.users.take(at.who))

    def note(self, at: Moment, worth: Floats, reaction: Reaction) -> None:
        """Columns of the log."""
        self.traces.at.append(at)
        self.traces.worth.append(worth)
        self.traces.reaction.append(reaction)

    def go_on(self, at: Moment) -> None:
        """The reply joins the conversation, and the user's next message follows."""
        for user, day, message in zip(at.who.tolist(), at.day.tolist(), at.message.tolist(), strict=True):
            chat = self.open_chats[user]
            chat.turns.append(Turn("bot", self.replies[user]))
            say(self.world, self.population.words(user, day, message), self.population.users, chat)

    def _seeds(self, at: Moment) -> tuple[int, ...]:
        chance = self.population.moments("policy", at.who, at.day, at.message, at.attempt, self.chance)
        return tuple((chance.random(len(at.who)) * 2.0**53).astype(np.int64).tolist())


@dataclass(frozen=True)
class OneLine:
    """A generator's replies without white space at their ends, and on one line: as the app shows and logs them.

    A scorer that chooses among replies must see them so too: it learned from the log.
    """

    generator: Generator

    @property
    def capabilities(self) -> Capabilities:
        """The generator's."""
        return self.generator.capabilities

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """The generator's. Raises ValueError for another number of replies than was asked for."""
        found = self.generator.reply(conversations, n, sampling, progress)
        if len(found) != len(conversations) or any(len(replies) != n for replies in found):
            given = [len(replies) for replies in found]
            raise ValueError(f"the policy gave {given[:8]} replies to {len(conversations)} conversations, not {n} each")
        return [[replace(one, text=one_line(one.text)) for one in replies] for replies in found]


def one_line(reply: str) -> str:
    """A reply as the app shows it."""
    return " ".join(reply.split())

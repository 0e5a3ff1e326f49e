"""An app of simulated users in which to deploy a policy: they chat for days, and their behaviour shows its quality.

Design decisions:
- The users are the world's, with their tastes, habits and hidden utility (`world.py`); the policy replaces the bots and
  gets the same context, which is also what the log shows.
- All open conversations get their next reply in one request (`days.py`), each with its own seed: so no reply depends on
  who else is talking, and a model runs in full batches.
- The result is a log in the world's schema (`behaviour.py`), for training scorers, and the counts for A/B tests
  (`ab_testing.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.apps.world.behaviour import Behaviour, Traces
from lmgym.apps.world.days import Moment, simulate_users
from lmgym.apps.world.streams import Ints, Population, draw_population
from lmgym.apps.world.users import Floats, Reaction
from lmgym.apps.world.vocabulary import MODERATED_TOPIC
from lmgym.apps.world.world import SimulatedChat, World, open_chat, say
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import Completion, Generator, Progress, Sampling, seeds_of
from lmgym.text import Conversation, Turn

DAYS, MOST_DAYS = 31, 100  # day-30 retention needs 31; ids of conversations have room for 100
REPLY = Sampling(max_new_tokens=48)


def refuse_days(days: int) -> None:
    """Raises InputError for a number of days out of range."""
    if not 1 <= days <= MOST_DAYS:
        raise InputError(f"{shown(days)} days; needed: 1 to {MOST_DAYS} (31 for retention on day 30)")


def deploy(
    policy: Generator,
    users: int | Ints,
    days: int,
    seed: int,
    world: World | None = None,
    sampling: Sampling = REPLY,
    progress: Progress = lambda *_: None,
) -> Behaviour:
    """Lets users of a world (default: World(0)) chat with a policy for a number of days from their first one.

    `users` is a number of users or an array of user numbers. The users' side is a function of (world, seed, user); the
    policy's samples also depend on `sampling.seed`, so the same users can meet two policies, or one policy twice.
    `progress` is called with the users' days that are completed and the number of all.
    Raises InputError for no users, a repeated or negative user number, and days outside 1 to 100; exceptions of the
    policy pass through.
    """
    numbers = np.arange(users) if isinstance(users, int | np.integer) else np.sort(np.asarray(users))
    if not len(numbers):
        raise InputError("0 users: nobody to deploy to; needed: 1 or more")
    if numbers[0] < 0 or len(np.unique(numbers)) < len(numbers):
        raise InputError("user numbers must be 0 or more, each given once")
    refuse_days(days)
    world = world or World(0)
    population = draw_population(world, numbers, seed)
    driver = _PolicyConversations(world, population, policy, sampling)
    activity = simulate_users(population, days, driver, world.noise, progress)
    return Behaviour(world, seed, days, population, activity, driver.traces, driver.chats)


class _PolicyConversations:
    """The ConversationDriver of a policy: texts by the world's users and the policy."""

    def __init__(self, world: World, population: Population, policy: Generator, sampling: Sampling) -> None:
        self.world, self.population, self.policy, self.sampling = world, population, OneLine(policy), sampling
        [self.seed] = seeds_of(sampling, 1)
        self.open_chats: dict[int, SimulatedChat] = {}
        self.chats: list[SimulatedChat] = []
        self.replies: dict[int, str] = {}
        self.traces = Traces()

    def open(self, at: Moment) -> None:
        for user, day in zip(at.who.tolist(), at.day.tolist(), strict=True):
            chat = open_chat(self.world, self.population.words(user, day, 0), self.population.users, user)
            self.open_chats[user] = chat
            self.chats.append(chat)

    def answer(self, at: Moment) -> Floats:
        chats = [self.open_chats[user] for user in at.who.tolist()]
        conversations = [chat.conversation for chat in chats]
        chance = self.population.moments("policy", at.who, at.day, at.message, at.attempt, self.seed)
        seeds = tuple((chance.random(len(chats)) * 2.0**53).astype(np.int64).tolist())
        try:
            completions = self.policy.reply(conversations, 1, replace(self.sampling, seed=seeds))
        except Exception as error:
            error.add_note(f"while {len(chats)} users waited for replies, one of them on day {at.day.max()}")
            raise
        replies = [completion.text for [completion] in completions]
        self.replies = dict(zip(at.who.tolist(), replies, strict=True))
        self.traces.conversation += conversations
        self.traces.reply += replies
        self.traces.nsfw += [chat.topic == MODERATED_TOPIC for chat in chats]
        return self.world.utility(conversations, replies, self.population.users.take(at.who))

    def record(self, at: Moment, utilities: Floats, reaction: Reaction) -> None:
        self.traces.at.append(at)
        self.traces.utility.append(utilities)
        self.traces.reaction.append(reaction)

    def advance(self, at: Moment) -> None:
        for user, day, message in zip(at.who.tolist(), at.day.tolist(), at.message.tolist(), strict=True):
            chat = self.open_chats[user]
            chat.turns.append(Turn("bot", self.replies[user]))
            say(self.world, self.population.words(user, day, message), self.population.users, chat)


@dataclass(frozen=True)
class OneLine:
    """A generator whose replies are on one line, without surrounding white space: as the app shows and logs them.

    A scorer that ranks replies must see them in this form too, because it learned from the log.
    """

    generator: Generator

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """The generator's replies. Raises ValueError if it returns another number of replies than requested."""
        completions = self.generator.reply(conversations, n, sampling, progress)
        if len(completions) != len(conversations) or any(len(replies) != n for replies in completions):
            given = [len(replies) for replies in completions]
            raise ValueError(f"the policy gave {given[:8]} replies to {len(conversations)} conversations, not {n} each")
        return [[replace(reply, text=one_line(reply.text)) for reply in replies] for replies in completions]


def one_line(reply: str) -> str:
    """A reply as the app shows it."""
    return " ".join(reply.split())

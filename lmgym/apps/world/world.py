"""A simulated world with a hidden utility: users chat with bots of varied quality and leave the traces that apps log.

Design decisions:
- The hidden utility of a reply, in its context and for its user, drives what the user does, with noise and confounders
  (`users.py`); only probes and evaluations may read it.
- VERSION names the world with its noise; any change is a new version, and all figures are measured again. 1.0 was
  fixed before any scorer was trained; trials showed that a small scorer from scratch learns only a bag of words there.
  1.1 has shorter texts, fewer words and stronger traces, and was fixed before any reported figure. In 1.2 users leave
  the app for good, so that retention falls over the days, and the moderated topic has other words; its level of
  retention was frozen before any figure was measured.
- All conversations of a day advance together; only texts are made one reply at a time.
- The log shows the bot's context: the persona, sometimes the last exchange, and the user's message. So the utility
  depends on nothing that a scorer cannot read, except the user's tastes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.world import users as behaviour
from lmgym.apps.world.bots import BOTS, speak
from lmgym.apps.world.grammar import Grammar
from lmgym.apps.world.users import NOISE, Floats, Noise, Users, draw_users
from lmgym.apps.world.utility import features, utility
from lmgym.apps.world.vocabulary import MODERATED_TOPIC, Persona, draw_vocabulary
from lmgym.text import Conversation, Turn

VERSION = "1.2"
DAYS = 20  # logged
DAYS_AFTER = 30  # not logged, but known to the retention labels
CHANGES_TOPIC = 0.12
REMEMBERS = 0.15  # share of chats whose context includes the last exchange; apps vary this


@dataclass(frozen=True)
class World:
    """The language, bots and users of one seed."""

    seed: int
    noise: Noise = NOISE
    grammar: Grammar = field(init=False)

    @classmethod
    def with_retention(cls, seed: int, retention: float) -> "World":
        """A world whose users stay longer or shorter: the log odds of `Noise.retention`."""
        return cls(seed, replace(NOISE, retention=retention))

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammar", Grammar(draw_vocabulary(self.seed)))

    @property
    def topics(self) -> list[str]:
        """Names of the topics."""
        return list(self.grammar.vocabulary.topics)

    def draw_users(self, rng: np.random.Generator, n: int) -> Users:
        """Draws n users of this world."""
        return draw_users(rng, n, len(self.topics), self.noise)

    def features(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> Floats:
        """FEATURES[n, 12] of replies."""
        return np.stack([features(self.grammar, c, r) for c, r in zip(conversations, replies, strict=True)])

    def utility(
        self, conversations: Sequence[Conversation], replies: Sequence[str], users: Users | None = None
    ) -> Floats:
        """Hidden utility[n] of replies for their users; without users, for average tastes."""
        rows = self.features(conversations, replies)
        return utility(rows, users.tastes if users else np.ones_like(rows))


@dataclass
class SimulatedChat:
    """A conversation in progress between a user and a bot."""

    user: int
    persona: Persona
    bot: int
    topic: str
    remembers: bool = False
    turns: list[Turn] = field(default_factory=list)
    utilities: list[float] = field(default_factory=list)
    """of the replies that the user saw"""
    messages: int = 0
    attempts: int = 0
    """replies to the last message so far that were retried or not seen"""

    @property
    def conversation(self) -> Conversation:
        """The context that the bot, the log and the utility use: persona, last exchange and the user's message."""
        return Conversation(tuple(self.turns[-3:] if self.remembers else self.turns[-1:]), self.persona.text)


@dataclass
class Logs:
    """Columns of what was logged, a row per reply, in order of time; `utility` is the hidden one."""

    user: list[int] = field(default_factory=list)
    day: list[int] = field(default_factory=list)
    chat: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    conversation: list[Conversation] = field(default_factory=list)
    reply: list[str] = field(default_factory=list)
    is_nsfw: list[bool] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    retried: list[bool] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # -1 never, NaN unknown
    remaining: list[int] = field(default_factory=list)
    utility: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.user)


@dataclass
class Cohort:
    """Users with their logs, and messages[users, days] over the logged days and those after."""

    users: Users
    logs: Logs
    messages: NDArray[np.int64]
    chats: list[SimulatedChat]


def simulate(world: World, n_users: int, seed: int) -> Cohort:
    """DAYS logged days of n users with the world's bots, and their visits in the DAYS_AFTER days that follow."""
    rng, words = np.random.default_rng([world.seed, seed]), random.Random(f"{world.seed} {seed}")
    users = world.draw_users(rng, n_users)
    arrival = np.where(users.is_new, rng.integers(0, DAYS - 1, n_users), 0)
    satisfaction, staying = np.zeros(n_users), np.ones(n_users, dtype=np.bool_)
    cohort = Cohort(users, Logs(), np.zeros((n_users, DAYS + DAYS_AFTER), dtype=np.int64), [])
    for day in range(DAYS + DAYS_AFTER):
        staying &= behaviour.stays(rng, users, satisfaction, world.noise) | (day <= arrival)
        returning = behaviour.comes_back(rng, users, satisfaction, world.noise) & staying & (day > arrival)
        active = np.flatnonzero(returning | (day == arrival))
        if day >= DAYS:
            cohort.messages[active, day] = 1 + rng.poisson(np.exp(1.2 - users.leave_habit[active]))
            continue
        chats = [open_chat(world, words, users, user, int(rng.integers(len(BOTS)))) for user in active.tolist()]
        _run_chats(world, rng, words, cohort, chats, day)
        cohort.messages[active, day] = [chat.messages for chat in chats]
        means = np.array([np.mean(chat.utilities) if chat.utilities else 0.0 for chat in chats])
        satisfaction[active] += world.noise.memory * (means - satisfaction[active])
    logs = cohort.logs
    logs.remaining = [cohort.chats[i].messages - turn for i, turn in zip(logs.chat, logs.turn, strict=True)]
    return cohort


def open_chat(world: World, words: random.Random, users: Users, user: int, bot: int = 0) -> SimulatedChat:
    """A chat with the user's first message to a bot, on one of the user's favourite topics."""
    persona = words.choice(world.grammar.vocabulary.personas)
    topic = words.choices(world.topics, users.favourites[user].tolist())[0]
    chat = SimulatedChat(user, persona, bot, topic, words.random() < REMEMBERS)
    say(world, words, users, chat)
    return chat


def say(world: World, words: random.Random, users: Users, chat: SimulatedChat) -> None:
    """Adds the user's next message to a chat."""
    if chat.messages and words.random() < CHANGES_TOPIC:
        chat.topic = words.choices(world.topics, users.favourites[chat.user].tolist())[0]
    talkative = float(users.talkative[chat.user])
    text = behaviour.message(world.grammar, words, chat.topic, talkative, opening=not chat.messages)
    chat.turns.append(Turn("user", text))
    chat.messages += 1
    chat.attempts = 0


def _run_chats(
    world: World, rng: np.random.Generator, words: random.Random, cohort: Cohort, chats: list[SimulatedChat], day: int
) -> None:
    """Runs all chats of a day to their ends, one reply to each at a time."""
    first, logs = len(cohort.chats), cohort.logs
    cohort.chats += chats
    numbers = list(range(first, len(cohort.chats)))
    while numbers:
        open_chats = [cohort.chats[number] for number in numbers]
        users = cohort.users.take(np.array([chat.user for chat in open_chats]))
        conversations = [chat.conversation for chat in open_chats]
        replies = [_bot_reply(world, words, chat) for chat in open_chats]
        utilities = world.utility(conversations, replies, users)
        messages, attempts = (np.array([getattr(c, name) for c in open_chats]) for name in ("messages", "attempts"))
        reaction = behaviour.react(rng, users, utilities, messages, attempts, world.noise)
        logs.user += [chat.user for chat in open_chats]
        logs.day += [day] * len(open_chats)
        logs.chat += numbers
        logs.turn += messages.tolist()
        logs.conversation += conversations
        logs.reply += replies
        logs.is_nsfw += [chat.topic == MODERATED_TOPIC for chat in open_chats]
        logs.accepted += (reaction.shown & ~reaction.retried).tolist()
        logs.retried += reaction.retried.tolist()
        logs.ended += reaction.ended.tolist()
        logs.seconds += reaction.seconds.tolist()
        logs.utility += utilities.tolist()
        for i, chat in enumerate(open_chats):
            if reaction.shown[i]:
                chat.utilities.append(utilities[i])
            if reaction.retried[i] or not reaction.shown[i]:
                chat.attempts += 1
            elif not reaction.ended[i]:
                chat.turns.append(Turn("bot", replies[i]))
                say(world, words, cohort.users, chat)
        numbers = [number for number, ended in zip(numbers, reaction.ended, strict=True) if not ended]


def _bot_reply(world: World, words: random.Random, chat: SimulatedChat) -> str:
    grammar, conversation = world.grammar, chat.conversation
    named, earlier = grammar.named_things(conversation), grammar.bot_sentences(conversation)
    return speak(grammar, words, BOTS[chat.bot], chat.persona, chat.topic, named, earlier)

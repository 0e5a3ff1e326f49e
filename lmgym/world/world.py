"""A simulated world with a hidden truth: users chat with bots of varied quality and leave the traces that apps log.

Design decisions:
- The hidden utility of a reply in its context for its user drives what the user does, with noise and confounders
  (`users.py`); only probes and evaluations may look at it.
- VERSION names the world with its noise; a change is a new version, and all figures are made anew. 1.0 was fixed before
  any scorer was trained; trials on it showed that a small scorer from scratch stays at a bag of words there. 1.1 has
  shorter texts, fewer words and stronger traces, and was fixed before any figure that is reported.
- All conversations of a day advance together; text is the only part that runs a reply at a time.
- The state of a reply in a conversation is what is logged: the persona, now and then the last exchange, the user's
  message. So the utility depends on nothing that a scorer cannot read, but for the user's tastes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lmgym.text import Conversation, Turn
from lmgym.world import users as behaviour
from lmgym.world.bots import BOTS, speak
from lmgym.world.grammar import Grammar
from lmgym.world.users import NOISE, Noise, Reaction, Users, draw_users
from lmgym.world.utility import features, utility
from lmgym.world.vocabulary import ADULT_TOPIC, Persona, draw_vocabulary

VERSION = "1.1"
DAYS = 20  # logged
RETENTION_DAYS = (1, 2, 3, 7, 30)
CHANGES_TOPIC = 0.12
REMEMBERS = 0.15  # chats whose bot, and so whose log, sees the last exchange too; apps vary this


@dataclass(frozen=True)
class World:
    """The words, bots and users of one seed."""

    seed: int
    noise: Noise = NOISE
    grammar: Grammar = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammar", Grammar(draw_vocabulary(self.seed)))

    @property
    def topics(self) -> list[str]:
        """Their names."""
        return list(self.grammar.vocabulary.topics)

    def draw_users(self, rng: np.random.Generator, n: int) -> Users:
        """n users of this world."""
        return draw_users(rng, n, len(self.topics), self.noise)

    def features(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> NDArray[np.float64]:
        """FEATURES[n, 12] of replies."""
        return np.stack([features(self.grammar, c, r) for c, r in zip(conversations, replies, strict=True)])

    def utility(
        self, conversations: Sequence[Conversation], replies: Sequence[str], users: Users | None = None
    ) -> NDArray[np.float64]:
        """The hidden utility[n] of replies for their users; without users, for average tastes."""
        rows = self.features(conversations, replies)
        return utility(rows, users.tastes if users else np.ones_like(rows))


@dataclass
class SimulatedChat:
    """One conversation as it goes."""

    user: int
    persona: Persona
    bot: int
    topic: str
    remembers: bool = False
    turns: list[Turn] = field(default_factory=list)
    utilities: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    messages: int = 0
    attempts: int = 0

    @property
    def conversation(self) -> Conversation:
        """What the bot, the log and the utility see: the persona, the last exchange and the user's message."""
        return Conversation(tuple(self.turns[-3:] if self.remembers else self.turns[-1:]), self.persona.text)


Reply = Callable[[random.Random, Sequence[SimulatedChat]], list[str]]


def world_bots(world: World) -> Reply:
    """The replies of the world's own bots, each chat by its bot."""

    def reply(rng: random.Random, chats: Sequence[SimulatedChat]) -> list[str]:
        grammar = world.grammar
        return [
            speak(
                grammar, rng, BOTS[chat.bot], chat.persona, chat.topic, grammar.named(chat.conversation),
                grammar.said(chat.conversation),
            )
            for chat in chats
        ]  # fmt: skip

    return reply


@dataclass
class Logs:
    """Columns of what was logged, a row a reply, in the order of time; `utility` is the hidden one."""

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
    seconds: list[float] = field(default_factory=list)  # -1 never, NaN not known
    remaining: list[int] = field(default_factory=list)
    utility: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.user)


@dataclass
class Cohort:
    """Users with all that they did: their logs, and messages[users, days] over the logged days and those after."""

    users: Users
    logs: Logs
    messages: NDArray[np.int64]
    chats: list[SimulatedChat]


def simulate(world: World, n_users: int, seed: int, reply: Reply | None = None) -> Cohort:
    """DAYS logged days of n users with the bots, and whether they came back up to 30 days later."""
    rng, words = np.random.default_rng([world.seed, seed]), random.Random(f"{world.seed} {seed}")
    users = world.draw_users(rng, n_users)
    arrival = np.where(users.is_new, rng.integers(0, DAYS - 1, n_users), 0)
    satisfaction = np.zeros(n_users)
    cohort = Cohort(users, Logs(), np.zeros((n_users, DAYS + RETENTION_DAYS[-1]), dtype=np.int64), [])
    for day in range(cohort.messages.shape[1]):
        here = behaviour.comes_back(rng, users, satisfaction, world.noise) & (day > arrival)
        active = np.flatnonzero(here | (day == arrival))
        if day >= DAYS:  # no longer logged: only whether they came, and how much they wrote
            cohort.messages[active, day] = 1 + rng.poisson(np.exp(1.2 - users.leave_habit[active]))
            continue
        chats = [open_chat(world, words, users, user, int(rng.integers(len(BOTS)))) for user in active.tolist()]
        _talk(world, rng, words, users, chats, cohort, day, reply or world_bots(world))
        cohort.messages[active, day] = [chat.messages for chat in chats]
        means = np.array([np.mean(chat.utilities) if chat.utilities else 0.0 for chat in chats])
        satisfaction[active] += world.noise.memory * (means - satisfaction[active])
    return cohort


def open_chat(world: World, words: random.Random, users: Users, user: int, bot: int = 0) -> SimulatedChat:
    """A user's first message to a bot on a topic of the user's liking."""
    persona = words.choice(world.grammar.vocabulary.personas)
    topic = words.choices(world.topics, users.favourites[user].tolist())[0]
    chat = SimulatedChat(user, persona, bot, topic, words.random() < REMEMBERS)
    say(world, words, users, chat)
    return chat


def say(world: World, words: random.Random, users: Users, chat: SimulatedChat) -> None:
    """The user's next message."""
    if chat.messages and words.random() < CHANGES_TOPIC:
        chat.topic = words.choices(world.topics, users.favourites[chat.user].tolist())[0]
    talkative = float(users.talkative[chat.user])
    text = behaviour.message(world.grammar, words, chat.topic, talkative, opening=not chat.messages)
    chat.turns.append(Turn("user", text))
    chat.messages += 1
    chat.attempts = 0


def _talk(
    world: World, rng: np.random.Generator, words: random.Random, users: Users, chats: list[SimulatedChat], cohort: Cohort,
    day: int, reply: Reply,
) -> None:  # fmt: skip
    """All chats of a day to their ends, a reply each at a time."""
    first = len(cohort.chats)
    cohort.chats += chats
    open_chats = list(range(len(chats)))
    while open_chats:
        now = [chats[i] for i in open_chats]
        who = users.take(np.array([chat.user for chat in now]))
        conversations = [chat.conversation for chat in now]
        replies = reply(words, now)
        worth = world.utility(conversations, replies, who)
        messages, attempts = (np.array(column) for column in zip(*((c.messages, c.attempts) for c in now), strict=True))
        fate = behaviour.react(rng, who, worth, messages, attempts, world.noise)
        still_open = []
        for k, (index, chat) in enumerate(zip(open_chats, now, strict=True)):
            _log(cohort.logs, chat, day, first + index, conversations[k], replies[k], worth[k], fate, k)
            if fate.retried[k] or not fate.shown[k]:
                chat.attempts += 1
            elif not fate.ended[k]:
                chat.turns.append(Turn("bot", replies[k]))
                say(world, words, users, chat)
            if not fate.ended[k]:
                still_open.append(index)
        open_chats = still_open
    logs = cohort.logs
    for chat in chats:
        for row in chat.rows:
            logs.remaining[row] = chat.messages - logs.turn[row]


def _log(
    logs: Logs, chat: SimulatedChat, day: int, number: int, conversation: Conversation, reply: str, worth: float, fate: Reaction,
    k: int,
) -> None:  # fmt: skip
    if fate.shown[k]:
        chat.utilities.append(worth)
    chat.rows.append(len(logs))
    logs.user.append(chat.user)
    logs.day.append(day)
    logs.chat.append(number)
    logs.turn.append(chat.messages)
    logs.conversation.append(conversation)
    logs.reply.append(reply)
    logs.is_nsfw.append(chat.topic == ADULT_TOPIC)
    logs.accepted.append(bool(fate.shown[k] and not fate.retried[k]))
    logs.retried.append(bool(fate.retried[k]))
    logs.ended.append(bool(fate.ended[k]))
    logs.seconds.append(float(fate.seconds[k]))
    logs.remaining.append(0)
    logs.utility.append(float(worth))

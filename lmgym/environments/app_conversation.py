"""A conversation of the app: one of its users talks to the policy, and what the user does is the reward.

Design decisions:
- The users, their words, what a reply is worth to them and what they do about it are those of `deploy` (`app.py`), by
  the same functions and the same streams of chance: (world, population, user, day) decides all that a user brings. The
  episode's seed is the day, so a user has as many conversations as there are seeds.
- The reward is what an app sees, and not the hidden utility: a message that the user goes on with. Over an episode it
  sums to the conversation's length, less the message that opened it.
"""

from collections.abc import Mapping
from typing import final

import numpy as np

from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError
from lmgym.text import Turn
from lmgym.world import users as behaviour
from lmgym.world.app import one_line
from lmgym.world.streams import Population
from lmgym.world.users import Reaction
from lmgym.world.world import SimulatedChat, World, open_chat, say

SEEDS = 1 << 35  # days that a user's stream of words has room for


@final
class AppConversation:
    """One conversation with a user of a population (`streams.draw_population`); the task is {"user": its number}.

    The user goes on (reward 1), asks for another reply to the same message (`retry_reward`), does not see the reply
    (0), or leaves (0, or `retry_reward` where the last thing asked for was another reply): then the episode is
    terminated. It is truncated after `max_replies` replies. `info`: mean hidden utility of the replies, messages that
    the user wrote, retries.
    """

    def __init__(
        self, world: World, population: Population, max_replies: int = 60, retry_reward: float = 0.0
    ) -> None:  # fmt: skip
        if max_replies < 1:
            raise InputError(f"max_replies={max_replies}; needed: 1 or more")
        self.world, self.population = world, population
        self.max_replies, self.retry_reward = max_replies, retry_reward
        self.day, self.retries = 0, 0
        self.worth: list[float] = []

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """The user's first message. Raises InputError for a user who is not of the population."""
        self.who = self._place(task.get("user"))
        self.user = self.population.users.take(self.who)
        self.day, self.retries, self.worth = seed % SEEDS, 0, []
        place = int(self.who[0])
        words = self.population.words(place, self.day, 0)
        self.chat: SimulatedChat = open_chat(self.world, words, self.population.users, place)
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """What the user does about a reply."""
        reply = one_line(actions[POLICY])
        did = self._reaction(reply)
        reward = 0.0
        if did.retried[0]:
            reward, self.retries = self.retry_reward, self.retries + 1
        if did.retried[0] or not did.shown[0]:
            self.chat.attempts += 1
        elif not did.ended[0]:
            reward = 1.0
            self._go_on(reply)
        ended = bool(did.ended[0])
        info = {"utility": float(np.mean(self.worth)), "length": self.chat.messages, "retries": self.retries}
        return StepResult(
            {} if ended else self._shown(),
            {POLICY: reward},
            terminated=ended,
            truncated=not ended and len(self.worth) >= self.max_replies,
            info=info,
        )

    def _place(self, number: object) -> np.ndarray:
        numbers = self.population.numbers
        places = np.flatnonzero(numbers == number)
        if len(places) != 1:
            raise InputError(
                f"a task has user={number!r}; needed: a number of the population's {len(numbers)} users, from "
                f"{numbers[0]} to {numbers[-1]}"
            )
        return places

    def _reaction(self, reply: str) -> Reaction:
        chat, day = self.chat, np.array([self.day])
        worth = self.world.utility([chat.conversation], [reply], self.user)
        self.worth.append(float(worth[0]))
        messages, attempts = np.array([chat.messages]), np.array([chat.attempts])
        chance = self.population.moments("reaction", self.who, day, messages, attempts)
        return behaviour.react(chance, self.user, worth, messages, attempts, self.world.noise)

    def _go_on(self, reply: str) -> None:
        """The reply joins the conversation, and the user's next message follows."""
        chat = self.chat
        chat.turns.append(Turn("bot", reply))
        words = self.population.words(chat.user, self.day, chat.messages + 1)
        say(self.world, words, self.population.users, chat)

    def _shown(self) -> dict[str, Observation]:
        return {POLICY: Observation(self.chat.conversation)}

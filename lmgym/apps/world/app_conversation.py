"""A conversation of the simulated app: a user talks to the policy, and the user's behaviour is the reward.

Design decisions:
- Users, their messages, the utility of replies and reactions to them are those of `deploy` (`app.py`), by the same
  functions and the same random streams: (world, population, user, day) determines everything a user brings. The
  episode's seed is the day, so a user has one conversation a seed.
- The reward is what an app observes rather than the hidden utility: 1 for each further message of the user. Over an
  episode it sums to the conversation's length, less its first message.
"""

from collections.abc import Mapping
from typing import final

import numpy as np

from lmgym.apps.world import users as behaviour
from lmgym.apps.world.app import one_line
from lmgym.apps.world.streams import Population
from lmgym.apps.world.users import Reaction
from lmgym.apps.world.world import SimulatedChat, World, open_chat, say
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError
from lmgym.text import Turn

SEEDS = 1 << 35  # days in a user's stream of messages


@final
class AppConversation:
    """One conversation with a user of a population (`streams.draw_population`); the task is {"user": its number}.

    The user writes another message (reward 1), requests another reply to the same message (`retry_reward`), does not
    see the reply (0), or leaves (0, or `retry_reward` after a request for another reply), which terminates the episode.
    It is truncated after `max_replies` replies. `info`: mean hidden utility of the replies, messages of the user,
    retries.
    """

    def __init__(self, world: World, population: Population, max_replies: int = 60, retry_reward: float = 0.0) -> None:
        if max_replies < 1:
            raise InputError(f"max_replies={max_replies}; needed: 1 or more")
        self.world, self.population = world, population
        self.max_replies, self.retry_reward = max_replies, retry_reward
        self.day, self.retries = 0, 0
        self.utilities: list[float] = []

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """The user's first message. Raises InputError for a user that is not in the population."""
        self.row = self._find_user(task.get("user"))
        self.user = self.population.users.take(self.row)
        self.day, self.retries, self.utilities = seed % SEEDS, 0, []
        row = int(self.row[0])
        words = self.population.words(row, self.day, 0)
        self.chat: SimulatedChat = open_chat(self.world, words, self.population.users, row)
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """The user's reaction to a reply."""
        reply = one_line(actions[POLICY])
        reaction = self._reaction(reply)
        reward = 0.0
        if reaction.retried[0]:
            reward, self.retries = self.retry_reward, self.retries + 1
        if reaction.retried[0] or not reaction.shown[0]:
            self.chat.attempts += 1
        elif not reaction.ended[0]:
            reward = 1.0
            self._continue(reply)
        ended = bool(reaction.ended[0])
        info = {"utility": float(np.mean(self.utilities)), "length": self.chat.messages, "retries": self.retries}
        return StepResult(
            {} if ended else self._shown(),
            {POLICY: reward},
            terminated=ended,
            truncated=not ended and len(self.utilities) >= self.max_replies,
            info=info,
        )

    def _find_user(self, number: object) -> np.ndarray:
        """[1] the row of the user in the population."""
        numbers = self.population.numbers
        rows = np.flatnonzero(numbers == number)
        if len(rows) != 1:
            raise InputError(
                f"a task has user={number!r}; needed: a number of the population's {len(numbers)} users, from "
                f"{numbers[0]} to {numbers[-1]}"
            )
        return rows

    def _reaction(self, reply: str) -> Reaction:
        chat, day = self.chat, np.array([self.day])
        utility = self.world.utility([chat.conversation], [reply], self.user)
        self.utilities.append(float(utility[0]))
        messages, attempts = np.array([chat.messages]), np.array([chat.attempts])
        randomness = self.population.moments("reaction", self.row, day, messages, attempts)
        return behaviour.react(randomness, self.user, utility, messages, attempts, self.world.noise)

    def _continue(self, reply: str) -> None:
        """Append the reply and the user's next message to the conversation."""
        chat = self.chat
        chat.turns.append(Turn("bot", reply))
        words = self.population.words(chat.user, self.day, chat.messages + 1)
        say(self.world, words, self.population.users, chat)

    def _shown(self) -> dict[str, Observation]:
        return {POLICY: Observation(self.chat.conversation)}

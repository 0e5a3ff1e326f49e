"""`as_pettingzoo("textarena:Nim-v0")`: an environment of ours with several agents as an `AECEnv`, over texts.

PettingZoo is an extra: `pip install 'lmgym[pettingzoo]'`.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import finalize

import numpy as np

from lmgym.apps.games.replies import import_extra
from lmgym.apps.interop.texts import AnyText, Ours, gymnasium, info_of, ours, task_and_seed, text_of
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.protocol import EpisodeFailed, Task
from lmgym.environments.session import Driver
from lmgym.errors import InputError, listed

pettingzoo = import_extra("pettingzoo", "pettingzoo")
TEXT = "text"


def as_pettingzoo(environment: Ours, agents: Sequence[str] = ()) -> "TextAEC":
    """An environment of ours, whose trained agents act; others are played by their players.

    `agents` are the trained ones by name; without them, they are those that ask for a reply in an episode of the first
    task. Raises InputError for an unknown name, and where that episode has fewer agents than the environment trains.
    """
    return TextAEC(environment, agents)


class TextAEC(pettingzoo.AECEnv):  # type: ignore[name-defined]
    """Observations are {"text": ...}, as api_test has no plain texts; actions are texts.

    `infos` have `messages`, `actions` (empty: any text) and figures. Agents that our environment asks at once are asked
    one after the other; none sees what the others said. `reset` has the options of `as_gymnasium`, `task` or `split`,
    and ignores others. Rewards are those of our engine: an agent that has not acted has none. A failure of the
    environment is an `EpisodeFailed`, never a reward.
    """

    def __init__(self, environment: Ours, agents: Sequence[str] = ()) -> None:
        super().__init__()
        self.named = ours(environment)
        self.metadata = {"name": self.named.name, "render_modes": [], "is_parallelizable": False}
        self.render_mode = None
        self._driver, self._rng = Driver(self.named), np.random.default_rng()
        self._close = finalize(self, self._driver.close)  # also where nobody calls `close`
        self.task: Task = {}
        """of the episode"""
        self.possible_agents = list(agents) or self._find_agents()
        self.agents: list[str] = []
        self.agent_selection = ""
        self._spaces = {a: (gymnasium.spaces.Dict({TEXT: AnyText()}), AnyText()) for a in self.possible_agents}
        self._seen: dict[str, str] = {}
        self._totals: dict[str, float] = {}

    @property
    def episode(self) -> RunningEpisode:
        """The one that is played."""
        return self._driver.episode

    def observation_space(self, agent: str) -> Any:
        """A dict with a text."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> AnyText:
        """All texts."""
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin an episode. Raises EpisodeFailed if its environment fails, and if it ends before an agent acts."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.task, ours_seed = task_and_seed(self.named, seed, options or {}, self._rng)
        self._begin(self.task, ours_seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._seen = dict.fromkeys(self.agents, "")
        self._totals = dict.fromkeys(self.agents, 0.0)
        if self.episode.ended:
            raise EpisodeFailed(f"{self.episode} ended before an agent acted")
        self._look()

    def observe(self, agent: str) -> dict[str, str]:
        """The text that the agent was last shown; empty before it is asked."""
        return {TEXT: self._seen[agent]}

    def step(self, action: str | None) -> None:
        """Say something, or None for an agent that is done. Raises EpisodeFailed if the environment fails."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert isinstance(action, str), "a text"
        self._driver.texts[agent] = action
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._waiting.remove(agent)
        if self._waiting:
            self.agent_selection = self._waiting[0]
            return
        self._go_on()
        self.rewards = {one: self._earned(one) for one in self.agents}
        self._accumulate_rewards()
        self._look()

    def close(self) -> None:
        """End the threads, and the environment, if it can be closed."""
        self._close()

    def _begin(self, task: Task, seed: int) -> None:
        self._driver.begin(task, seed)
        if not (self.episode.ended or self._driver.asked):
            self._go_on()

    def _go_on(self) -> None:
        """Give what was said to the environment, and let the others play until a trained agent is asked."""
        self._driver.step()
        while not (self.episode.ended or self._driver.asked):
            self._driver.step()

    def _earned(self, agent: str) -> float:
        """The rewards of an agent since they were asked for last."""
        before, self._totals[agent] = self._totals[agent], self._driver.earned(agent)
        return self._totals[agent] - before

    def _look(self) -> None:
        """Take what the agents are shown, and select the first of them, or end."""
        result = self.episode.result
        self._waiting = self._driver.asked
        if unknown := [agent for agent in self._waiting if agent not in self.possible_agents]:
            raise InputError(f"{self.named.name} asks {listed(unknown)}; needed: agents= with all trained agents")
        for agent in self._waiting:
            self._seen[agent] = text_of(self.episode.observations[agent])
            self.infos[agent] = info_of(self.episode.observations[agent], {})
        if self.episode.ended:
            self.terminations = dict.fromkeys(self.agents, result.terminated)
            self.truncations = dict.fromkeys(self.agents, result.truncated)
            self.infos = {agent: {**info, **result.info} for agent, info in self.infos.items()}
            self.agent_selection = self.agents[0]
        else:
            self.agent_selection = self._waiting[0]

    def _find_agents(self) -> list[str]:
        """Those that are asked in an episode of the first task, where they say listed actions, or nothing."""
        found: dict[str, None] = {}
        self._begin(self.named.tasks[0], 0)
        while True:
            asked = self._driver.asked
            found |= dict.fromkeys(asked)
            if len(found) >= self.named.trained_agents:
                return list(found)
            if self.episode.ended:
                raise InputError(
                    f"{self.named.name} trains {self.named.trained_agents} agents, and an episode asked "
                    f"{listed(found)}; needed: agents= with their names"
                )
            self._driver.texts = {agent: next(iter(self.episode.observations[agent].actions), "") for agent in asked}
            self._go_on()

"""`--environment pettingzoo:MODULE?setting=value`: any game of PettingZoo as text, by rule from its spaces.

A user's own class is one too: `--environment FILE.py:CLASS`, of an `AECEnv` or a `ParallelEnv`, whose settings are its
own. Its attributes of the names in OWN, if the class has them, are what the settings of these names are. Parallel
environments are converted by PettingZoo's own conversion: agents act in turn on what they saw at once.
"""

import importlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

from lmgym.apps.games.replies import import_extra, missing_extra, unknown_id
from lmgym.apps.interop import from_gymnasium
from lmgym.apps.interop.from_gymnasium import (
    IN_A_ROW,
    MOST_STEPS,
    Illegal,
    about_illegal,
    read_illegal,
    read_rules,
    refuse_spaces,
)
from lmgym.environments.bounds import read_reward
from lmgym.environments.named import NamedEnvironment, Scheme, Settings
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.errors import InputError, did_you_mean, listed, shown
from lmgym.generation.protocol import Completion, Sampling, seeds_of
from lmgym.text import Conversation, Turn

OWN = ("policy", *from_gymnasium.OWN)
"""settings that are not the environment's"""
TEST = "pettingzoo.test.api_test"
MASK = "action_mask"
"""PettingZoo's name for it, in an observation or in an agent's info"""


@final
class PettingZooText:
    """An episode of an `AECEnv`, whose agents are PettingZoo's, under their names as text; the task is ignored.

    A reply that is no action, or a masked one, earns the reward of `illegal`; its agent is asked again. Rewards are
    those of each step. An agent that is done is not asked any more. Truncated if the last agents were, after
    `max_steps` replies, or after those of `illegal` in a row. `info`: steps, illegal ones. `step` raises ValueError
    where rewards are not those that `last()` sums up.
    """

    def __init__(
        self, env: Any, rules: str = "", illegal: Illegal = (-1.0, IN_A_ROW), max_steps: int = MOST_STEPS
    ) -> None:
        from lmgym.apps.interop import spaces

        self.spaces = spaces
        self.env, self.rules, self.max_steps = env, rules, max_steps
        self.illegal_reward, self.illegal_in_a_row = illegal
        self.steps, self.illegal, self.in_a_row = 0, 0, 0
        self.earned: dict[Any, float] = {}
        """by PettingZoo's agent, since it last acted"""
        self.latest: tuple[Any, Mapping[str, Any]] = None, {}
        """the observation and the info of the agent that acts next"""
        self.mask: Any = None
        """its mask"""
        self.views: dict[Any, tuple[Any, str]] = {}

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin an episode."""
        self.env.reset(seed=seed)
        self.steps, self.illegal, self.in_a_row = 0, 0, 0
        self.earned = dict.fromkeys(self.env.agents, 0.0)
        self._bury()
        if not self.env.agents:
            raise ValueError("no agents after the reset; needed: an agent that acts")
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the action of the agent whose turn it is."""
        agent = self.env.agent_selection
        action = self._action(actions[str(agent)])
        self.steps += 1
        self.in_a_row = self.in_a_row + 1 if action is None else 0
        if action is None:
            self.illegal += 1
            rewards, finals = {str(agent): self.illegal_reward}, dict[str, Observation]()
        else:
            self.env.step(action)
            earned = {one: read_reward(str(one), reward) for one, reward in self.env.rewards.items()}
            self.earned[agent] = 0.0
            self.earned |= {one: self.earned.get(one, 0.0) + reward for one, reward in earned.items()}
            rewards, finals = {str(one): reward for one, reward in earned.items()}, self._bury()
        over = not self.env.agents
        stopped = self.steps >= self.max_steps or self.in_a_row == self.illegal_in_a_row
        truncated = bool(finals) if over else stopped
        info = {"steps": self.steps, "illegal": self.illegal}
        return StepResult(finals if over else self._shown(), rewards, over and not truncated, truncated, info)

    def close(self) -> None:
        """Close PettingZoo's environment."""
        self.env.close()

    def _action(self, reply: str) -> Any:
        """The action of a reply; None if it is none, or masked."""
        space = self.env.action_space(self.env.agent_selection)
        action = self.spaces.read(space, reply)
        masked = isinstance(action, int) and self.mask is not None and not self.mask[action - space.start]
        return None if masked else action

    def _bury(self) -> dict[str, Observation]:
        """Let agents that are done leave, by PettingZoo's rule; the last observations of those that were truncated."""
        finals = {}
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            self._check(agent, reward)
            if not (terminated or truncated):
                self.latest = observation, info
                break
            if truncated and not terminated:
                finals[str(agent)] = self._seen(agent, observation, {})
            self.env.step(None)
            if agent in self.env.agents:
                raise ValueError(f"{agent} stays after its end; needed: an environment that passes {TEST}")
        return finals

    def _check(self, agent: Any, reward: Any) -> None:
        """Raises ValueError if an agent's reward is not the sum of its rewards since it last acted."""
        summed = self.earned.get(agent, 0.0)
        if not math.isclose(float(reward), summed, rel_tol=1e-5, abs_tol=1e-6):
            raise ValueError(
                f"{agent} earned {summed:g} by the rewards of each step and {float(reward):g} by last(); needed: an "
                f"environment that passes {TEST}"
            )

    def _shown(self) -> dict[str, Observation]:
        """The observation of the agent that acts next."""
        agent = self.env.agent_selection
        return {str(agent): self._seen(agent, *self.latest)}

    def _seen(self, agent: Any, observation: Any, info: Mapping[str, Any]) -> Observation:
        """A mask is no part of the text: the actions that it allows are."""
        space, part = self._view(agent)
        actions = self.env.action_space(agent)
        in_observation = isinstance(observation, dict) and MASK in observation
        self.mask = (observation if in_observation else info).get(MASK)
        text = self.spaces.show(space, observation[part] if part else observation)
        legal = self.spaces.listed(actions, self.mask)
        if self.mask is not None and legal:
            text += f"\nLegal: {', '.join(legal)}"
        prompt = Conversation((Turn("user", text),), f"{self.rules} {self.spaces.wanted(actions)}")
        return Observation(prompt, legal)

    def _view(self, agent: Any) -> tuple[Any, str]:
        """The space of an agent's observations without the mask, and the name of the part that is left, if one is."""
        if agent not in self.views:
            self.views[agent] = view_of(self.env.observation_space(agent))
        return self.views[agent]


def view_of(space: Any) -> tuple[Any, str]:
    """(a space without its mask, the name of the part that it is). A dict with one part is shown as this part."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return space, ""
    parts = {name: part for name, part in space.spaces.items() if name != MASK}
    if len(parts) != 1:
        return spaces.Dict(parts), ""
    [(name, part)] = parts.items()
    return part, name


@dataclass(frozen=True)
class RandomMoves:
    """A player of one agent: any of the listed actions, or a sample of its space."""

    space: Any

    def pick(
        self, prompts: Sequence[Conversation], actions: Sequence[Sequence[str]], sampling: Sampling
    ) -> list[list[Completion]]:
        """An action for each prompt."""
        seeds = seeds_of(sampling, len(prompts))
        return [[Completion(self._one(legal, seed), "eos")] for legal, seed in zip(actions, seeds, strict=True)]

    def _one(self, legal: Sequence[str], seed: int) -> str:
        from lmgym.apps.interop import spaces

        if legal:
            return legal[int(np.random.default_rng(seed).integers(len(legal)))]
        space = deepcopy(self.space)
        space.seed(seed % 2**32)
        return spaces.write(space, space.sample())


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """The environment that a module makes, as `classic.tictactoe_v3` of PettingZoo, or a module of another package.

    The policy is all of its agents, or with `policy` one of them, and the others make random legal moves.
    `rules`, `illegal_reward` and `illegal_in_a_row` are those of from_gymnasium.py; other settings are the
    environment's. Raises InputError without PettingZoo or the module, for what cannot be made, and for spaces that
    cannot be text.
    """
    import_extra("pettingzoo", "pettingzoo")
    module = find_module(name)
    given = {key: value for key, value in settings.items() if key not in OWN}

    def make() -> Any:
        return turn_based(module.env(**given) if hasattr(module, "env") else module.parallel_env(**given))

    own = {key: value for key, value in settings.items() if key in OWN}
    return by_rule(f"pettingzoo:{name}", make, make(), own)


def find_module(name: str) -> Any:
    """The module of environments. Raises InputError, with the command that installs what it needs, if there is none."""
    family, _, game = name.partition(".")
    if not (family and game):
        raise unknown_id(name, modules(), "pettingzoo")
    theirs = find_spec(f"pettingzoo.{family}") is not None
    package = f"pettingzoo.{family}" if theirs else family
    try:
        module = importlib.import_module(f"{package}.{game}")
    except ImportError as error:
        if error.name == f"{package}.{game}":
            raise unknown_id(name, modules(), "pettingzoo") from error
        extras = metadata.metadata("pettingzoo").get_all("Provides-Extra") or ()
        command = f"'pettingzoo[{family}]'" if family in extras else "" if theirs else package
        needed = f"; needed: pip install {command}" if command else ""
        raise InputError(f"{name} cannot be imported: {error}{needed}") from error
    if not (hasattr(module, "env") or hasattr(module, "parallel_env")):
        raise unknown_id(name, modules(), "pettingzoo")
    return module


def turn_based(env: Any) -> Any:
    """An `AECEnv`: a `ParallelEnv` by PettingZoo's conversion."""
    from pettingzoo import ParallelEnv
    from pettingzoo.utils.conversions import parallel_to_aec

    if not isinstance(env, ParallelEnv):
        return env
    with warnings.catch_warnings():  # that it has no render_mode
        warnings.simplefilter("ignore")
        return parallel_to_aec(env)


def by_rule(words: str, make: Callable[[], Any], first: Any, own: Settings) -> NamedEnvironment:
    """Environments that `make` makes, `first` among them. Raises InputError for what cannot be text or names nobody."""
    policy = str(own.get("policy", ""))
    agents = {str(agent): agent for agent in getattr(first, "possible_agents", ())}
    if not agents:
        raise InputError(f"{words} has no possible_agents; needed: an environment that says who plays in it")
    if policy and policy not in agents:
        raise InputError(
            f"{words} has no agent {shown(policy)}; {did_you_mean(policy, agents)}needed: one of {listed(agents)}"
        )
    for name, agent in agents.items():
        refuse_spaces(f"{words} ({name})", view_of(first.observation_space(agent))[0], first.action_space(agent))
    illegal = read_illegal(words, own)
    told = read_rules(words, own, str(first.metadata.get("name", type(first).__name__)))
    players = {name: RandomMoves(first.action_space(agent)) for name, agent in agents.items() if name != policy}
    first.close()
    others = ", the others make random moves" if policy and players else ""
    return NamedEnvironment(
        words,
        lambda: PettingZooText(make(), told, illegal, MOST_STEPS * len(agents)),
        players=players if policy else {},
        trained_agents=1 if policy else len(agents),
        about=f"the policy is {policy or listed(agents)}{others}; {about_illegal(*illegal)}",
    )


def modules() -> list[str]:
    """PettingZoo's modules: FAMILY.NAME_vN."""
    import pettingzoo

    folder = Path(pettingzoo.__path__[0])
    return sorted(f"{path.parent.name}.{path.stem}" for path in folder.glob("*/*_v[0-9]*.py"))


def names() -> Iterator[str]:
    """The modules whose environments can be made here and be text."""
    for name in modules():
        with suppress(Exception):  # of any package
            load(name, {})
            yield name


def _names() -> list[str]:
    return [] if missing() else list(names())


def missing() -> str:
    """The command that installs PettingZoo; empty if it is there."""
    return missing_extra("pettingzoo", "pettingzoo")


def wrap(words: str, make: Callable[[], Any], first: Any) -> NamedEnvironment | None:
    """A user's own `AECEnv` or `ParallelEnv`; None for anything else."""
    pettingzoo = sys.modules.get("pettingzoo")  # a class of it has imported it
    if pettingzoo is None or not isinstance(first, pettingzoo.AECEnv | pettingzoo.ParallelEnv):
        return None
    own = {name: getattr(type(first), name) for name in OWN if hasattr(type(first), name)}
    return by_rule(words, lambda: turn_based(make()), turn_based(first), own)


ABOUT = "any game of PettingZoo whose spaces can be text; families need more, as pettingzoo[classic]"
SCHEME = Scheme("pettingzoo:MODULE", ABOUT, load, _names, missing, wrap=wrap)

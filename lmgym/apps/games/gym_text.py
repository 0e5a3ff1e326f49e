"""`GymText`: an environment of Gymnasium as text, by three functions. toy_text.py has four that are ready.

By rule, without functions: `--environment gymnasium:ID` (lmgym/apps/interop/from_gymnasium.py).

Gymnasium is an extra: `pip install 'lmgym[gym]'`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from lmgym.apps.games.replies import MAX_STEPS, import_extra, unknown_id
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError, shown
from lmgym.text import Conversation, Turn


@final
class GymText:
    """An episode of `gymnasium.make(env, **settings)`, or of an environment that was made.

    The seed of `reset` is Gymnasium's, the task is ignored.

    `show(observation)` is the text that the policy reads, after `rules`; `read(reply)` is the action, or None for a
    reply that is none, which earns `illegal_reward` and leaves the environment as it is; `legal(observation)` lists the
    replies that are actions. Truncated by the environment, after `max_steps` replies, or after `illegal_in_a_row` that
    are none (None: of no number). `info`: steps, illegal ones.
    """

    def __init__(
        self,
        env: Any,
        show: Callable[[Any], str],
        read: Callable[[str], Any],
        legal: Callable[[Any], Sequence[str]] = lambda observation: (),
        max_steps: int = 1000,
        illegal_reward: float = -1.0,
        rules: str = "",
        settings: Mapping[str, Any] | None = None,
        illegal_in_a_row: int | None = None,
    ) -> None:
        MAX_STEPS.check("max_steps", max_steps)
        self.show, self.read, self.legal, self.rules = show, read, legal, rules
        self.max_steps, self.illegal_reward, self.illegal_in_a_row = max_steps, illegal_reward, illegal_in_a_row
        self.env = make_gymnasium(env, settings or {}) if isinstance(env, str) else env
        self.env_id = env if isinstance(env, str) else type(env.unwrapped).__name__
        self.observation: Any = None
        """Gymnasium's latest one"""
        self.steps, self.illegal, self.in_a_row = 0, 0, 0

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin an episode."""
        self.observation, _ = self.env.reset(seed=seed)
        self.steps, self.illegal, self.in_a_row = 0, 0, 0
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take one action. Raises ValueError for one that `read` gives and the environment does not have."""
        action, terminated, truncated = self.read(actions[POLICY]), False, False
        self.steps += 1
        self.in_a_row = self.in_a_row + 1 if action is None else 0
        if action is None:
            self.illegal += 1
            reward = self.illegal_reward
        elif not self.env.action_space.contains(action):
            raise ValueError(
                f"{shown(actions[POLICY])} was read as {shown(action)}; needed: an action of {self.env.action_space}, "
                "or None for a reply that is none"
            )
        else:
            self.observation, reward, terminated, truncated, _ = self.env.step(action)
        terminated = bool(terminated)
        stopped = self.steps >= self.max_steps or self.in_a_row == self.illegal_in_a_row
        truncated = not terminated and bool(truncated or stopped)
        info = {"steps": self.steps, "illegal": self.illegal}
        return StepResult({} if terminated else self._shown(), {POLICY: reward}, terminated, truncated, info)

    def close(self) -> None:
        """Close Gymnasium's environment."""
        self.env.close()

    def _shown(self) -> dict[str, Observation]:
        text = self.show(self.observation)
        if not isinstance(text, str):
            raise InputError(f"`show` of {self.env_id} gave a {type(text).__name__}; needed: the observation as text")
        prompt = Conversation((Turn("user", text),), self.rules)
        return {POLICY: Observation(prompt, tuple(self.legal(self.observation)))}


def make_gymnasium(env_id: str, settings: Mapping[str, Any]) -> Any:
    """The environment. Raises InputError without Gymnasium, for an unknown id and for unknown settings."""
    gymnasium = import_extra("gymnasium", "gym")
    known = gymnasium.registry
    if ":" not in env_id and env_id not in known:
        raise unknown_id(env_id, known, f"gymnasium {gymnasium.__version__}")
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **settings)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f"{env_id} cannot be made here: {error}") from error
    except ModuleNotFoundError as error:
        package = env_id.partition(":")[0].partition(".")[0].replace("_", "-")
        raise InputError(f"{env_id} cannot be made here: {error} Needed: pip install {package}") from error
    except (TypeError, gymnasium.error.Error) as error:
        raise InputError(f"{env_id} cannot be made with {dict(settings)}: {error}; needed: its own settings") from error

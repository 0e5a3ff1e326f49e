"""`as_gymnasium("games:blackjack")`: an environment of ours as a `gymnasium.Env`, over texts.

Gymnasium is an extra: `pip install 'lmgym[gym]'`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import finalize

from lmgym.apps.interop.texts import AnyText, Ours, gymnasium, info_of, ours, task_and_seed, text_of
from lmgym.environments.protocol import Task
from lmgym.environments.session import Seen, Session
from lmgym.errors import InputError, listed

OPTIONS = ("task", "split")


def as_gymnasium(environment: Ours) -> "SessionEnv":
    """An environment of ours, whose one trained agent acts; others are played by their players.

    Raises InputError for an unknown name, and for environments that train several agents.
    """
    return SessionEnv(environment)


class SessionEnv(gymnasium.Env):  # type: ignore[name-defined]
    """Observations and actions are texts. `info` has `messages`, `actions` (empty: any text) and figures.

    `reset(seed=7)` begins episode 7 of `options`' `split` (train): `NamedEnvironment.episode` says which task and seed
    of ours that is, and `env.task` is the task. With `options={"task": task}` it is the episode of this task and seed.
    Without a seed one is drawn. A failure of the environment is an `EpisodeFailed`, never a reward.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, environment: Ours) -> None:
        self.session = Session(ours(environment))
        self._close = finalize(self, self.session.close)  # also where nobody calls `close`
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.task: Task = {}
        """of the episode"""
        self._over = True

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode. Raises InputError for options that are none; EpisodeFailed if the environment fails."""
        super().reset(seed=seed)
        options = options or {}
        if unknown := [name for name in options if name not in OPTIONS]:
            raise InputError(f"reset has no option {listed(unknown)}; needed: {listed(OPTIONS)}")
        self._over = True  # if it fails
        self.task, ours_seed = task_and_seed(self.session.named, seed, options, self.np_random)
        seen = self.session.reset(self.task, ours_seed)
        self._over = False
        return self._given(seen)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Say something. Raises EpisodeFailed if the environment fails, and ResetNeeded after the end."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode has ended, or none has begun; needed: reset()")
        self._over = True
        seen = self.session.reply(action)
        self._over = seen.ended
        observation, info = self._given(seen)
        return observation, seen.reward, seen.terminated, seen.truncated, info

    def close(self) -> None:
        """Close the session."""
        self._close()

    def _given(self, seen: Seen) -> tuple[str, dict[str, Any]]:
        """The observation, also that of a truncated episode."""
        observation = seen.observation or self.session.episode.observations.get(self.session.agent)
        return text_of(observation), info_of(observation, seen.info)

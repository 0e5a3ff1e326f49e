"""Our observations as those of other libraries: one text, its space, and the task of an episode by a seed.

Gymnasium is an extra: `pip install 'lmgym[gym]'`.
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lmgym.apps.games.replies import import_extra
from lmgym.environments.named import TRAIN, NamedEnvironment, load_environment, of_class
from lmgym.environments.protocol import Environment, Observation, Task
from lmgym.errors import InputError, shown
from lmgym.text import messages, to_transcript

gymnasium = import_extra("gymnasium", "gym")
SAMPLE_LENGTH = 32
Ours = str | NamedEnvironment | Callable[[], Environment]
"""an environment by its name, loaded, or a class of ours"""


class AnyText(gymnasium.spaces.Text):  # type: ignore[name-defined]
    """The space of all texts: Gymnasium's own has a greatest length and a set of characters.

    Samples are up to SAMPLE_LENGTH printable characters of ASCII.
    """

    def __init__(self, seed: Any = None) -> None:
        super().__init__(SAMPLE_LENGTH, min_length=0, charset=string.printable, seed=seed)

    def contains(self, x: Any) -> bool:
        """True of every text."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    @property
    def is_np_flattenable(self) -> bool:
        """False: an array has one length."""
        return False


def ours(given: Ours) -> NamedEnvironment:
    """The environment of a name, a class or a function. Raises InputError for what `load_environment` refuses."""
    if isinstance(given, NamedEnvironment):
        return given
    if isinstance(given, str):
        return load_environment(given)
    return of_class(getattr(given, "__name__", "environment"), given, given)


def text_of(observation: Observation | None) -> str:
    """A prompt as one text: its only turn, after what comes before it, or the transcript of several; empty for None."""
    if observation is None or isinstance(observation.prompt, str):
        return observation.prompt if observation else ""  # type: ignore[return-value]
    prompt = observation.prompt
    if len(prompt.turns) == 1:
        return "\n\n".join(filter(None, (prompt.persona, prompt.turns[0].text)))
    return to_transcript(prompt)


def info_of(observation: Observation | None, figures: Mapping[str, float]) -> dict[str, Any]:
    """The `info` of an observation: the `messages` of its prompt, its listed `actions`, and the episode's figures."""
    info: dict[str, Any] = dict(figures)
    if observation is not None:
        info |= {"messages": messages(observation.conversation), "actions": list(observation.actions)}
    return info


def task_and_seed(
    named: NamedEnvironment, seed: int | None, options: Mapping[str, Any], rng: np.random.Generator
) -> tuple[Task, int]:
    """The episode of a `reset`: of `options`' task and the seed, or number `seed` of a `split` (train).

    A seed of None is drawn. Raises InputError for what is no task, and for another split.
    """
    number = int(rng.integers(2**31)) if seed is None else seed
    if "task" not in options:
        return named.episode(options.get("split", TRAIN), number)
    task = options["task"]
    if not isinstance(task, Mapping):
        raise InputError(f"task={shown(task)}; needed: a dict, one of {named.name}'s tasks")
    return task, number

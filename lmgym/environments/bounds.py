"""The bounds of what environments return. Numbers keep those of rewards (lmgym/scoring/retries.py).

Whatever is outside them fails one episode, so each message says what was found and what is needed.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any

from lmgym.environments.protocol import Observation, ScoreRequest, StepResult
from lmgym.errors import shown
from lmgym.scoring.retries import read_number
from lmgym.text import Conversation


def read_observations(found: Any) -> Mapping[str, Observation]:
    """The observations by agent. Raises TypeError or ValueError for anything else."""
    needed = "needed: {agent: Observation(prompt)} for all agents that act next"
    if not isinstance(found, Mapping):
        raise TypeError(f"a {type(found).__name__} is observed; {needed}")
    for agent, observation in found.items():
        _check_text("the name of an agent", agent)
        if not isinstance(observation, Observation):
            raise TypeError(f"a {type(observation).__name__} is observed; {needed}")
        prompt = observation.prompt
        texts: list[Any] = [prompt]
        if isinstance(prompt, Conversation):
            texts = [prompt.persona, *(turn.text for turn in prompt.turns)]
        for text in [*texts, *observation.actions]:
            _check_text(f"the observation of {shown(agent)}", text)
    return found


def read_result(result: Any) -> StepResult:
    """The result of a step. Raises TypeError or ValueError for one that breaks the protocol."""
    if not isinstance(result, StepResult):
        raise TypeError(
            f"`step` gave a {type(result).__name__}; needed: a StepResult; GymText (docs/games.md) makes one of "
            "Gymnasium's tuples"
        )
    read_observations(result.observations)
    if not (result.observations or result.terminated or result.truncated):
        raise ValueError(
            "no agent has an observation and the episode has not ended; needed: an observation for the agent that acts "
            "next, or terminated or truncated"
        )
    for name in ("rewards", "info"):
        if not isinstance(getattr(result, name), Mapping):
            raise TypeError(f"{name} is a {type(getattr(result, name)).__name__}; needed: a dict of numbers")
    for request in result.score_requests:
        if not isinstance(request, ScoreRequest):
            raise TypeError(f"a score is requested by a {type(request).__name__}; needed: a ScoreRequest")
    for name, value in result.info.items():
        _check_text("a name in info", name)
        _check_figure(name, value)
    return result


def read_reward(agent: str, reward: Any) -> float:
    """The environment's reward of an agent. Raises ValueError, with the agent, for what is no reward."""
    try:
        return read_number(reward)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a reward for {shown(agent)}: {error}") from error


def _check_text(what: str, text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is {shown(text)}, a {type(text).__name__}; needed: text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} has half a surrogate pair, which no file can hold; needed: text") from error


def _check_figure(name: str, value: Any) -> None:
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"info[{shown(name)}] is {shown(value)}; needed: a finite number, to log")

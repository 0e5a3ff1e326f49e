"""A PPO run whose task setup is wrong at one place, drawn by a number: a field, an environment, what a method returns.

A run that ends with 0 has its model on disk; any other end is a refusal, or a failure, in one line.
"""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.environments.protocol import Observation, StepResult
from lmgym.runs.launch import launch
from ppo.config import PPOConfig, RolloutConfig
from ppo.task_setups import TaskSetup, text_with_function

ODD: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: 1, lambda: -1.5, lambda: float("nan"), lambda: True, lambda: "a text", lambda: b"bytes", list,
    dict, lambda: [1], lambda: ["a"], lambda: [[]], lambda: {1: 2}, lambda: {"policy": None}, lambda: {"policy": "hi"},
    lambda: ({"prompt": word} for word in "ab"), lambda: [{"prompt": 3}], lambda: [{3: "x"}], lambda: object(),
    lambda: len, lambda: int, lambda: {"policy": Observation(3)}, lambda: {"policy": Observation("hi", actions=3)},
    lambda: StepResult(), lambda: StepResult({"policy": 3}), lambda: StepResult(rewards={"policy": "much"}),
    lambda: StepResult(rewards={"other": 1.0}, terminated=True), lambda: StepResult(3, terminated=True),
    lambda: StepResult(terminated=True, info={"x": "y"}), lambda: StepResult(score_requests=[3]),
    lambda: 1 / 0, lambda: sys.exit(0), lambda: os._exit(0), lambda: exit("words"), lambda: [][1],
    lambda: StepResult(rewards={"policy": 1e300}, terminated=True), lambda: "x" * 10_000_000,
)  # fmt: skip
FIELDS = (
    "tasks", "eval_tasks", "environment", "reward_function", "fingerprint", "metric", "monitors", "players",
    "trained_agents", "rejections", "rows", "parts", "reading", "reference_lines", "uses_settings", "eval_environment",
)  # fmt: skip
PLACES = ("builder", "constructor", "reset", "step", "reward", "metric", *FIELDS)


def setup(place: str, odd: Callable[[], Any], tokenizer: Any) -> Any:
    """A good setup but for one place."""

    class Game:
        def __init__(self) -> None:
            if place == "constructor":
                odd()

        def reset(self, task: Any, seed: int) -> Any:
            return odd() if place == "reset" else {"policy": Observation("hello")}

        def step(self, actions: Any) -> Any:
            return odd() if place == "step" else StepResult(rewards={"policy": 1.0}, terminated=True)

    if place == "builder":
        return odd()
    if place in ("reward", "metric"):
        wrong = {"reward": (lambda **_: odd(), None), "metric": (lambda outputs, **_: [1.0] * len(outputs), odd)}
        reward, metric = wrong[place]
        tasks = [{"prompt": "hello"}, {"prompt": "hi"}]
        made = text_with_function(reward, metric and (lambda **_: metric()), tasks)
        return made(CONFIG, tokenizer)
    fields = {"tasks": [{}, {}], "eval_tasks": [{}], "environment": Game, "reward_function": None, "fingerprint": "x"}
    return TaskSetup(**(fields | ({place: odd()} if place in FIELDS else {})))


CONFIG = PPOConfig(
    "odd",
    ModelConfig("", precision="fp32"),
    RolloutConfig(eval_size=2, num_rollouts=4, max_new_tokens=4),
    optimizer=OptimizerConfig(1e-3, warmup=0, global_batch=4, micro_batch=2, max_updates=4),
    run=RunConfig("out", tracking="none", save_updates=-1),
)


def main(model: str, number: str) -> None:
    """One case."""
    from dataclasses import replace

    from ppo.train import train

    rng = random.Random(f"setups {number}")
    place, odd = rng.choice(PLACES), rng.choice(ODD)
    config = replace(CONFIG, policy=replace(CONFIG.policy, model=model))
    folder = train(config, lambda config, tokenizer: setup(place, odd, tokenizer))
    assert list(Path(folder).rglob("model*.safetensors")), "a run that ended well has a model"


if __name__ == "__main__":
    launch(lambda: main(*sys.argv[1:]))

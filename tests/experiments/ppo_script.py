"""PPO on small chats with a reward by a function; `LMGYM_TEST_*` in its environment plant what a test asks for.

RECORD=FILE keeps the replies of every rollout, by the seed of each; REPLAY=FILE plays them again, however many ranks
share them. EPS is Adam's: a large one lets a gradient that is too large be seen. NOISY adds random numbers of Python's,
numpy's and torch's generators to rewards. LOGITS is how many of them there are at once. On rank RANK, or on all: CACHE
lets the frozen layers' states exceed every budget; TALKS gives its episodes three turns, those of other ranks one;
FAULT happens in rewards from call AT on (0 is the evaluation before step 1, 1 the first iteration; "full" is the disk
that DISK lies on), or in forward AT of the values.
"""

import contextlib
import json
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.errors import RunStopped
from lmgym.generation.protocol import Completion, Sampling, seeds_of
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

PLANT = {
    name.removeprefix("LMGYM_TEST_"): value for name, value in os.environ.items() if name.startswith("LMGYM_TEST_")
}
MINE = PLANT.get("RANK", os.environ.get("RANK", "0")) == os.environ.get("RANK", "0")

CONFIG = PPOConfig(
    name="ppo_script",
    policy=ModelConfig(precision="fp32"),
    rollout=RolloutConfig(eval_size=6, num_rollouts=16, max_new_tokens=8),
    method=MethodConfig(ppo_epochs=2),
    optimizer=OptimizerConfig(1e-3, schedule="linear", warmup=0, global_batch=8, micro_batch=2, max_updates=12),
)


@dataclass
class Replayed:
    """A sampler whose replies are kept in a file, or come out of one."""

    inner: Any

    @property
    def max_length(self) -> int:
        return self.inner.max_length

    def generate(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        seeds = list(map(str, seeds_of(sampling, len(prompts))))
        if "REPLAY" in PLANT:
            known = json.loads(Path(PLANT["REPLAY"]).read_text())
            for seed, prompt in zip(seeds, prompts, strict=True):
                assert known[seed]["prompt"] == prompt, "another prompt than was recorded"
            return [[_completion(known[seed])] for seed in seeds]
        found = self.inner.generate(prompts, n, sampling)
        file = Path(PLANT["RECORD"])
        known = json.loads(file.read_text()) if file.exists() else {}
        for seed, prompt, [one] in zip(seeds, prompts, found, strict=True):
            assert seed not in known, "a seed came twice"
            known[seed] = {"prompt": prompt, "text": one.text, "reason": one.finish_reason, "ids": one.ids}
            known[seed]["logprobs"] = one.logprobs
        file.write_text(json.dumps(known))
        return found


def _completion(kept: dict[str, Any]) -> Completion:
    ids = tuple(kept["ids"])
    return Completion(kept["text"], kept["reason"], ids, tuple(kept["logprobs"]), len(ids))


def share_of_vowels(text: str) -> float:
    return sum(text.count(x) for x in "aeiou") / max(1, len(text))


@dataclass
class Vowels:
    """The share of vowels in a reply, with what was planted."""

    calls: int = 0

    def __call__(self, samples, prompts, outputs, tokenizer) -> list[Any]:
        time.sleep(float(PLANT.get("SLEEP", 0)))
        fault = PLANT.get("FAULT", "") if self.calls >= int(PLANT.get("AT", 0)) and MINE else ""
        self.calls += 1
        found: list[Any] = [share_of_vowels(text) for text in outputs]
        if "NOISY" in PLANT:
            found = [x + random.random() + np.random.random() + torch.rand(()).item() for x in found]
        if fault == "full":
            with contextlib.suppress(OSError), (Path(PLANT["DISK"]) / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        if fault == "raise":
            raise KeyError("planted")
        if fault == "regex":  # for ages, in C, without letting another thread run
            re.match(r"(a+)+$", "a" * 60 + "b")
        if fault == "folder":
            os.chdir(PLANT["FOLDER"])
        if fault == "dtype":
            torch.set_default_dtype(torch.float64)
        if fault == "close":
            sys.stdout.close()
        if fault == "remove":
            shutil.rmtree(PLANT["FOLDER"])
        if fault == "move":
            Path(PLANT["FOLDER"]).rename(f"{PLANT['FOLDER']}.moved")
        if fault == "stop":
            raise RunStopped("the scorer's budget is spent", "failed", 69)
        if fault == "nan":
            found = [float("nan")] * len(found)
        if fault == "words":
            found = ["good"] * len(found)
        if fault == "count":
            found = found[1:]
        if fault == "half":  # one in two cannot be had, however often it is asked for
            found = [x if i % 2 else None for i, x in enumerate(found)]
        return found


LISTED = ("tea", "a cup of coffee with you", "no", "my cats and dogs")


class Talk:
    """An environment of some turns; each is worth the share of vowels in what was said. It lists some replies."""

    def __init__(self) -> None:
        self.turns = 3 if MINE else 1

    def reset(self, task, seed):
        self.prompt = task["prompt"]
        return self._shown()

    def step(self, actions):
        [said], self.turns = actions.values(), self.turns - 1
        ended = self.turns < 1
        return StepResult({} if ended else self._shown(), {POLICY: share_of_vowels(said)}, ended)

    def _shown(self):
        return {POLICY: Observation(self.prompt, LISTED[: 5 - self.turns])}


def talks(config, tokenizer):
    """A task setup of such talks."""
    from lmgym.data.prompts import read_prompts
    from ppo.task_setups import TaskSetup

    prompts = read_prompts(config.rollout, config.optimizer.seed)
    return TaskSetup(prompts.train, prompts.evaluation, Talk, None, prompts.fingerprint)


def plant() -> None:
    """Puts the faults and records that a test asks for in their places."""
    import ppo.algorithms.learning
    import ppo.experience
    import ppo.rollouts
    import ppo.setup
    from lmgym.models.forward import logprobs

    if "LOGITS" in PLANT:
        logprobs.CHUNK_LOGITS = int(PLANT["LOGITS"])
    if "CACHE" in PLANT and MINE:
        ppo.experience.width = lambda _: 1 << 50  # a rank's own size: the larger of all ranks' is still taken together
    if "EPS" in PLANT:
        ppo.setup.make_engine = partial(ppo.setup.make_engine, adam_epsilon=float(PLANT["EPS"]))
    if {"RECORD", "REPLAY"} & PLANT.keys():
        play = ppo.rollouts.play_tasks
        ppo.rollouts.play_tasks = lambda setup, tasks, seeds, generator, *more: play(
            setup, tasks, seeds, Replayed(generator), *more
        )
    if PLANT.get("FAULT") in ("loss", "gradient"):
        ppo.algorithms.learning.value_loss = _broken(
            ppo.algorithms.learning.value_loss, PLANT["FAULT"], int(PLANT.get("AT", 0))
        )


def _broken(value_loss, fault: str, at: int):
    """A value loss that is infinite, or has a slope that is no number, in call number `at`."""
    calls = [0]

    def broken(values, *more):
        total, count = value_loss(values, *more)
        if MINE and calls[0] == at:
            total = total * torch.inf if fault == "loss" else total + (values * 0.0).sum().abs().sqrt()
        calls[0] += 1
        return total, count

    return broken


if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.task_setups import text_with_function
    from ppo.train import train

    plant()
    prepare = talks if "TALKS" in PLANT else text_with_function(Vowels(), as_text=False)
    launch(lambda: train(config, prepare))

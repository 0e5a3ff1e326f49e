"""The stages of a family's tiny model in this process, as their experiments run them: two updates each."""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from families import LAYERS
from large_epsilon_script import EPSILON, trainer_with_large_epsilon
from launching import words
from ppo_in_process import PLAIN, train_small

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig, TrainerConfig
from preferences.config import LossConfig, PreferenceConfig
from reward_models.config import RewardModelConfig
from sft.config import SftConfig

RATE, UPDATES, UNFROZEN, TEMPERATURE = 0.1, 2, 2, 0.7
FROZEN = LAYERS - UNFROZEN
OPTIMIZER = OptimizerConfig(
    RATE, schedule="constant_with_warmup", warmup=0, global_batch=4, micro_batch=2, max_updates=UPDATES
)


@dataclass
class Ran:
    """A run that is over."""

    folder: Path
    said: str
    """on one line"""
    padded: int
    """how often rows were padded"""
    built: list[Any] = field(default_factory=list)
    """of PPO and GRPO: the policy, with its critic if it has one, as training left it"""


def reward_config(
    model: Path, pairs: Path, held_out: Path, output: Path, packed: bool | None = None
) -> RewardModelConfig:
    """Of a reward model on a few pairs."""
    return RewardModelConfig(
        "reward",
        ModelConfig(str(model), precision="fp32"),
        RowsConfig(str(pairs), eval_dataset=str(held_out), max_length=64),
        OPTIMIZER,
        RunConfig(str(output), tracking="none", save_updates=-1, eval_updates=UPDATES),
        TrainerConfig(packed=packed, log_updates=1),
    )


def sft_config(model: Path, chats: Path, output: Path, packed: bool | None = None) -> SftConfig:
    """Of SFT on a few conversations."""
    return SftConfig(
        "sft",
        ModelConfig(str(model), precision="fp32"),
        RowsConfig(str(chats), eval_size=8, max_length=64),
        OPTIMIZER,
        SamplesConfig(sample_prompts=2, sample_tokens=6),
        RunConfig(str(output), tracking="none", save_updates=-1, eval_updates=UPDATES),
        TrainerConfig(packed=packed, log_updates=1),
    )


def preference_config(
    model: Path, pairs: Path, held_out: Path, output: Path, packed: bool | None = None
) -> PreferenceConfig:
    """Of DPO on a few pairs."""
    return PreferenceConfig(
        "dpo",
        ModelConfig(str(model), precision="fp32"),
        RowsConfig(str(pairs), eval_dataset=str(held_out), max_length=64),
        LossConfig("dpo"),
        optimizer=OPTIMIZER,
        samples=SamplesConfig(sample_prompts=0),
        run=RunConfig(str(output), tracking="none", save_updates=-1, eval_updates=UPDATES),
        trainer=TrainerConfig(packed=packed, log_updates=1),
    )


def train_preferences(config: PreferenceConfig) -> Ran:
    """A preference run."""
    from preferences.train import train

    return _run(Path(config.output), lambda: train(config))


def train_reward_model(config: RewardModelConfig) -> Ran:
    """A reward model's run."""
    from reward_models.train import train_pairwise

    return _run(Path(config.output), lambda: train_pairwise(config))


def train_sft(config: SftConfig) -> Ran:
    """An SFT run."""
    from sft.tasks import CHAT
    from sft.train import train

    return _run(Path(config.output), lambda: train(config, CHAT))


def train_ppo(model: Path, prompts: Path, output: Path, padded: bool = False) -> Ran:
    """PPO with frozen layers and a value head on the policy's trunk; with `padded` as if the model could not pack."""
    return _train_policy(model, prompts, output, padded, num_layers_unfrozen=UNFROZEN)


def train_grpo(model: Path, prompts: Path, output: Path, padded: bool = False) -> Ran:
    """GRPO with adapters."""
    adapters = {"lora_rank": 4, "lora_alpha": 8}
    return _train_policy(model, prompts, output, padded, method="grpo", num_generations=4, ppo_epochs=1, **adapters)


def _train_policy(model: Path, prompts: Path, output: Path, padded: bool, **settings: Any) -> Ran:
    from lmgym.models.forward import structure

    built: list[Any] = []
    from ppo import setup

    build = setup.build

    def go() -> None:
        train_small(
            model, prompts, output.parent, PLAIN, output.name, num_rollouts=8, temperature=TEMPERATURE,
            learning_rate=RATE, max_updates=UPDATES, eval_updates=UPDATES, micro_batch=2,
            schedule="constant_with_warmup", **settings,
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "build", lambda *args: _kept(build(*args), built))
        patch.setattr(setup, "make_engine", partial(setup.make_engine, adam_epsilon=EPSILON))
        if padded:
            patch.setattr(structure, "_why_padded", lambda *_: "a test wants it")
        found = _run(output, go)
    found.built = built
    return found


def _kept(made: tuple[Any, Any], built: list[Any]) -> tuple[Any, Any]:
    built.append(made[0])
    return made


def _run(folder: Path, go: Callable[[], None]) -> Ran:
    """Runs a stage; counts padded batches, and takes down what it says."""
    from lmgym.models.forward import decoder

    padded: list[Any] = []
    of, said = decoder._PaddedBatch.of, io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.setattr(decoder._PaddedBatch, "of", staticmethod(lambda rows: padded.append(rows) or of(rows)))
        patch.setattr(*trainer_with_large_epsilon())
        with torch.enable_grad():  # a test may be without
            go()
    return Ran(folder, words(said.getvalue()), len(padded))


def chat(
    model: Path, scorer: Path, sessions: Path, lines: Sequence[str], best_of: int
) -> tuple[list[dict[str, Any]], str]:
    """A session from a pipe: the turn of each line, and what it said besides."""
    from lmgym.apps.chat.pipe_frontend import answer_lines
    from lmgym.apps.chat.startup import ChatOptions, open_chat

    flags = ("--model", str(model), "--scorers", f"judge={scorer}")
    out, notes = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(notes):
        chat = open_chat(ChatOptions("hh", "judge", best_of, sessions=str(sessions)), flags)
        answer_lines(chat, ["%set max_new_tokens=12 ends_at_eos=0", *lines], out, as_json=True)
    return [json.loads(line) for line in out.getvalue().splitlines()], words(notes.getvalue())

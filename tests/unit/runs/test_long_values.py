"""Flags of absurd length or with control characters, through the entry that users have: one short line and exit 2."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacks import drives

from lmgym.config import ModelConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import PPOConfig
from ppo.task_setups import chat_with_scorers
from ppo.train import train as train_ppo
from preferences.config import PreferenceConfig
from preferences.train import train as train_preferences
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

VALUES = {
    "5,000 letters": "x" * 5000,
    "a path of 300 letters": f"./{'x' * 300}",
    "a megabyte": "x" * 1_000_000,
    "a hub id of 5,000 letters": f"{'x' * 2500}/{'y' * 2500}",
    "control characters": "./\x1b[31m\u202e\x9b\nx" * 40,
    "half a character": "\udc80" * 300,
}
FLAGS = [
    ("sft", "model"), ("sft", "dataset"), ("sft", "eval_dataset"), ("sft", "deepspeed"), ("sft", "scorers"),
    ("sft", "prompts"), ("sft", "output"), ("sft", "name"), ("sft", "precision"), ("sft", "seed"),
    ("reward_models", "model"), ("reward_models", "dataset"), ("reward_models", "probe_data"),
    ("preferences", "dataset"), ("preferences", "loss"), ("preferences", "reference"),
    ("ppo", "model"), ("ppo", "critic"), ("ppo", "scorers"), ("ppo", "prompts"), ("ppo", "gold"), ("ppo", "weights"),
    ("ppo", "deepspeed"), ("ppo", "no_such_flag"),
]  # fmt: skip


@pytest.fixture
def ends(
    small_models, few_pairs: Path, chats_file: Path, tmp_path: Path, monkeypatch, capsys
) -> Callable[[str, str, str], str]:
    """The error of a stage that is launched with such a flag."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.chdir(tmp_path)
    model = ModelConfig(str(small_models["llama"]))
    stages: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "sft": (SftConfig("x", model), lambda config: train_sft(config, CHAT)),
        "reward_models": (RewardModelConfig("x", model), train_pairwise),
        "preferences": (PreferenceConfig("x", model), train_preferences),
        "ppo": (PPOConfig("x", model), lambda config: train_ppo(config, chat_with_scorers)),
    }

    def run(stage: str, flag: str, value: str) -> str:
        config, train = stages[stage]
        data = {
            "sft": ["--dataset", str(chats_file), "--max_length", "64", "--eval_size", "2", "--tracking", "none"],
            "reward_models": ["--dataset", str(few_pairs), "--max_length", "64"],
            "preferences": ["--dataset", str(few_pairs), "--max_length", "64"],
            "ppo": ["--prompts", str(few_pairs), "--scorers", "a=world:0", "--max_prompt", "64", "--eval_size", "2"],
        }
        given = [*data[stage], *([] if flag == "output" else ["--dry_run"])]
        with pytest.raises(SystemExit) as left:
            launch(lambda: train(override(config, [*given, f"--{flag}", value])))
        assert left.value.code == 2
        return capsys.readouterr().err

    return run


def cases() -> list[tuple[str, str, str]]:
    """All, but a folder with odd characters, which may well be made."""
    return [
        (*one, value) for one in FLAGS for value in VALUES if (*one, value) != ("sft", "output", "control characters")
    ]


@pytest.mark.parametrize(("stage", "flag", "value"), cases())
def test_a_flag_of_any_length_and_of_any_characters_ends_in_one_short_line(ends, stage, flag, value) -> None:
    said = ends(stage, flag, VALUES[value])
    assert said.startswith("error: ")
    assert drives(said) == []
    assert said.count("\n") == 1
    assert len(said) < 1400

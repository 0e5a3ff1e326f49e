"""A run's paths are absolute from its start on, and printed as they were given."""

import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from lmgym.config import ColumnConfig, ModelConfig, RowsConfig
from lmgym.console import printed_line
from lmgym.errors import InputError
from lmgym.runs.fields import flatten
from lmgym.runs.paths import PATHS, with_absolute_paths
from lmgym.runs.run import Run
from ppo.config import CriticConfig, PPOConfig, RewardConfig, RolloutConfig
from preferences.config import PreferenceConfig
from preferences.iterative.config import IterativeConfig
from reward_models.config import RewardModelConfig
from sft.config import SftConfig

STAGES = (SftConfig, RewardModelConfig, PreferenceConfig, IterativeConfig, PPOConfig)
# texts that name neither a file nor a folder
OTHERS = {
    *(
        "name",
        "lora_target_modules",
        "modules_to_save",
        "dataset_weights",
        "dataset_split",
        "prompt_weights",
        "weights",
    ),
    *("best_metric", "prompt_format", "reply_format", "engine", "push_to_hub", "run_name"),
    *("wandb_project", "wandb_entity", "wandb_group", "wandb_tags"),
    *(field.name for field in fields(ColumnConfig)),
}


def test_every_setting_of_text_is_a_path_or_known_to_be_none() -> None:
    for stage in STAGES:
        config = stage("x")
        groups = [config, *(value for value in vars(config).values() if is_dataclass(value))]
        texts = {f.name for group in groups for f in fields(group) if str(f.type).startswith("str")}
        assert texts - PATHS - OTHERS == set(), stage


def test_paths_that_exist_become_absolute_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chats.jsonl", "more.jsonl"):
        (tmp_path / name).touch()
    for name in ("scorer", "random", "head", "zero2"):  # three that are words of ours
        (tmp_path / name).mkdir()
    config = PPOConfig(
        "x",
        rollout=RolloutConfig(prompts="chats.jsonl, more.jsonl,owner/name", opponents="random", replay="chats.jsonl:3"),
        reward=RewardConfig(scorers="a=scorer,b=scorer#logit,c=world:0,d=owner/name"),
        critic=CriticConfig(critic="head"),
    )
    found = flatten(with_absolute_paths(config))
    assert found["prompts"] == f"{tmp_path}/chats.jsonl,{tmp_path}/more.jsonl,owner/name"
    assert found["scorers"] == f"a={tmp_path}/scorer,b={tmp_path}/scorer#logit,c=world:0,d=owner/name"
    assert found["replay"] == f"{tmp_path}/chats.jsonl:3"
    assert (found["opponents"], found["critic"]) == ("random", "head")
    assert found["output"] == f"{tmp_path}/outputs/x"
    assert flatten(with_absolute_paths(with_absolute_paths(config))) == found
    os.chdir("scorer")
    assert printed_line(f"results in {found['output']}/model.") == "results in outputs/x/model."
    assert printed_line(f"{tmp_path}/outputs/x2 and /else{tmp_path}/outputs/x") == (
        f"{tmp_path}/outputs/x2 and /else{tmp_path}/outputs/x"
    )


def test_a_run_writes_to_the_folder_that_it_was_given_wherever_its_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Run.start("mine/run", {}, seed=0, tracking="none") as run:
        run.log(1, {"loss": 1.0})
        (tmp_path / "other").mkdir()
        os.chdir("other")
        run.log(2, {"loss": 0.5})
    assert list((tmp_path / "other").iterdir()) == []
    assert len((tmp_path / "mine/run/metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("stage", ["reward", "ppo"])
def test_an_exchanged_model_and_data_are_told_with_the_right_flags(stage: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    Path("model").mkdir()
    Path("model/config.json").touch()
    config: Any = {
        "reward": RewardModelConfig("x", ModelConfig("rows.jsonl"), RowsConfig("model")),
        "ppo": PPOConfig("x", ModelConfig("rows.jsonl"), RolloutConfig("model")),
    }[stage]
    flag = {"reward": "dataset", "ppo": "prompts"}[stage]
    with pytest.raises(InputError, match=f"needed, the other way round: --model model --{flag} rows.jsonl$"):
        with_absolute_paths(config)

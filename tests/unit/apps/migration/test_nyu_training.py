"""`lmgym from nyu` on configs of SFT, DPO and PPO."""

import shlex
from pathlib import Path

import pytest
from nyu_configs import TRAINING, changed, config_of, text_of, translated

from lmgym.errors import InputError


def test_sft_reads_rows_out_of_debates(tmp_path: Path) -> None:
    [found] = translated(TRAINING, tmp_path, file="sft_config.yaml")
    assert found.command == "sft"
    assert found.before == ["lmgym debate data debates.jsonl --kind sft --output outputs/sft_1.jsonl"]
    assert found.flags == {
        "dataset": "outputs/sft_1.jsonl,yahma/alpaca-cleaned", "micro_batch": 2, "global_batch": 16,
        "schedule": "constant_with_warmup", "warmup": 0, "gradient_checkpointing": True, "max_length": 32768,
        "lora_rank": 64, "lora_alpha": 16, "merge_adapter": True, "model": "models/base", "epochs": 2,
        "lora_target_modules": "q_proj,k_proj,v_proj,gate_proj,up_proj,down_proj", "learning_rate": 2e-4,
        "max_grad_norm": 0.3, "output": "outputs/mine",
    }  # fmt: skip
    assert not found.asked
    assert [line.partition("=")[0].partition(":")[0] for line in found.lines] == [
        "dataset_type", "external_huggingface", "--global_batch", "optim", "merge_output_dir", "llm_type",
    ]  # fmt: skip
    judge = changed(TRAINING, target="judge", llm_type="llama", dataset=[TRAINING["dataset"][0]])
    [found] = translated(judge, tmp_path, file="sft_config.yaml")
    assert found.before == ["lmgym debate data debates.jsonl --kind judge --output outputs/judge_1.jsonl"]
    assert found.flags["load_in_4bit"] is True


def test_dpo_reads_preferences_or_plays_them(tmp_path: Path) -> None:
    rows = [{"dataset_type": "judge_preferences", "full_dataset_file_path": path} for path in ("2024-06-13", "runs/b")]
    supplemental = {"reward_type": "prob", "loss_type": "bon", "multiplier": 7, "epoch_size": 1024, "save_steps": 16}
    entry = changed(
        TRAINING,
        dataset=rows,
        training_hyperparameters__kl_penalty=0.5,
        training_hyperparameters__steps=1,
        training_hyperparameters__supplemental=supplemental,
    )
    [found] = translated(entry, tmp_path)  # by its rows
    assert found.command == "dpo"
    assert [shlex.split(one)[3:8] for one in found.before] == [
        ["outputs/transcripts/2024-06-13", "--kind", "preferences", "--preference", "prob"],
        ["runs/b", "--kind", "preferences", "--preference", "prob"],
    ]
    told = {"loss": "bon", "beta": 0.5, "sft_share": 0.005, "save_updates": 16, "max_length": 16384}
    assert {name: found.flags[name] for name in told} == told
    assert "multiplier=7: --preference prob has a scale of its own" in found.lines
    assert not [line for line in found.lines if line.startswith(("steps", "epoch_size"))]
    several = changed(
        entry,
        dataset={"dataset_type": "judge_preferences", "full_dataset_file_path": ["2024-06-13", "runs/b"]},
        training_hyperparameters__steps=3,
        training_hyperparameters__lr_scheduler_type="linear",
    )
    [found] = translated(several, tmp_path)
    assert found.flags["dataset"] == "outputs/preferences_1.jsonl,outputs/preferences_2.jsonl"
    assert len(found.before) == 2
    assert (found.flags["epochs"], found.flags["schedule"], found.flags["warmup"]) == (6, "linear", 0.0417)
    assert "steps=3: 3 x 2 epochs, in one schedule" in found.lines
    plays = changed(entry, dataset={"dataset_type": "quality"})
    [found] = translated(plays, tmp_path, file="dpo_config.yaml")
    assert found.command == "preference mine.py"
    assert not found.asked
    assert found.flags["max_updates"] == 128, "2 x 1,024 pairs in batches of 16"
    assert "num_train_epochs=2: each pair is learned once, and then rounds are played anew" in found.lines
    config = config_of(found)
    assert (config.rounds.prompts_per_round, config.rounds.num_generations, config.rounds.renew_reference) == (
        2048,
        2,
        True,
    )
    assert 'QUESTIONS, JUDGE = "QUESTIONS", "JUDGE"' in text_of(found)
    assert any(
        line.startswith('fill in "QUESTIONS" in mine.py: QuALITY.v1.0.1.htmlstripped.train') for line in found.lines
    )
    alone = changed(plays, speech_structure="default_consultancy")
    with pytest.raises(InputError, match="default_consultancy with rounds that training plays; needed: default_debate"):
        translated(alone, tmp_path, file="dpo_config.yaml")


def test_ppo_plays_a_batch_of_rounds_an_iteration(tmp_path: Path) -> None:
    dataset = {"dataset_type": "quality", "train_file_path": "quality.jsonl"}
    entry = changed(TRAINING, dataset=dataset, training_hyperparameters__steps=30)
    [found] = translated(entry, tmp_path, trainer="ppo")
    told = {"num_rollouts": 2, "global_batch": 2, "micro_batch": 1, "max_updates": 30, "method": "ppo", "ppo_epochs": 1}
    assert {name: found.flags[name] for name in told} == told
    assert found.command == "ppo mine.py"
    assert 'QUESTIONS, JUDGE = "quality.jsonl", "JUDGE"' in text_of(found)
    assert "(0.67, 0.33)" in text_of(found)
    assert config_of(found).rollout.temperature == 0.5

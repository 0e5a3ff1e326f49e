"""`lmgym from nyu` on configs of SFT, DPO and PPO."""

import shlex
from pathlib import Path

from nyu_configs import TRAINING, changed, translated


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
        "external_huggingface", "--global_batch", "optim", "merge_output_dir", "llm_type",
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
    plays = changed(entry, dataset={"dataset_type": "quality"})
    [found] = translated(plays, tmp_path, file="dpo_config.yaml")
    assert found.command == "preference EXPERIMENT.py"
    assert not found.before
    assert "debate_dpo.py" in found.asked["EXPERIMENT.py"]


def test_ppo_plays_a_batch_of_rounds_an_iteration(tmp_path: Path) -> None:
    entry = changed(TRAINING, dataset={"dataset_type": "quality"}, training_hyperparameters__steps=30)
    [found] = translated(entry, tmp_path, trainer="ppo")
    told = {"num_rollouts": 2, "global_batch": 2, "micro_batch": 1, "max_updates": 30, "method": "ppo", "ppo_epochs": 1}
    assert {name: found.flags[name] for name in told} == told
    assert "debate_letters.py" in found.asked["EXPERIMENT.py"]

"""What `lmgym from` prints passes the checks of a run, up to its plan."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from nyu_configs import STORY, TRAINING, changed, translated
from patience import PATIENCE

from lmgym.apps.migration.files import of_library
from lmgym.models.small_models import make_small_model

PAIR = {"prompt": "Say {}.", "chosen": "Yes, it is {}.", "rejected": "No {}."}
CHAT = {"messages": [{"role": "user", "content": "Say {}."}, {"role": "assistant", "content": "Yes, {}."}]}
PROMPT = {"prompt": "Say {}."}
AXOLOTL = """
base_model: MODEL
rl: ipo
datasets:
  - path: ROWS
micro_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 1e-5
sequence_len: 128
bf16: false
"""
OPENRLHF = r"""
deepspeed --module openrlhf.cli.train_rm --model.model_name_or_path MODEL --data.dataset ROWS \
   --data.max_len 128 --train.batch_size 8 --adam.lr 9e-6 --ckpt.output_dir out
"""
LLAMA_FACTORY = """
import subprocess
subprocess.run(["llamafactory-cli", "train", "--stage", "sft", "--model_name_or_path", "MODEL",
                "--dataset", "x", "--cutoff_len", "128", "--lora_rank", "4"])
"""
VERL = r"""
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=ROWS data.train_batch_size=4 \
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=2 data.max_prompt_length=64 \
    data.max_response_length=16 actor_rollout_ref.model.path=MODEL trainer.total_epochs=1 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
"""
TEXTS = {
    "axolotl": (PAIR, "a.yml", AXOLOTL),
    "openrlhf": (PAIR, "a.sh", OPENRLHF),
    "llamafactory": (CHAT, "a.py", LLAMA_FACTORY),
    "verl": (PROMPT, "a.sh", VERL),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", TEXTS)
def test_a_printed_command_passes_a_dry_run(library: str, small_models, scorer_folders, tmp_path: Path) -> None:
    form, name, text = TEXTS[library]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(form).replace("{}", f"word {number}") for number in range(40)))
    (tmp_path / name).write_text(text.replace("MODEL", str(small_models["llama"])).replace("ROWS", str(rows)))
    [found] = of_library(library, tmp_path / name, ())
    filled = {"scorers": f"a={scorer_folders['llama']}", "dataset": str(rows)}
    words = [word for flag in found.asked for word in (f"--{flag}", filled[flag])]
    command = [*found.command.split(), *found.words, *words, "--dry_run", "--eval_size", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "lmgym", "train", *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + str(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "judge"])
def test_rows_out_of_debates_and_the_command_that_reads_them_pass_a_dry_run(kind: str, small_models, tmp_path) -> None:
    debate = {
        "question": "Where?", "answers": ["mat", "hat"], "isJudgeCorrect": True, "story": "The cat sat on the mat.",
        "turns": [
            {"role": "Debater", "index": 0, "text": "mat!"},
            {"role": "Judge", "index": None, "text": "", "probabilities": [0.9, 0.1]},
        ],
    }  # fmt: skip
    lines = [json.dumps(debate | {"debateId": str(number), "question": f"Where {number}?"}) for number in range(40)]
    (tmp_path / "debates.jsonl").write_text("\n".join(lines))
    entry = changed(
        TRAINING, model_name=str(small_models["llama"]), target="debater" if kind == "sft" else kind, max_length=256
    )
    entry["dataset"] = entry["dataset"][:1]
    [found] = translated(entry, tmp_path, file="sft_config.yaml")
    assert f"--kind {kind}" in found.before[0]
    train = [*found.command.split(), *found.words, "--dry_run", "--eval_size", "8", "--precision", "fp32"]
    for words in (shlex.split(found.before[0])[1:], ["train", *train]):
        done = subprocess.run(
            [sys.executable, "-m", "lmgym", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + str(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "ppo"])
def test_the_experiment_of_rounds_that_are_played_trains_as_printed(kind: str, demo_texts, tmp_path: Path) -> None:
    """With questions and a judge filled in, and speeches, held-out questions and epochs that are small."""
    stories = [STORY | {"article_id": str(number), "article": f"Cat {number} sat on the mat."} for number in range(12)]
    (tmp_path / "quality.jsonl").write_text("\n".join(map(json.dumps, stories)))
    entry = changed(
        TRAINING,
        model_name=str(make_small_model(tmp_path / "model", "llama", demo_texts, max_length=1024)),
        max_length=1024,
        dataset={"dataset_type": "quality", "train_file_path": "quality.jsonl"},
        training_hyperparameters__per_device_train_batch_size=4,
        training_hyperparameters__gradient_accumulation_steps=1,
        training_hyperparameters__steps=2,
        training_hyperparameters__supplemental={"epoch_size": 2},
        training_hyperparameters__lora_rank=2,
    )
    [found] = translated(entry, tmp_path, file=f"{kind}_config.yaml")
    script = str(found).replace('"JUDGE"', '"letter:e"').replace("eval_size=64", "eval_size=2")
    script = script.replace("max_new_tokens=300", "max_new_tokens=4") + " --precision fp32"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + script
    logged = [json.loads(line) for line in (tmp_path / "outputs/mine/metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in logged) == 2

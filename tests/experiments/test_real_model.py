"""The README's way of PPO on a real pretrained model, in bf16 under ZeRO 2: a scorer of its own, then the policy."""

import json
from pathlib import Path

import pytest
from launching import ROOT, flags, launch, read_lines, run


@pytest.mark.real
@pytest.mark.slow
def test_hh_harmless_runs_in_bf16_on_a_real_model_with_a_scorer_trained_from_it(
    real_model: Path, real_pairs: Path, tmp_path: Path
) -> None:
    scorer, policy = tmp_path / "scorer", tmp_path / "policy"
    words = flags(
        model=real_model, dataset=real_pairs, max_rows=48, eval_size=4, max_length=128, lora_rank=4, global_batch=4,
        micro_batch=2, max_updates=2, save_updates=-1, tracking="none", output=scorer,
    )  # fmt: skip
    done = run(launch("python", *words))
    assert done.returncode == 0, done.stderr[-3000:]
    # as it is written down, but for where it writes and what it evaluates on: 512 prompts take a CPU half an hour
    words = flags(
        deepspeed="configs/zero2.json", model=real_model, prompts=real_pairs, scorers=f"harmless={scorer / 'model'}",
        num_rollouts=16, global_batch=16, max_updates=2, eval_size=4, output=policy,
    )  # fmt: skip
    done = run(launch("deepspeed", *words, script=ROOT / "ppo/experiments/hh_harmless.py"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads((policy / "run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("finished", 0)
    [line] = [line for line in read_lines(policy / "metrics.jsonl") if "policy/ratio" in line]
    assert line["step"] == 4, "an iteration of four updates, of which two were asked for"
    assert 0.02 < line["rollout/logprob_mismatch"] < 0.1, "more than was once allowed"
    assert (policy / "model" / "model.safetensors").stat().st_size > 250e6

"""Self-play against a pool as a user launches it, on two ranks: with LoRA, and under DeepSpeed."""

from pathlib import Path

import pytest
import torch
from launching import ROOT, flags, launch, read_metrics, run
from safetensors.torch import load_file

from ppo.opponents import draw_opponent

SCRIPT = ROOT / "lmgym/apps/games/experiments/self_play.py"
SECONDS = 560  # other work may have the processors
SMALL = {
    "num_rollouts": 8, "max_new_tokens": 2, "eval_size": 4, "global_batch": 8, "micro_batch": 4, "ppo_epochs": 2,
    "max_updates": 8, "learning_rate": 1e-2, "pool_every": 2, "tracking": "none", "save_updates": -1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "kind"),
    [
        ("torchrun", {"lora_rank": 4, "policy_over": "tokens"}),
        ("deepspeed", {"deepspeed": "zero2", "policy_over": "tokens"}),
        ("deepspeed", {"deepspeed": "zero3", "max_new_tokens": 8}),
    ],
    ids=["lora", "zero2", "zero3_over_actions"],
)
def test_two_ranks_play_earlier_policies_whose_folders_are_whole(
    launcher: str, kind: dict[str, object], talkative_models: dict[str, Path], tmp_path: Path
) -> None:
    pool, folder = tmp_path / "pool", tmp_path / "run"
    given = {**SMALL, **kind, "model": talkative_models["llama"], "opponents": f"pool:{pool}", "output": folder}
    done = run(launch(launcher, *flags(**given), script=SCRIPT), seconds=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    played = list(read_metrics(folder)["opponent/iteration"].values())
    assert played == [draw_opponent(0, i, 2) for i in range(4)]
    members = sorted(path / "model" for path in pool.glob("iteration_*"))
    assert [path.parent.name for path in members] == ["iteration_00000000", "iteration_00000002"]
    start, later = (load_file(path / "model.safetensors") for path in members)
    whole = load_file(talkative_models["llama"] / "model.safetensors")
    assert start.keys() == later.keys() == whole.keys(), "LoRA is merged into the weights, and shards are gathered"
    assert all(torch.allclose(start[name], whole[name], atol=1e-6) for name in whole), "the policy before any update"
    assert any(not torch.allclose(later[name], whole[name], atol=1e-4) for name in whole), "the policy has learned"
    assert read_metrics(folder)["eval/episode/lost"], "the policy was evaluated"

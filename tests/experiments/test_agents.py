"""The same agent by a program's own loop and by `train`: the same episodes, the same gradient; and a launched run."""

import json
from pathlib import Path

import pytest
import torch
from launching import ROOT, launch, read_lines, read_metrics, run
from transformers import AutoTokenizer
from walking import Walk, Walker, play

from lmgym.agents import AutoModelForCausalLMWithValueHead, train
from lmgym.distributed.plain_engine import PlainEngine

EPISODES = 6
SHORT = {"max_new_tokens": 5, "temperature": 0.9}
PPO = {"mini_batch_size": EPISODES, "ppo_epochs": 1, "learning_rate": 1e-3, "lam": 0.9}
QUIET = {"tracking": "none", "save_updates": -1, "eval_size": 1}
LORA = {"r": 2, "lora_alpha": 4, "peft_type": "LORA"}
Gradients = dict[str, torch.Tensor]


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[Gradients]:
    """Those of every update that is made."""
    found: list[Gradients] = []
    step = PlainEngine.step

    def record(self: PlainEngine) -> bool:
        named = self.module.named_parameters()
        found.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        return step(self)

    monkeypatch.setattr(PlainEngine, "step", record)
    return found


def short_walk() -> Walk:
    return Walk(limit=None)


@pytest.mark.parametrize(
    ("rule", "lora"),
    [
        ("penalty", None),
        ("retry", LORA),
        ("truncate", None),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("penalty", LORA), ("retry", None), ("truncate", LORA))
        ),
    ],
)
def test_the_old_loop_and_the_single_call_have_the_same_gradient(
    talkative_models: dict[str, Path], tmp_path: Path, gradients: list[Gradients], rule: str, lora
) -> None:
    kind, folder = type("Walker", (Walker,), {"on_invalid": rule, "retries": 1}), talkative_models["llama"]
    model = AutoModelForCausalLMWithValueHead.from_pretrained(folder, peft_config=lora)
    agent = kind(model, AutoTokenizer.from_pretrained(folder), "cpu", SHORT, PPO | {"batch_size": EPISODES})
    stats = [play(agent, short_walk()) for _ in range(EPISODES)][-1]
    assert stats["rollout/truncated_episodes"] > 0
    assert stats["rollout/truncated_episodes"] < 1 or rule != "penalty"
    trained = train(
        kind, short_walk, EPISODES, model=folder, episodes=EPISODES, generate_config_dict=SHORT,
        ppo_config_dict=PPO | QUIET, peft_config=lora, output=str(tmp_path / "run"),
    )  # fmt: skip
    assert (trained / "model.safetensors").is_file()
    [logged] = [line for line in read_lines(tmp_path / "run/metrics.jsonl") if line.get("rollout/turns")]
    for name in ("reward/mean", "rollout/turns", "rollout/reply_tokens", "kl/coefficient", "loss/value"):
        assert stats[name] == pytest.approx(logged[name], rel=1e-5, abs=1e-7), name
    old, new = gradients
    assert old.keys() == new.keys()
    size = max(float(gradient.abs().max()) for gradient in new.values())
    for name, gradient in new.items():
        torch.testing.assert_close(old[name], gradient, rtol=1e-3, atol=1e-5 * size, msg=lambda m, name=name: name + m)


def test_a_group_method_plays_groups_of_one_start(talkative_models: dict[str, Path], tmp_path: Path) -> None:
    given = {"method": "grpo", "num_generations": 4, "learning_rate": 1e-3} | QUIET
    output = tmp_path / "run"
    train(
        Walker, short_walk, 8, model=talkative_models["llama"], episodes=16, generate_config_dict=SHORT,
        ppo_config_dict=given, output=str(output),
    )  # fmt: skip
    assert len(read_metrics(output)["groups/reward_std"]) == 2
    assert json.loads((output / "run.json").read_text())["outcome"] == "finished"


@pytest.mark.parametrize("kind", ["fork", "forks"])
def test_the_blackjack_experiment_runs(talkative_models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    script = ROOT / "lmgym/apps/agents/experiments/gym_blackjack.py"
    flags = (
        "--num_rollouts 8 --global_batch 8 --micro_batch 4 --ppo_epochs 1 --max_updates 2 --eval_size 2 "
        "--eval_updates 2 --max_new_tokens 4 --tracking none --save_updates -1"
    )
    done = run(launch(kind, *flags.split(), "--model", talkative_models["llama"], "--output", tmp_path, script=script))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert read_metrics(tmp_path)["episode/invalid"].keys() == {1, 2}

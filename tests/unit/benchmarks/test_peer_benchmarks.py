"""The benchmarks beside peers run today's code, which trains as the plain ways do that need no packages of peers."""

import gzip
import json
import sys
from pathlib import Path

import pytest
import torch
from launching import scripts_are_forked
from shared import Contender, run_contender, save_real, write_token_pairs
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.ppo import make_orders, write_inputs


def pairs_of(repeated: int) -> list[dict[str, str]]:
    """Four pairs; a question is as long as it is repeated."""
    questions = [
        f"\n\nHuman: {question * repeated}\n\nAssistant:" for question in ("What is it? ", "Who sings there? ")
    ]
    replies = (" A plant, and a tall one.", " No."), (" I do not know that.", " Go away, I am asleep.")
    return [{"chosen": q + good, "rejected": q + bad} for q in questions for good, bad in replies]


def run(runner: str, variant: str, spec: dict) -> dict:
    """One run in a process of its own."""
    with scripts_are_forked():
        return run_contender(Contender(runner, runner, variant, sys.executable, (2,)), spec, 2, [])


@pytest.fixture(scope="module")
def ppo_folder(tmp_path_factory, small_models: dict[str, Path]) -> Path:
    """The start of PPO's contenders, made of a causal model's folder."""
    folder = tmp_path_factory.mktemp("ppo")
    with gzip.open(folder / "pairs.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in pairs_of(20) * 128)
    write_inputs(small_models["llama"], folder, folder / "pairs.jsonl.gz", new_tokens=4, seed=0)
    return folder


def test_of_a_models_folder_only_the_heads_are_new(ppo_folder: Path, small_models: dict[str, Path]) -> None:
    policy = AutoModelForCausalLM.from_pretrained(ppo_folder / "policy")
    start = AutoModelForCausalLM.from_pretrained(small_models["llama"])
    assert all(weight.equal(start.state_dict()[name]) for name, weight in policy.state_dict().items())
    heads = []
    for name in ("critic", "reward_model"):
        model = AutoModelForSequenceClassification.from_pretrained(ppo_folder / name)
        assert all(weight.equal(policy.model.state_dict()[key]) for key, weight in model.model.state_dict().items())
        heads.append(model.score.weight)
        tokenizer = AutoTokenizer.from_pretrained(ppo_folder / name)
        assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert not heads[0].equal(heads[1])


@pytest.mark.parametrize("variant", ["own_critic", pytest.param("hydra", marks=pytest.mark.slow)])
def test_ppo_trains_as_the_plain_way_does(ppo_folder: Path, variant: str) -> None:
    spec = {name: str(ppo_folder / name) for name in ("policy", "critic", "reward_model")} | {
        "value_head": str(ppo_folder / "value_head.safetensors"),
        "rollouts": str(ppo_folder / "rollouts.jsonl"),
        "replay": True,
        "precision": "fp32",
        "iterations": 2,
        "orders": make_orders(2, 2, 4, seed=0),
        "num_layers_unfrozen": 1,
        "batch": 4,
        "epochs": 2,
        "new_tokens": 4,
    }
    found, expected = run("ours_ppo", variant, spec), run("trlx_way", variant, spec)
    for loss in ("policy_losses", "value_losses"):
        assert len(found[loss]) == 4
        assert found[loss] == pytest.approx(expected[loss], abs=1e-5)


def pairs_spec(folder: Path, model: Path, head: str) -> dict:
    """Three updates of four pairs from a model's folder."""
    save_real(model, folder / "model", head, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    write_token_pairs(pairs_of(1), tokenizer, folder / "pairs.jsonl", max_length=200)
    return {
        "model": str(folder / "model"),
        "pairs": str(folder / "pairs.jsonl"),
        "pairs_per_update": 4,
        "updates": 3,
        "warmup_updates": 1,
        "learning_rate": 1e-3,
        "seed": 0,
        "dtype": "fp32",
        "max_length": 200,
        "order": [[0, 1, 2, 3], [3, 1, 2, 0], [2, 0, 1, 3]],
    }


def test_reward_training_trains_as_plain_padding_does(tmp_path: Path, small_models: dict[str, Path]) -> None:
    spec = pairs_spec(tmp_path, small_models["llama"], "classifier")
    found, expected = run("ours", "default", spec), run("padded", "default", spec)
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    assert found["losses"][-1] < found["losses"][0]


def reply_logprob(model, prompt: list[int], reply: list[int]) -> torch.Tensor:
    """Summed log-probability of a reply with its eos, alone in its forward."""
    logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(reply)[:, None]).sum()


def test_dpo_trains_as_a_loop_over_single_replies_does(tmp_path: Path, small_models: dict[str, Path]) -> None:
    spec = pairs_spec(tmp_path, small_models["llama"], "causal")
    found = run("ours_preferences", "default", spec | {"loss": "dpo"})
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    model, reference = (AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32) for _ in range(2))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=spec["learning_rate"], weight_decay=0.0), []
    for update in spec["order"]:
        margins = []
        for pair in [pairs[index] for index in update]:
            ratios = [
                reply_logprob(model, pair["prompt_ids"], pair[side])
                - reply_logprob(reference, pair["prompt_ids"], pair[side]).detach()
                for side in ("chosen_ids", "rejected_ids")
            ]
            margins.append(0.1 * (ratios[0] - ratios[1]))
        loss = -torch.nn.functional.logsigmoid(torch.stack(margins)).mean()
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert found["losses"] == pytest.approx(losses, abs=1e-5)
    assert found["losses"][-1] < found["losses"][0]
    assert found["reference_cpu_seconds"] > 0


def test_kto_trains_both_sides_of_the_pairs(tmp_path: Path, small_models: dict[str, Path]) -> None:
    found = run("ours_preferences", "default", pairs_spec(tmp_path, small_models["llama"], "causal") | {"loss": "kto"})
    assert found["losses"][0] == pytest.approx(0.5)
    assert found["losses"][-1] < 0.4999
    assert found["pairs"] == 8

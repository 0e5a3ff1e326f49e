"""GRPO's formulas are those that TRL's trainers computed of the same numbers, and its benchmark trains by them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import grpo_formulas
import pytest
import torch
from grpo_formulas import CASES, Case
from launching import scripts_are_forked
from shared import Contender, run_contender
from transformers import AutoModelForCausalLM

STORED = json.loads(grpo_formulas.RESULTS.read_text())
PROMPTS, REPLIES = ((5, 6, 7), (8, 9)), ((4, 3), (10, 11, 12, 13), (14,), (5, 9, 6))
SCORES = (0.5, -1.0, 2.0, 1.5)


@pytest.fixture(scope="module")
def ours() -> dict:
    """Our numbers of every case."""
    with scripts_are_forked():
        return grpo_formulas.run("ours_formulas")["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_formula_is_the_one_that_TRL_computed(case: Case, ours: dict) -> None:
    found = grpo_formulas.differences(case, STORED["cases"][case.name], ours[case.name])
    assert found.keys() == {*case.compared}
    assert max(found.values()) <= grpo_formulas.TOLERANCE


def test_each_setting_of_a_case_changes_what_TRL_computes() -> None:
    results = [STORED["cases"][case.name] for case in CASES if case.accumulation_steps == 1]
    seen = {json.dumps([result["advantages"], result.get("loss")]) for result in results}
    assert len(seen) == len(results)


def logprobs_of(model, prompt: Sequence[int], reply: Sequence[int]) -> torch.Tensor:
    """[tokens of the reply]."""
    logits = model(input_ids=torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[range(len(reply)), list(reply)]


def plain_losses(folder: Path, iterations: int, epochs: int, kl_coef: float) -> list[float]:
    """Losses of updates by all replies, one forward a reply, by the formulas of the papers."""
    policy, reference = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in range(2))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
    rows = [(PROMPTS[i // 2], reply) for i, reply in enumerate(REPLIES)]
    groups = torch.tensor(SCORES).view(2, 2)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    losses = []
    for update in range(iterations * epochs):
        if update % epochs == 0:
            with torch.no_grad():
                old, far = ([logprobs_of(model, *row) for row in rows] for model in (policy, reference))
        total = torch.zeros(())
        for row, before, of_reference, advantage in zip(rows, old, far, advantages, strict=True):
            now = logprobs_of(policy, *row)
            ratio, apart = (now - before).exp(), of_reference - now
            clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            total = total + (kl_coef * (apart.exp() - apart - 1) - clipped).sum()
        loss = total / sum(map(len, REPLIES))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_the_benchmark_trains_as_the_plain_way_does(tmp_path: Path, small_models: dict[str, Path]) -> None:
    rows = [
        {"prompt_ids": PROMPTS[i // 2], "reply_ids": reply, "score": score}
        for i, (reply, score) in enumerate(zip(REPLIES, SCORES, strict=True))
    ]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    spec = {
        "model": str(small_models["llama"]),
        "rollouts": str(tmp_path / "rollouts.jsonl"),
        "precision": "fp32",
        "iterations": 2,
        "batch": 4,
        "num_generations": 2,
        "epochs": 2,
        "kl_coef": 0.1,
        "learning_rate": 1e-3,
    }
    with scripts_are_forked():
        found = run_contender(Contender("ours", "ours_grpo", "default", sys.executable, (2,)), spec, 2, [])
    assert found["losses"] == pytest.approx(plain_losses(small_models["llama"], 2, 2, 0.1), abs=1e-5)
    assert len({round(loss, 4) for loss in found["losses"]}) == 4
    # a prompt, but for its last token, runs once for both of its replies
    inputs = sum(len(prompt) - 1 for prompt in PROMPTS) + sum(map(len, REPLIES))
    forwards = 2 + 2  # old and reference, then each epoch, of the iteration that is measured
    assert found["positions"] == {
        "real": forwards * inputs, "run": forwards * inputs, "head": forwards * sum(map(len, REPLIES))
    }  # fmt: skip

"""The policy that a monitor finds best is kept, the last beside it, also in a run that was killed and resumed."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from launching import read_lines, read_metrics, words
from ppo_in_process import Go, shortness, train_small
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lmgym.errors import InputError
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.scorers import FunctionScorer
from ppo.task_setups import text_with_function

# the reward is for short replies, which the monitor does not like
SETTINGS = {"max_updates": 24, "eval_updates": 4, "save_updates": 8, "save_total_limit": 9, "learning_rate": 3e-3}


def noisy_shortness(samples, prompts, outputs, tokenizer) -> list[float]:
    """Draws random numbers: a saving that drew any would change what is learned."""
    noise = torch.rand(len(outputs)).tolist()
    return [short + 0.1 * x for short, x in zip(shortness(samples, prompts, outputs, tokenizer), noise, strict=True)]


def likes_length(config, tokenizer):
    scorer = FunctionScorer(lambda conversations, replies: [float(len(reply)) for reply in replies])
    setup = text_with_function(noisy_shortness, as_text=False)(config, tokenizer)
    return replace(setup, monitors={"long": scorer})


@pytest.fixture
def go(go: Go) -> Go:
    """With that monitor."""
    return partial(go, likes_length)


def weights(folder: Path) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in load_file(folder / "model.safetensors").items()}


def best_update(folder: Path) -> int:
    scores = {step: score for step, score in read_metrics(folder)["eval/monitor/long"].items() if step}
    return max(scores, key=scores.__getitem__)


def test_the_best_by_a_monitor_is_kept_and_a_killed_run_ends_with_the_same(go: Go, capsys) -> None:
    whole = go(name="whole", best_metric="long", **SETTINGS)
    best, said = best_update(whole), words(capsys.readouterr().out)
    assert 4 <= best < 24, "the monitor falls"
    assert weights(whole / "model") != weights(whole / "last")
    assert json.loads((whole / "run.json").read_text())["best_update"] == best
    assert f"after update {best}, the best by long (" in said
    assert f"; the last, after update 24: {whole / 'last'}" in said
    assert "is the choice among 6 evaluations; all 6 prompts chose, with 60 or more half would measure" in said
    assert f"The policy after update {best}, the best by `eval/monitor/long`" in (whole / "model/README.md").read_text()
    assert "The policy after update 24, the last; beside it is that after" in (whole / "last/README.md").read_text()
    load_policy(str(whole / "last"), load_tokenizer(str(whole / "last")))
    assert (whole / "critic").exists()
    assert (whole / "last/critic").exists()

    # as killed after update 16, before the last model was saved
    killed = whole.parent / "killed"
    shutil.copytree(whole, killed)
    record = json.loads((killed / "run.json").read_text())
    config = {**record["config"], "output": str(killed)}
    (killed / "run.json").write_text(json.dumps({**record, "config": config, "outcome": "running"}))
    shutil.rmtree(killed / "checkpoints/step-00000024")
    shutil.rmtree(killed / "last")
    go(name="killed", best_metric="long", **SETTINGS)
    assert "resuming from" in words(capsys.readouterr().out)
    for name in ("model", "last"):
        assert weights(killed / name) == weights(whole / name)
    assert json.loads((killed / "run.json").read_text())["best_update"] == best


def test_of_sixty_prompts_half_choose_and_the_rest_measure_the_kept_policy(
    talkative_models: dict[str, Path], tmp_path: Path, capsys
) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text("".join(json.dumps({"prompt": f"tell me of number {i}"}) + "\n" for i in range(90)))
    settings = {"best_metric": "long", "eval_size": 60, **SETTINGS | {"max_updates": 8, "save_updates": -1}}
    folder = train_small(talkative_models["gpt2"], many, tmp_path, likes_length, **settings)
    record = json.loads((folder / "run.json").read_text())
    update, best = record["best_update"], record["best"]
    rows = read_lines(folder / f"samples/evaluation-{update:06d}.jsonl")
    lengths = [row["monitors"]["long"] for row in rows]
    others = best["on_other_prompts"]
    assert best["prompts_that_choose"] == others["units"] == 30
    assert others["low"] < others["value"] < others["high"]
    assert best["score"] + others["value"] == pytest.approx(2 * sum(lengths) / 60), "each prompt is on one side"
    wanted = f"of which about {best['flattery']:.2g} is the choice among 2 evaluations; on the 30 prompts that did not"
    assert wanted in words(capsys.readouterr().out)
    assert "; on the 30 prompts that did not choose it: " in words((folder / "model/README.md").read_text())
    assert any(wanted in event["text"] for event in read_lines(folder / "events.jsonl"))


def test_the_saved_policy_is_that_of_its_evaluation(go: Go) -> None:
    """A constant rate, so that a run which ends at the best update has passed through the same weights."""
    settings = SETTINGS | {"schedule": "constant_with_warmup"}
    whole = go(name="whole", best_metric="long", **settings)
    best = best_update(whole)
    ended = go(name="ended", **settings | {"max_updates": best})
    assert not (ended / "last").exists()
    assert weights(whole / "model") == weights(ended / "model")


def test_by_default_the_last_is_the_model_and_adapters_are_kept_with_a_monitor(go: Go) -> None:
    last = go(name="last", **SETTINGS)
    assert not (last / "last").exists()
    adapted = go(name="adapted", best_metric="eval/monitor/long", lora_rank=2, **SETTINGS | {"learning_rate": 3e-2})
    assert best_update(adapted) < 24
    for name in ("model", "adapter", "last"):
        AutoModelForCausalLM.from_pretrained(adapted / name)
    plain = go(name="plain", lora_rank=2, **SETTINGS | {"learning_rate": 3e-2})
    assert weights(plain / "model") == weights(adapted / "last"), "saving at evaluations changes no training"
    file = "samples/rollouts-000024.jsonl"
    assert read_lines(plain / file) == read_lines(adapted / file)


def test_the_reward_as_metric_is_refused_before_step_1(go: Go) -> None:
    with pytest.raises(InputError, match=r"best_metric='eval/reward/mean': the policy is optimised for it.*here long"):
        go(best_metric="eval/reward/mean", **SETTINGS)

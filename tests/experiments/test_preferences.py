"""Preference training as a user launches it: the same run on ranks and under ZeRO, what it leaves, what it refuses."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from faulting import begin_and_wait, digest, measured, outcome
from launching import (
    ROOT,
    assert_metrics_are_known,
    finish,
    flags,
    largest_difference,
    launch,
    read_lines,
    read_metrics,
    read_weights,
    run,
    words,
)

PREFERENCES = ROOT / "preferences/experiments"
UPDATES, TOKENS = 4, 300
# 9 rows to train on: every other update has one row, so that a rank runs a filler
TRAIN = {
    "max_length": 128, "eval_size": 8, "train_size": 9, "global_batch": 8, "micro_batch": 2, "learning_rate": 1e-3,
    "log_updates": 1, "eval_updates": 2, "save_updates": -1, "precision": "fp32", "tracking": "none",
    "max_updates": UPDATES, "sample_prompts": 2, "sample_tokens": 6,
}  # fmt: skip
Go = Callable[..., tuple[CompletedProcess[str], Path]]


@pytest.fixture(scope="module")
def thumbs_file(few_pairs: Path, tmp_path_factory) -> Path:
    """The sides of pairs as single replies with labels."""
    rows = [json.loads(line) for line in few_pairs.read_text().splitlines()]
    sides = [(row, side) for row in rows for side in ("chosen", "rejected")]
    path = tmp_path_factory.mktemp("thumbs") / "thumbs.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}) + "\n"
            for row, side in sides
        )
    )
    return path


@pytest.fixture(scope="module")
def go(tmp_path_factory, small_models: dict[str, Path], few_pairs: Path, thumbs_file: Path) -> Go:
    """Launches an experiment of preferences/ and returns how it ended and its folder."""

    def begin(kind: str, *more: object, name: str = "dpo", config: str | None = None, fails: bool = False, **changes):
        folder = tmp_path_factory.mktemp("preferences") / "run"
        data = few_pairs if name == "dpo" else thumbs_file
        values = {"model": small_models["llama"], "dataset": data, "output": folder, **TRAIN, **changes}
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        done = run(launch(kind, *flags(**values), *more, script=PREFERENCES / f"{name}.py"))
        assert (done.returncode == 0) != fails, done.stdout[-3000:] + done.stderr[-5000:]
        if not fails:
            assert_metrics_are_known(folder)
        return done, folder

    return begin


@pytest.fixture(scope="module")
def plain(go: Go) -> Callable[[str], tuple[CompletedProcess[str], Path]]:
    """The run of an experiment in one process, made once."""
    made: dict[str, tuple[CompletedProcess[str], Path]] = {}

    def of(name: str) -> tuple[CompletedProcess[str], Path]:
        if name not in made:
            made[name] = go("fork", name=name)
        return made[name]

    return of


COMPARED = {
    "dpo": ("train/accuracy", "train/margin", "eval/accuracy", "eval/accuracy_low", "eval/margin"),
    "kto_thumbs": ("train/label_accuracy", "train/kl", "eval/auc", "eval/margin", "eval/kl"),
}


def assert_same_run(name: str, found: Path, wanted: Path) -> None:
    """Equal losses, gradient norms, evaluations and final weights; the same answers."""
    a, b = read_metrics(found), read_metrics(wanted)
    for metric in ("train/learning_rate", "train/loss", "eval/loss", *COMPARED[name]):
        assert a[metric].keys() == b[metric].keys()
        assert a[metric] == pytest.approx(b[metric], rel=1e-4, abs=2e-5), metric
    assert len(a["train/loss"]) == UPDATES
    assert a["train/grad_norm"] == pytest.approx(b["train/grad_norm"], rel=1e-3)
    assert largest_difference(read_weights(found), read_weights(wanted)) < 2e-5
    assert read_lines(found / "samples/000004.jsonl") == read_lines(wanted / "samples/000004.jsonl")


@pytest.mark.parametrize(("name", "config"), [("dpo", "zero3.json"), ("kto_thumbs", "zero2.json")])
def test_two_ranks_under_zero_train_as_plain_python_does(name: str, config: str, go: Go, plain) -> None:
    _, folder = go("forks", name=name, config=config)
    assert_same_run(name, folder, plain(name)[1])


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("dpo", "forks", "zero2.json"),
        pytest.param("dpo", "forks", "zero3.json", marks=pytest.mark.slow),
        pytest.param("dpo", "torchrun", None, marks=pytest.mark.slow),
        pytest.param("kto_thumbs", "forks", "zero3.json", marks=pytest.mark.slow),
    ],
)
def test_so_they_do_with_micro_batches_by_tokens(name: str, kind: str, config: str | None, go: Go, plain) -> None:
    _, folder = go(kind, name=name, config=config, tokens_per_micro_batch=TOKENS)
    assert_same_run(name, folder, plain(name)[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "kto_thumbs"])
@pytest.mark.parametrize(
    ("kind", "config"), [("torchrun", None), ("deepspeed", "zero2.json"), ("deepspeed", "zero3.json")]
)
def test_so_they_do_by_ddp_and_the_other_stages(name: str, kind: str, config: str | None, go: Go, plain) -> None:
    _, folder = go(kind, name=name, config=config)
    assert_same_run(name, folder, plain(name)[1])


@pytest.mark.slow
def test_a_lora_run_takes_its_reference_from_below_the_adapter_on_ranks_too(go: Go) -> None:
    lora = {"lora_rank": 4, "learning_rate": 2e-2, "name": "kto_thumbs"}
    _, below = go("deepspeed", "--merge_adapter", config="zero3.json", **lora)
    _, computed = go("python", "--merge_adapter", reference_source="computed", **lora)
    assert not (below / "reference_logprobs.npz").exists()
    assert (computed / "reference_logprobs.npz").exists()
    assert_same_run("kto_thumbs", below, computed)


def test_a_run_leaves_a_policy_its_rewards_and_its_figures(plain) -> None:
    done, folder = plain("dpo")
    measured = json.loads((folder / "evaluation.json").read_text())
    assert measured["before"]["loss"] == pytest.approx(0.693147, abs=1e-5)  # the policy is its reference
    assert measured["before"]["reward_chosen"] == pytest.approx(0, abs=1e-4)
    rows = read_lines(folder / "scores.jsonl")
    assert [set(row) for row in rows] == [{"prompt", "row", "chosen", "rejected", "lengths"}] * 8
    margins = [row["chosen"] - row["rejected"] for row in rows]
    assert measured["metrics"]["margin"] == pytest.approx(sum(margins) / 8)
    assert measured["metrics"]["accuracy"] == sum(margin > 0 for margin in margins) / 8
    said = words(done.stdout)
    assert "9 pairs to train on, 8 to evaluate on" in said
    assert "the reference's log-probabilities of 34 replies were computed" in said
    assert "answers to the fixed prompts" in said
    assert "with the DPO loss at beta 0.1" in " ".join((folder / "model/README.md").read_text().split())
    assert (folder / "model/model.safetensors").is_file()
    assert "9 replies to train on, 8 to evaluate on" in words(plain("kto_thumbs")[0].stdout)


@pytest.mark.slow
def test_a_killed_run_ends_as_the_uninterrupted_one_and_reads_its_reference(
    small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    values = {"model": small_models["llama"], "dataset": few_pairs, **TRAIN, "save_updates": 1, "max_updates": 40}
    script = PREFERENCES / "dpo.py"
    asked = {folder: launch("python", *flags(**values, output=folder), script=script) for folder in (whole, killed)}
    done = run(asked[whole])
    assert "were computed" in words(done.stdout)
    launched = begin_and_wait(asked[killed], killed, 2)
    os.kill(launched.process.pid, signal.SIGKILL)
    finish(launched)
    assert outcome(killed)[0] != "finished"
    again = run(asked[killed])
    assert "were read from" in words(again.stdout)
    assert measured(killed) == measured(whole)
    assert digest(killed) == digest(whole)

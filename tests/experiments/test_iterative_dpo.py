"""Iterative DPO as a user launches it: the same on ranks, killed and resumed without sampling a reply twice."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
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
    start,
    words,
)
from patience import PATIENCE

SCRIPT = ROOT / "preferences/experiments/iterative_dpo.py"
TRAIN = {
    "max_length": 128, "eval_size": 6, "global_batch": 4, "micro_batch": 2, "learning_rate": 1e-3, "log_updates": 1,
    "save_updates": 1, "precision": "fp32", "tracking": "none", "max_updates": 6, "prompts_per_round": 8,
    "num_generations": 3, "max_new_tokens": 8, "generation_batch_size": 6, "scorers": "utility=world:0",
}  # fmt: skip
Go = Callable[..., tuple[CompletedProcess[str], Path]]


@pytest.fixture(scope="module")
def settings(talkative_models, few_pairs: Path) -> dict[str, object]:
    return {"model": talkative_models["llama"], "prompts": few_pairs, **TRAIN}


@pytest.fixture(scope="module")
def go(tmp_path_factory, settings) -> Go:
    def begin(kind: str, *more: object, config: str | None = None, **changes) -> tuple[CompletedProcess[str], Path]:
        values = {**settings, "output": tmp_path_factory.mktemp("iterative") / "run", **changes}
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        done = run(launch(kind, *flags(**values), *more, script=SCRIPT))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        assert_metrics_are_known(Path(str(values["output"])))
        return done, Path(str(values["output"]))

    return begin


@pytest.fixture(scope="module")
def plain(go: Go) -> tuple[CompletedProcess[str], Path]:
    return go("fork")


def test_a_run_prints_and_keeps_a_figure_of_every_round(plain) -> None:
    done, folder = plain
    said = words(done.stdout)
    assert (
        "3 round(s) of 3 replies to 8 prompts, scored by 1 utility, and 2 update(s) on the best and the worst" in said
    )
    assert "the win rate is by the scorers that choose the replies" in said
    for number in range(4):
        assert f"round {number}: win rate" in said
    measured = read_metrics(folder)
    assert [*measured["eval/win_rate"]] == [0, 2, 4, 6]
    assert measured["eval/win_rate"][0] == 0.5
    assert abs(measured["eval/kl"][0]) < 1e-4 < abs(measured["eval/kl"][6])
    for number in range(3):
        lines = read_lines(folder / f"rounds/{number:04d}/replies.jsonl")
        assert [line["place"] for line in lines] == [*range(8)]
        assert all(len(line["texts"]) == 3 for line in lines)
    assert len(read_lines(folder / "samples/000006.jsonl")) == 6
    assert (folder / "model/model.safetensors").is_file()
    assert "rounds of 8 prompts" in " ".join((folder / "model/README.md").read_text().split())


@pytest.mark.parametrize(
    ("kind", "config"), [pytest.param("forks", None, marks=pytest.mark.slow), ("forks", "zero2.json")]
)
def test_two_ranks_sample_and_train_as_one_does(kind: str, config: str | None, go: Go, plain) -> None:
    _, folder = go(kind, config=config)
    for number in range(3):
        a, b = (read_lines(one / f"rounds/{number:04d}/replies.jsonl") for one in (folder, plain[1]))
        assert [(line["place"], line["ids"]) for line in a] == [(line["place"], line["ids"]) for line in b]
    assert largest_difference(read_weights(folder), read_weights(plain[1])) < 2e-5


def test_a_run_that_is_killed_while_it_samples_goes_on_with_the_missing_replies(settings, plain, tmp_path) -> None:
    values = {**settings, "output": tmp_path / "run", "generation_batch_size": 3}
    command = launch("fork", *flags(**values), script=SCRIPT)
    launched, replies = start(command), tmp_path / "run/rounds/0001/replies.jsonl"
    end = time.monotonic() + PATIENCE
    while not (replies.is_file() and replies.read_text().count("\n") >= 2) and time.monotonic() < end:
        time.sleep(0.002)
    os.killpg(launched.process.pid, signal.SIGKILL)
    with contextlib.suppress(Exception):
        finish(launched)
    before = replies.read_text()
    kept = before[: before.rfind("\n") + 1]
    assert kept.count("\n") >= 2
    done = run(command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert replies.read_text().startswith(kept)
    for number in range(3):
        a, b = (read_lines(one / f"rounds/{number:04d}/replies.jsonl") for one in (tmp_path / "run", plain[1]))
        assert [(line["place"], line["ids"]) for line in a] == [(line["place"], line["ids"]) for line in b]
    assert largest_difference(read_weights(tmp_path / "run"), read_weights(plain[1])) < 2e-5


def test_online_rounds_with_a_renewed_reference_and_below_an_adapter(go: Go) -> None:
    _, renewed = go("fork", "--renew_reference", prompts_per_round=4, max_updates=2)
    assert (renewed / "rounds/0001/pairs.json").is_file()
    # in a round of one update the reference is the policy itself
    assert read_metrics(renewed)["train/loss"] == pytest.approx({1: 0.693147, 2: 0.693147}, abs=1e-4)
    _, adapted = go("fork", lora_rank=2, prompts_per_round=4, max_updates=2, learning_rate=2e-2)
    assert not (adapted / "rounds/0001/pairs.json").exists()
    losses = read_metrics(adapted)["train/loss"]
    assert losses[1] == pytest.approx(0.693147, abs=1e-4) != losses[2]
    assert (adapted / "adapter/adapter_model.safetensors").is_file()

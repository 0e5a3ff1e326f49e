"""Reports of real runs in Chromium: a reward model, SFT, PPO, a failed run and a resumed one."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from browser import needs_chromium, open_page
from launching import EXPERIMENT, ROOT, flags, launch, read_lines, run
from ppo_in_process import shortness, train_small
from scipy import stats

from lmgym.errors import RunStopped
from lmgym.report.page import REPORT, run_sections
from lmgym.report.panels import Panel
from lmgym.report.run_files import RunFiles
from ppo.task_setups import text_with_function

SMALL = {
    "precision": "fp32", "tracking": "none", "max_length": 128, "global_batch": 4, "micro_batch": 2, "max_updates": 6,
    "learning_rate": 1e-3, "log_updates": 1, "eval_updates": 2,
}  # fmt: skip
KINDS = ("reward", "sft", "preference", "ppo", "failed", "resumed")
PANELS = {
    "reward": {"loss", "accuracy", "margins", "reliability", "accuracy_by_margin", "accuracy_by_length",
               "score_distribution", "replies", "rows", "run", "config", "metrics"},
    "sft": {"loss", "perplexity", "replies", "config"},
    "preference": {"loss", "accuracy", "margins", "implicit_rewards", "reliability", "accuracy_by_margin", "replies",
                   "config"},
    "ppo": {"reward", "over_optimisation", "kl", "lengths", "entropy", "clip_fraction", "explained_variance",
            "policy_loss", "replies", "conversations", "scores_0", "diversity"},
    "failed": {"config", "run"},
    "resumed": {"reward", "launches", "conversations"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(small_models, talkative_models, few_pairs, held_out_pairs, chats_file, tmp_path_factory) -> dict[str, Path]:
    """A folder of each kind of run."""
    root = tmp_path_factory.mktemp("reports")
    data = {"dataset": few_pairs, "eval_dataset": held_out_pairs, "model": small_models["llama"]}
    done = run(launch("fork", *flags(**data, **SMALL, output=root / "reward"), script=EXPERIMENT))
    assert done.returncode == 0, done.stderr[-3000:]
    data = {
        "dataset": chats_file,
        "eval_size": 8,
        "model": small_models["llama"],
        "sample_prompts": 2,
        "sample_tokens": 6,
    }
    done = run(launch("fork", *flags(**data, **SMALL, output=root / "sft"), script=ROOT / "sft/experiments/chat.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    data = {"dataset": few_pairs, "eval_dataset": held_out_pairs, "model": small_models["llama"], "sample_tokens": 6}
    script = ROOT / "preferences/experiments/dpo.py"
    done = run(launch("fork", *flags(**data, **SMALL, output=root / "preference"), script=script))
    assert done.returncode == 0, done.stderr[-3000:]
    model = talkative_models["gpt2"]
    train_small(model, chats_file, root, name="ppo", eval_updates=4)

    calls = []

    def interrupting(samples, prompts, outputs, tokenizer) -> list[float]:
        calls.append(1)
        if len(calls) == 3:  # of the first iteration: one evaluation came before
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return shortness(samples, prompts, outputs, tokenizer)

    def failing(samples, prompts, outputs, tokenizer) -> list[float]:
        raise ValueError("the judge is out")

    for name, function in (("resumed", interrupting), ("failed", failing)):
        prepare = text_with_function(function, as_text=False)
        with pytest.raises(RunStopped):
            train_small(model, chats_file, root, prepare, name, reward_retries=0, eval_updates=4)
    train_small(model, chats_file, root, text_with_function(interrupting, as_text=False), "resumed", reward_retries=0,
                eval_updates=4)  # fmt: skip
    return {name: root / name for name in KINDS}


def panels(folder: Path) -> dict[str, Panel]:
    return {panel.id: panel for section in run_sections(RunFiles(folder)) for panel in section.panels}


def points(panel: Panel, series: str) -> list[tuple[float, float]]:
    assert panel.chart
    return [(row["x"], row["y"]) for row in panel.chart["data"]["values"] if row["series"] == series]


@needs_chromium
@pytest.mark.parametrize(
    ("kind", "width", "dark"),
    [
        ("reward", 1280, False),
        ("ppo", 390, True),
        ("failed", 1280, False),
        ("resumed", 390, True),
        *(pytest.param(kind, 1280, False, marks=pytest.mark.slow) for kind in ("sft", "preference", "ppo", "resumed")),
        *(pytest.param(kind, 390, True, marks=pytest.mark.slow) for kind in ("reward", "sft", "preference", "failed")),
    ],
)
def test_a_report_opens_without_errors_or_requests(kind: str, width: int, dark: bool, folders: dict[str, Path]) -> None:
    page = folders[kind] / REPORT
    with open_page(page, width, dark) as opened:
        assert opened.said == []
        assert opened.requested == [page.as_uri()]
        assert not opened.overflows
        charts = opened.page.locator("[data-chart]").count()
        assert opened.page.locator("[data-chart] svg").count() == charts
        for panel in PANELS[kind]:
            assert opened.page.get_by_test_id(f"panel-{panel}").is_visible(), panel


@needs_chromium
def test_the_viewer_shows_the_chosen_episode(folders: dict[str, Path]) -> None:
    samples = sorted((folders["ppo"] / "samples").glob("rollouts-*.jsonl"))
    row = json.loads(samples[0].read_text().splitlines()[3])
    with open_page(folders["ppo"] / REPORT) as opened:
        viewer = opened.page.get_by_test_id("panel-conversations")
        viewer.locator("select.update").select_option(str(row["update"]))
        viewer.locator("select.episode").select_option(index=3)
        shown = viewer.locator(".turns").inner_text()
        assert f"advantage {row['advantage']:.3f}" in shown
        assert row["reply"].split()[0] in shown


def test_curves_are_those_of_the_metrics(folders: dict[str, Path]) -> None:
    metrics = read_lines(folders["reward"] / "metrics.jsonl")
    held_out = [(line["step"], line["eval/nll"]) for line in metrics if "eval/nll" in line]
    assert points(panels(folders["reward"])["loss"], "held out") == held_out
    reward = [
        (line["step"], line["reward/mean"])
        for line in read_lines(folders["ppo"] / "metrics.jsonl")
        if "reward/mean" in line
    ]
    assert points(panels(folders["ppo"])["reward"], "rollouts") == reward


def test_intervals_of_held_out_rewards_are_of_the_evaluated_episodes(folders: dict[str, Path]) -> None:
    [last] = [line for line in read_lines(folders["ppo"] / "metrics.jsonl") if line["step"] == 8]
    rewards = [row["episode_reward"] for row in read_lines(folders["ppo"] / "samples/evaluation-000008.jsonl")]
    assert last["eval/reward/mean"] == pytest.approx(np.mean(rewards))
    expected = stats.ttest_1samp(rewards, 0).confidence_interval()
    assert (last["eval/reward/mean_low"], last["eval/reward/mean_high"]) == pytest.approx(tuple(expected))


def test_a_reward_models_replies_have_the_scores_of_its_held_out_pairs(folders: dict[str, Path]) -> None:
    scores = read_lines(folders["reward"] / "scores.jsonl")
    pairs = panels(folders["reward"])["replies"].pairs
    for pair, score in zip(pairs, scores, strict=False):
        assert [reply["after"] for reply in pair["given"]] == [score["chosen"], score["rejected"]]
        assert pair["given"][0]["before"] != pair["given"][0]["after"]


def test_a_failed_run_says_why_and_a_resumed_one_from_where(folders: dict[str, Path]) -> None:
    assert "the judge is out" in (folders["failed"] / REPORT).read_text()
    page = (folders["resumed"] / REPORT).read_text()
    assert "Resumed 1 time, from the checkpoint after update 4." in page
    assert "interrupted, can be resumed" in page

"""Reports of real runs in Chromium: a reward model, SFT, PPO, a failed run and a resumed one."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import needs_chromium, one_browser, open_page
from launching import EXPERIMENT, ROOT, flags, launch, read_lines, run
from playwright.sync_api import Browser
from ppo_in_process import shortness, train_small
from scipy import stats

from lmgym.errors import RunStopped
from lmgym.report.comparison import Comparison
from lmgym.report.known_metrics import definition
from lmgym.report.page import REPORT, report_page, run_sections
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
               "score_distribution", "replies", "rows", "run", "config", "metrics", "phases"},
    "sft": {"loss", "perplexity", "replies", "config", "phases"},
    "preference": {"loss", "accuracy", "margins", "implicit_rewards", "reliability", "accuracy_by_margin", "replies",
                   "config"},
    "ppo": {"reward", "over_optimisation", "kl", "lengths", "entropy", "clip_fraction", "explained_variance",
            "policy_loss", "replies", "conversations", "scores_0", "diversity", "phases"},
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
            train_small(model, chats_file, root, prepare, name, eval_updates=4)
    train_small(model, chats_file, root, text_with_function(interrupting, as_text=False), "resumed", eval_updates=4)
    return {name: root / name for name in KINDS}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with one_browser() as running:
        yield running


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
def test_a_report_opens_without_errors_or_requests(
    kind: str, width: int, dark: bool, folders: dict[str, Path], browser: Browser
) -> None:
    page = folders[kind] / REPORT
    with open_page(page, width, dark, browser=browser) as opened:
        assert opened.said == []
        assert opened.requested == [page.as_uri()]
        assert not opened.overflows
        charts = opened.page.locator("[data-chart]").count()
        assert opened.page.locator("[data-chart] svg").count() == charts
        for panel in PANELS[kind]:
            assert opened.page.get_by_test_id(f"panel-{panel}").is_visible(), panel


@needs_chromium
def test_the_viewer_shows_the_chosen_episode(folders: dict[str, Path], browser: Browser) -> None:
    samples = sorted((folders["ppo"] / "samples").glob("rollouts-*.jsonl"))
    row = json.loads(samples[0].read_text().splitlines()[3])
    with open_page(folders["ppo"] / REPORT, browser=browser) as opened:
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
        scores = [dict(side["scores"]) for side in pair["sides"]]
        assert [one["after"] for one in scores] == [score["chosen"], score["rejected"]]
        assert scores[0]["score before"] != scores[0]["after"]


def test_a_failed_run_says_why_and_a_resumed_one_from_where(folders: dict[str, Path]) -> None:
    assert "the judge is out" in (folders["failed"] / REPORT).read_text()
    page = (folders["resumed"] / REPORT).read_text()
    assert "Resumed 1 time, from the checkpoint after update 4." in page
    assert "interrupted, can be resumed" in page


def test_every_metric_of_real_runs_is_explained(folders: dict[str, Path]) -> None:
    for kind in ("reward", "sft", "preference", "ppo"):
        names = RunFiles(folders[kind]).metric_names
        assert [name for name in names if not definition(name)] == [], kind


def test_a_run_records_its_phases_and_its_memory_and_trains_on_a_curve(folders: dict[str, Path]) -> None:
    run = RunFiles(folders["sft"])
    assert run.record["peak_memory_gib"] > 0.1
    evaluated = [update for update, _ in run.series("eval/loss")]
    assert [update for update, _ in run.series("time/evaluate")] == evaluated
    assert {update for update, _ in run.series("time/train")} >= {*evaluated} - {0}
    seconds = sum(value for name in ("time/train", "time/evaluate") for _, value in run.series(name))
    assert 0 < seconds < run.record["seconds"]


@needs_chromium
def test_replies_are_sorted_by_the_change_of_their_reward(folders: dict[str, Path], browser: Browser) -> None:
    with open_page(folders["ppo"] / REPORT, browser=browser) as opened:
        panel = opened.page.get_by_test_id("panel-replies")
        order = panel.locator("select.order")

        def changes() -> list[float]:
            return [float(text) for text in panel.locator(".change b").all_inner_texts()]

        given = changes()
        order.select_option(label="largest rise: change of reward")
        assert changes() == sorted(given, reverse=True)
        order.select_option(label="largest fall: change of reward")
        assert changes() == sorted(given)
        assert len(set(given)) > 1
        order.select_option(label="as in the data")
        assert changes() == given
        assert opened.said == []


@needs_chromium
def test_many_replies_are_opened_by_a_button_and_sorted_all(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "samples").mkdir()
    for update, sign in ((0, 0), (4, 1)):
        rows = [{"task": i, "prompt": "hi", "reply": f"reply {i}", "reward": sign * i % 12} for i in range(12)]
        path = tmp_path / f"samples/evaluation-{update:06d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / REPORT).write_text(report_page(tmp_path))
    with open_page(tmp_path / REPORT, browser=browser) as opened:
        panel = opened.page.get_by_test_id("panel-replies")

        def visible() -> list[str]:
            return [one.inner_text() for one in panel.locator(".reply.after bdi").all() if one.is_visible()]

        assert visible() == [f"reply {i}" for i in range(8)]
        panel.locator("select.order").select_option(label="largest rise: change of reward")
        assert visible() == [f"reply {i}" for i in range(11, 3, -1)]
        panel.get_by_role("button", name="show all 12").click()
        assert len(visible()) == 12
        assert not panel.get_by_role("button").is_visible()


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_compared_runs_show_their_replies_side_by_side(
    width: int, folders: dict[str, Path], tmp_path: Path, browser: Browser
) -> None:
    page = tmp_path / "comparison.html"
    page.write_text(Comparison.of([folders["ppo"], folders["resumed"]]).page())
    with open_page(page, width, dark=width < 500, browser=browser) as opened:
        pair = opened.page.get_by_test_id("panel-replies").locator(".pair").first
        left, right = (side.bounding_box() for side in pair.locator(".reply").all())
        assert pair.locator(".side").all_inner_texts() == ["ppo", "resumed"]
        assert left
        assert right
        assert (left["y"] == right["y"]) == (width > 500)
        assert "change of reward, resumed − ppo" in pair.inner_text()
        assert (opened.said, opened.requested, opened.overflows) == ([], [page.as_uri()], False)


@needs_chromium
def test_names_of_lines_are_whole_and_explained_when_pointed_at(folders: dict[str, Path], browser: Browser) -> None:
    with open_page(folders["ppo"] / REPORT, 390, browser=browser) as opened:
        name = opened.page.get_by_test_id("panel-diversity").locator(".legend abbr").first
        assert name.inner_text() == "openings"
        assert name.get_attribute("title") == definition("eval/diversity/openings")
        card = opened.page.get_by_test_id("cards").locator("abbr").first
        assert card.get_attribute("title") == definition("eval/reward/mean")


@needs_chromium
def test_replies_and_tables_need_no_javascript(folders: dict[str, Path], browser: Browser) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((folders["ppo"] / REPORT).as_uri())
    pairs = page.get_by_test_id("panel-replies").locator(".pair")
    assert pairs.count() > 1
    assert all(pair.is_visible() for pair in pairs.all())
    assert page.get_by_test_id("panel-phases").is_visible()
    assert page.locator("button, select.order").count() == 0
    page.close()

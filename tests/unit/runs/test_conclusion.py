"""The last lines of a run: what changed, how sure that is, and the command to type next."""

import json
from pathlib import Path

import pytest

from lmgym.runs.conclusion import conclude


def finished(folder: Path, stage: str, config: dict[str, object], *lines: dict[str, float]) -> Path:
    """A run's folder as a stage leaves it."""
    (folder / "model").mkdir(parents=True)
    record = {"name": "hh", "outcome": "finished", "stage": stage, "config": config}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def accuracy(step: int, value: float, low: float, high: float) -> dict[str, float]:
    return {"step": step, "eval/accuracy": value, "eval/accuracy_low": low, "eval/accuracy_high": high}


def test_a_scorer_says_its_accuracy_and_the_command_that_optimises_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"model": str(tmp_path / "base"), "dataset": str(tmp_path / "two words.jsonl")}
    lines = (accuracy(0, 0.5, 0.4, 0.6), accuracy(9, 0.9, 0.8, 0.95))
    folder = finished(Path("outputs/hh"), "reward_models", config, *lines)
    assert conclude(folder) == [
        "result: accuracy of pairs on held-out rows rose from 0.5 to 0.9 (95% interval 0.8 to 0.95)",
        "next: lmgym train ppo hh_harmless --model base --scorers hh=outputs/hh/model --prompts 'two words.jsonl'",
    ]


@pytest.mark.parametrize(
    ("before", "after", "unclear"),
    [
        ((0.5, 0.4, 0.6), (0.6, 0.51, 0.7), True),  # hypot(.09, .1) is .135: the figure before is as uncertain
        ((0.5, 0.4, 0.6), (0.64, 0.55, 0.7), False),
        ((0.64, 0.55, 0.7), (0.5, 0.4, 0.6), False),  # the ends that face each other count: hypot(.1, .09)
        ((0.5,), (0.6, 0.51, 0.7), False),
        ((0.5,), (0.6, 0.49, 0.7), True),
    ],
)
def test_a_change_whose_interval_holds_0_is_no_clear_one(
    before: tuple[float, ...], after: tuple[float, ...], unclear: bool, tmp_path: Path
) -> None:
    names = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
    lines = ({"step": step} | dict(zip(names, of, strict=False)) for step, of in ((0, before), (9, after)))
    [said, _] = conclude(finished(tmp_path / "run", "reward_models", {}, *lines))
    assert ("no clear change" in said) == unclear


def test_a_change_that_the_printed_digits_do_not_show_is_none(tmp_path: Path) -> None:
    before, after = accuracy(0, 0.5001, 0.4, 0.6), accuracy(9, 0.5002, 0.4, 0.7)
    [said, _] = conclude(finished(tmp_path / "run", "reward_models", {}, before, after))
    assert said.startswith("result: accuracy of pairs on held-out rows stayed at 0.5 (95% interval")


def test_a_policy_says_what_was_not_optimised_and_chats_with_its_scorers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = {"step": 0, "eval/reward/mean": 0.06, "eval/rollout/reply_tokens": 46.6}
    after = {"step": 9, "eval/reward/mean": 0.04, "eval/rollout/reply_tokens": 31.2, "kl/reference": 2.38}
    scorers = {"scorers": f"a={tmp_path}/here/b/model"}
    [said, _] = conclude(finished(tmp_path / "one", "ppo", scorers, before, after | {"kl/reference": 0.0}))
    assert said.endswith("tokens per reply 46.6 -> 31.2"), "the KL of a single iteration is that of the start"
    folder = finished(tmp_path / "run", "ppo", scorers, before, {"step": 3, "kl/reference": 0.0}, after)
    assert conclude(folder) == [
        "result: reward on held-out rows fell from 0.06 to 0.04; beside it: tokens per reply 46.6 -> 31.2, KL 2.4 nats "
        "per reply",
        f"next: lmgym chat {tmp_path}/run/model --scorers a=b/model --best_of 4",
    ]


def test_a_judge_is_followed_by_its_verdicts_on_the_rows_that_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"prompts": f"{tmp_path}/pairs.jsonl"}
    figures = {"eval/reward/mean": 0.5, "metrics/both_orders_right": 0.1}
    folder = finished(tmp_path / "run", "ppo", rows, {"step": 0} | figures, {"step": 9} | figures)
    assert conclude(folder)[-1] == "next: lmgym score compare:run/model pairs.jsonl"
    others = rows | {"eval_prompts": f"{tmp_path}/held_out.jsonl"}
    folder = finished(tmp_path / "again", "ppo", others, {"step": 0} | figures, {"step": 9} | figures)
    assert conclude(folder)[-1] == "next: lmgym score compare:again/model held_out.jsonl"


@pytest.mark.parametrize(("equal", "told"), [(0.75, True), (0.5, False), (None, False)])
def test_a_policy_says_that_most_groups_of_its_last_iteration_taught_nothing(
    equal: float | None, told: bool, tmp_path: Path
) -> None:
    lines = [{"step": step, "eval/reward/mean": 0.1, "groups/equal_rewards": equal} for step in (0, 9)]
    [said, _] = conclude(finished(tmp_path / "run", "ppo", {}, *lines))  # type: ignore[arg-type]
    assert ("all rewards equal in 75% of the last groups" in said) == told


@pytest.mark.parametrize("lines", [[], [{"step": 9, "eval/perplexity": 20.0}]])
def test_without_two_measurements_there_is_no_result(lines: list[dict[str, float]], tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", "sft", {}, *lines)
    assert conclude(folder) == [f"next: lmgym chat {tmp_path}/run/model"]


def test_a_folder_that_somebody_took_away_says_nothing(tmp_path: Path) -> None:
    assert conclude(tmp_path / "nowhere") == []


def test_figures_of_before_training_are_no_result(tmp_path: Path) -> None:
    [said, *_] = conclude(finished(tmp_path / "run", "reward_models", {}, accuracy(0, 0.5, 0.4, 0.6), {"step": 1}))
    why = "finished after 1 update, before an evaluation of the trained model"
    assert said == f"result: none yet, {why}; accuracy of pairs on held-out rows was 0.5 before training"

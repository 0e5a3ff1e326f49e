"""Runs that overfit on purpose, as users launch them: the best model is kept, the last beside it; early stopping."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from launching import ROOT, flags, launch, read_lines, read_metrics, run, words

from lmgym.scoring.scorers import HFScorer

# 23 pairs seen ten times by a model that can learn them by heart
OVERFIT = {
    "max_length": 256, "global_batch": 4, "micro_batch": 2, "max_updates": 60, "learning_rate": 1e-3,
    "log_updates": 10, "eval_updates": 3, "save_updates": 6, "precision": "fp32", "tracking": "none",
}  # fmt: skip
Go = Callable[..., tuple[CompletedProcess[str], Path]]


@pytest.fixture(scope="module")
def go(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path, tmp_path_factory) -> Go:
    """Launches a run that overfits; (what it said, its folder)."""

    def begin(kind: str = "fork", config: str = "", returns: int = 0, **changes: object):
        folder = tmp_path_factory.mktemp("best") / "run"
        values = {
            "model": small_models["llama"], "dataset": few_pairs, "eval_dataset": held_out_pairs, "output": folder,
            **OVERFIT, **changes,
        }  # fmt: skip
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        done = run(launch(kind, *flags(**values)))
        assert done.returncode == returns, done.stdout[-2000:] + done.stderr[-3000:]
        return done, folder

    return begin


@pytest.fixture(scope="module")
def overfitted(go: Go) -> tuple[CompletedProcess[str], Path]:
    return go()


def measured_accuracy(model: Path, held_out: Path) -> float:
    """Accuracy of a saved scorer on the held-out pairs, by its own folder alone."""
    from lmgym.data.pairs import validate
    from lmgym.data.records import read_records

    pairs, _ = validate(read_records(str(held_out)))
    scorer, conversations = HFScorer.load(model), [pair.conversation for pair in pairs]
    chosen = scorer.score(conversations, [pair.chosen for pair in pairs])
    return (chosen > scorer.score(conversations, [pair.rejected for pair in pairs])).double().mean().item()


def best_update(folder: Path, metric: str, pick=min) -> int:
    """The first update whose evaluation was the best, out of the lines of metrics."""
    course = {step: value for step, value in read_metrics(folder)[f"eval/{metric}"].items() if step}
    return pick(course, key=course.__getitem__)


def test_model_is_the_best_evaluation_and_last_is_the_last(overfitted, held_out_pairs: Path) -> None:
    _, folder = overfitted
    metrics, best = read_metrics(folder), best_update(folder, "nll")
    assert 3 <= best < 60, "the run overfits"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert (evaluation["update"], evaluation["best_metric"], evaluation["last"]["update"]) == (best, "nll", 60)
    assert evaluation["metrics"]["nll"] == metrics["eval/nll"][best]
    assert evaluation["last"]["metrics"]["nll"] == metrics["eval/nll"][60] > evaluation["metrics"]["nll"]
    assert metrics["eval/accuracy"][best] != metrics["eval/accuracy"][60], "the two models can be told apart"
    assert measured_accuracy(folder / "model", held_out_pairs) == pytest.approx(metrics["eval/accuracy"][best])
    assert measured_accuracy(folder / "last", held_out_pairs) == pytest.approx(metrics["eval/accuracy"][60])
    scores = torch.tensor([[row["chosen"], row["rejected"]] for row in read_lines(folder / "scores.jsonl")])
    assert (scores[:, 0] > scores[:, 1]).double().mean().item() == pytest.approx(metrics["eval/accuracy"][best])


def test_the_warnings_the_table_and_the_cards_say_which_model_is_which(overfitted) -> None:
    done, folder = overfitted
    said, best = words(done.stdout), best_update(folder, "nll")
    losses = read_metrics(folder)["eval/nll"]
    assert "warning: the held-out loss rose at 3 evaluations in a row" in said
    assert f"warning: the held-out loss was lowest after update {best}: {losses[best]:.4g}, and is" in said
    assert f"the saved model is the one after update {best}, the best by nll" in said
    assert f"hh_pairwise, after update {best}: 40 held-out pairs" in said
    assert f"{losses[best] - losses[0]:+.3f} │" in said, "the change up to the best"
    closing = f"after update {best}, the best by nll ({losses[best]:.4g}); the last, after update 60: {folder / 'last'}"
    assert closing in said
    assert f"Weights after update {best}: the best evaluation by nll" in (folder / "model/README.md").read_text()
    assert "Weights after update 60: the last of the run; the best by nll" in (folder / "last/README.md").read_text()
    assert sorted(p.name for p in folder.iterdir() if p.suffix in (".partial", ".former")) == []


def test_a_run_that_no_longer_improves_stops_early(go: Go, overfitted) -> None:
    done, folder = go(early_stopping=2)
    whole = read_metrics(overfitted[1])
    stopped = json.loads((folder / "run.json").read_text())["stopped_early"]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert (evaluation["last"]["update"], stopped - evaluation["update"]) == (stopped, 6)
    found = read_metrics(folder)
    assert found["eval/nll"] == {step: value for step, value in whole["eval/nll"].items() if step <= stopped}
    # the schedule is that of all updates
    assert found["train/learning_rate"].items() <= whole["train/learning_rate"].items()
    said = words(done.stdout)
    assert f"stopped early after update {stopped} of 60: 2 evaluations in a row were not better by nll" in said
    assert json.loads((folder / "run.json").read_text())["outcome"] == "finished"


@pytest.mark.slow
def test_by_another_metric_another_model_is_the_best_and_without_one_the_last_is(go: Go, held_out_pairs: Path) -> None:
    _, folder = go(best_metric="accuracy")
    accuracies = read_metrics(folder)["eval/accuracy"]
    best = best_update(folder, "accuracy", max)
    assert json.loads((folder / "evaluation.json").read_text())["update"] == best
    assert measured_accuracy(folder / "model", held_out_pairs) == pytest.approx(accuracies[best])
    done, folder = go(best_metric="none")
    assert not (folder / "last").exists()
    assert json.loads((folder / "evaluation.json").read_text())["update"] == 60
    assert "the saved model is the last (--best_metric loss keeps the best)" in words(done.stdout)


def test_an_unknown_metric_is_refused_before_step_1(go: Go) -> None:
    done, folder = go(best_metric="kendall_tau", returns=2)
    assert "best_metric='kendall_tau', not measured; needed: one of accuracy, nll, brier, ece" in words(done.stderr)
    assert not (folder / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config"), [("torchrun", ""), ("deepspeed", "zero2.json"), ("deepspeed", "zero3.json")]
)
def test_two_ranks_keep_the_same_best_with_adapters_too(
    kind: str, config: str, go: Go, overfitted, held_out_pairs: Path
) -> None:
    _, folder = go(kind, config)
    wanted = json.loads((overfitted[1] / "evaluation.json").read_text())
    found = json.loads((folder / "evaluation.json").read_text())
    assert found["update"] == wanted["update"]
    assert found["metrics"]["nll"] == pytest.approx(wanted["metrics"]["nll"], abs=1e-4)
    assert measured_accuracy(folder / "model", held_out_pairs) == pytest.approx(found["metrics"]["accuracy"])
    _, folder = go(kind, config, lora_rank=4, learning_rate=2e-2, early_stopping=2)
    found = json.loads((folder / "evaluation.json").read_text())
    assert measured_accuracy(folder / "model", held_out_pairs) == pytest.approx(found["metrics"]["accuracy"])
    assert measured_accuracy(folder / "last", held_out_pairs) == pytest.approx(found["last"]["metrics"]["accuracy"])

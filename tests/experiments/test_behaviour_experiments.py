"""The experiments on users' traces as users launch them, with their evaluation sets; and their gradients."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from gradient_script import gradients
from launching import ROOT, assert_metrics_are_known, flags, launch, read_lines, read_metrics, run, words

from lmgym.messages import from_transcript
from lmgym.scoring.scorers import HFScorer
from reward_models.behaviour import BehaviourTask
from reward_models.kwise import KwiseTask
from reward_models.metrics.labels import JOINT_BITS
from reward_models.objectives import MULTI_LABEL_BCE

Start = Callable[..., tuple[CompletedProcess[str], Path]]
# 23 rows of training in updates of 4: the last one is short, and 2 ranks need a filler
TRAIN = {
    "max_length": 128,
    "global_batch": 4,
    "micro_batch": 1,
    "max_updates": 6,
    "eval_size": 60,
    "train_size": 23,
    "learning_rate": 1e-3,
    "log_updates": 1,
    "eval_updates": 3,
    "precision": "fp32",
    "tracking": "none",
}


@pytest.fixture(scope="module")
def world(write_log, tmp_path_factory) -> Path:
    """A folder of small logs, ranked groups and evaluation sets; it has no reject_eval."""
    folder = tmp_path_factory.mktemp("world")
    logs = write_log(folder / "logs.parquet")
    rng = np.random.default_rng(0)
    texts = [f"User: question {i // 3}\nBot: {reply}" for i, reply in enumerate(logs["output_text"][:30])]
    flag = lambda: rng.integers(0, 2, 30).tolist()  # noqa: E731
    tables = {
        "retry_eval": {"text": texts, "retried": flag(), "end_of_conversation": flag()},
        "retention_eval": {"text": texts, "d3": flag(), "d7": flag(), "d30": flag(), "is_new_user": flag()},
        "ranking_eval": {"text": texts, "id": [i // 3 for i in range(30)], "rank (lower is better)": [1, 2, 3] * 10},
        "gold_eval": {"text": texts, "utility": rng.normal(size=30).tolist()},
        "kwise": {
            "prompt": [f"User: question {i}" for i in range(60)],
            "replies": [logs["output_text"][i : i + 2 + i % 3] for i in range(60)],
            "ranks": [list(range(1, 3 + i % 3)) for i in range(60)],
        },
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def begin(small_models, world: Path, tmp_path_factory) -> Start:
    """Launches an experiment on that folder; (what it said, its results). Fails where it does."""

    def go(kind: str, experiment: str, config: str = "", dataset: str = "logs.parquet", **changes: object):
        folder = tmp_path_factory.mktemp("runs") / "output"
        values = {
            "model": small_models["llama"],
            "dataset": world / dataset,
            "probe_data": world,
            "output": folder,
            **TRAIN,
            **({"deepspeed": ROOT / "configs" / config} if config else {}),
            **changes,
        }
        script = ROOT / f"reward_models/experiments/{experiment}.py"
        done = run(launch(kind, *flags(**values), script=script))
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        if (folder / "metrics.jsonl").exists():
            assert_metrics_are_known(folder)
        return done, folder

    return go


@pytest.fixture(scope="module")
def joint(begin: Start) -> tuple[CompletedProcess[str], Path]:
    return begin("fork", "convo_joint")


def assert_scorer_gives_the_scores_of_the_run(folder: Path, world: Path) -> None:
    """The folder loads as a scorer, whose scores are those of scores.jsonl."""
    logs = pq.read_table(world / "logs.parquet").to_pylist()
    by_id = {row["row_id"]: row for row in logs}
    lines = read_lines(folder / "scores.jsonl")
    assert len(lines) == json.loads((folder / "run.json").read_text())["data"]["eval_rows"] > 50
    rows = [by_id[line["row_id"]] for line in lines]
    assert [row["user_id"] for row in rows] == [line["user_id"] for line in lines]
    scorer = HFScorer.load(folder / "model")
    found = scorer.score([from_transcript(r["input_text"]) for r in rows], [r["output_text"].strip() for r in rows])
    wanted = torch.tensor([line["score"] for line in lines])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert wanted.std() > 0


@pytest.mark.parametrize("config", [pytest.param("zero2.json", marks=pytest.mark.slow), "zero3.json"])
def test_the_joint_scorer_with_its_evaluations_is_the_plain_run_under_zero(
    config: str, joint, begin: Start, world: Path
) -> None:
    done, folder = begin("forks", "convo_joint", config)
    found, wanted = read_metrics(folder), read_metrics(joint[1])
    assert found.keys() == wanted.keys()
    for name in wanted:
        if name.startswith(("eval/", "train/loss", "train/label_accuracy", "train/grad_norm")):
            assert found[name] == pytest.approx(wanted[name], abs=1e-4), name
    assert len(wanted["train/loss"]) == 6
    assert sorted(wanted["eval/gold/gold_spearman"]) == [0, 3, 6]
    assert words(done.stdout).count("convo_joint, after update 6: 60 held-out rows") == 1
    assert_scorer_gives_the_scores_of_the_run(folder, world)


def test_a_run_says_what_it_could_not_judge_and_shows_what_it_did(joint, world: Path) -> None:
    said = words(joint[0].stdout)
    assert "23 rows to train on, 60 to evaluate on" in said
    assert f"{world} has no reject_eval.parquet or .jsonl: not evaluated on it" in said
    for shown in ("loss (binary cross entropy)", "ranking: Kendall tau", "retry: AUC", "retention: AUC, back on day 7"):
        assert said.count(shown) >= 1, shown
    assert "gold: Spearman with the hidden" in said
    assert "60 rows of 6 users" in said
    assert said.count("Intervals rest on only 6 users; 30 or more are needed to rely on a figure") == 1
    lines = [line for line in joint[0].stderr.splitlines() if "real_accelerator.py" not in line]
    assert lines == []


def test_a_run_leaves_its_figures_its_reasons_and_what_the_score_means(joint, world: Path) -> None:
    folder = joint[1]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert set(evaluation) == {
        "update", "best_metric", "metrics", "before", "undefined", "left_out", "last",
    }  # fmt: skip
    assert {"auc_back_d1", "ranking/kendall_tau", "retention/d30_auc_new"} < set(evaluation["metrics"])
    assert not any(name.startswith("reject/") for name in evaluation["metrics"])
    settings = json.loads((folder / "model/scorer.json").read_text())
    scores = [line["score"] for line in read_lines(folder / "scores.jsonl")]
    assert settings["reduce"] == "mean_sigmoid"
    assert settings["moments"][0] == pytest.approx(np.mean(scores))
    card = (folder / "model/README.md").read_text()
    assert "the mean of the labels' probabilities" in card
    assert "`num_labels=6`" in card
    assert f"| auc | {evaluation['before']['auc']:.4f} | {evaluation['metrics']['auc']:.4f} |" in card
    record = json.loads((folder / "run.json").read_text())
    assert (record["data"]["train_rows"], record["data"]["eval_rows"], record["outcome"]) == (23, 60, "finished")
    assert_scorer_gives_the_scores_of_the_run(folder, world)


@pytest.mark.parametrize(
    ("experiment", "reduce", "shown"),
    [
        ("retry_accept", "softmax[1]", "accuracy of the majority class"),
        ("responds_180s", "softmax[1]", "AUC within users"),
        ("messages_first_days", "logit", "loss of the mean as prediction"),
    ],
)
def test_the_other_labels_train_and_save_a_scorer(experiment, reduce, shown, begin: Start, world: Path) -> None:
    done, folder = begin("fork", experiment)
    assert json.loads((folder / "model/scorer.json").read_text())["reduce"] == reduce
    assert shown in words(done.stdout)
    metrics = json.loads((folder / "evaluation.json").read_text())["metrics"]
    assert ("ranking/kendall_tau" in metrics) == (experiment != "messages_first_days")
    assert "gold/gold_spearman" in metrics
    assert_scorer_gives_the_scores_of_the_run(folder, world)


@pytest.mark.slow
def test_ranked_groups_of_different_sizes_train_under_zero2_as_they_do_plain(begin: Start) -> None:
    changes = {"dataset": "kwise.parquet", "eval_size": 20}
    (done, one), (_, two) = (
        begin("fork", "kwise_ranking", **changes),
        begin("forks", "kwise_ranking", "zero2.json", **changes),
    )
    assert ": 20 held-out groups" in words(done.stdout)
    a, b = read_metrics(one), read_metrics(two)
    for name in ("train/loss", "train/top_1_acc", "train/grad_norm", "eval/top_1_acc", "eval/ranking/kendall_tau"):
        assert a[name] == pytest.approx(b[name], abs=1e-4), name
    lines = read_lines(one / "scores.jsonl")
    best = [int(np.argmax(line["scores"])) == 0 for line in lines]
    assert np.mean(best) == pytest.approx(json.loads((one / "evaluation.json").read_text())["metrics"]["top_1_acc"])


def test_what_is_wrong_with_a_log_is_one_line_before_training(small_models, world: Path, tmp_path: Path) -> None:
    table = pq.read_table(world / "logs.parquet").drop_columns("d3").append_column("day3", pa.array([1] * 120))
    pq.write_table(table, tmp_path / "logs.parquet")
    dataset = tmp_path / "logs.parquet"
    values = flags(model=small_models["llama"], dataset=dataset, probe_data=world, eval_size=60, max_length=128)
    script = ROOT / "reward_models/experiments/convo_joint.py"
    done = run(launch("fork", *values, script=script), cwd=tmp_path)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.strip())
    assert line.startswith(f"error: {dataset} lacks the column(s) d3; found: ")
    assert list(tmp_path.iterdir()) == [tmp_path / "logs.parquet"]


def test_a_folder_of_evaluations_that_is_absent_is_one_line(small_models, world: Path, tmp_path: Path) -> None:
    values = flags(model=small_models["llama"], dataset=world / "logs.parquet", probe_data="absent", max_length=128)
    done = run(launch("fork", *values, script=ROOT / "reward_models/experiments/retry_accept.py"), cwd=tmp_path)
    assert done.returncode == 2
    assert "error: --probe_data absent is no folder; needed: one with retry_eval.parquet and the like, or None" in (
        done.stderr
    )


def test_a_dry_run_shows_replies_with_their_labels(small_models, world: Path, tmp_path: Path) -> None:
    values = flags(model=small_models["llama"], dataset=world / "logs.parquet", probe_data=world, eval_size=60)
    script = ROOT / "reward_models/experiments/convo_joint.py"
    done = run(launch("fork", *values, "--max_length", 128, "--dry_run", script=script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = words(done.stdout)
    assert said.count("tokens: 'A friend.\\nUser: ") == 3
    assert "accepted 1" in said or "accepted 0" in said
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def sources(small_models, write_log, world: Path, tmp_path_factory) -> dict[str, dict]:
    """23 training examples of each task and what else `gradients` asks for."""
    folder = tmp_path_factory.mktemp("sources")
    write_log(folder / "train.parquet", rows=23, seed=5)
    write_log(folder / "test.parquet", rows=10, seed=6, first_user=50)
    groups = pq.read_table(world / "kwise.parquet")
    pq.write_table(groups.slice(0, 23), folder / "ranked.parquet")
    pq.write_table(groups.slice(30, 5), folder / "ranked_test.parquet")
    model = {"model": str(small_models["llama"]), "global_batch": 8}
    return {
        "bits": {
            **model,
            "task": BehaviourTask(JOINT_BITS, MULTI_LABEL_BCE),
            "dataset": str(folder / "train.parquet"),
            "evaluation": str(folder / "test.parquet"),
        },
        "groups": {
            **model,
            "task": KwiseTask(),
            "dataset": str(folder / "ranked.parquet"),
            "evaluation": str(folder / "ranked_test.parquet"),
        },
    }


@pytest.mark.parametrize("kind", ["bits", "groups"])
def test_any_cut_gives_the_gradient_of_the_mean_over_all_that_counts(kind, sources, tmp_path: Path) -> None:
    whole, updates, data = gradients(tmp_path / "8", **sources[kind], micro_batch=8, accumulation=1)
    assert [len(rows) for rows in updates] == [8, 8, 7]
    if kind == "bits":
        present = [int((~np.isnan(data.train.labels[rows])).sum()) for rows in updates]
        assert any(count < 6 * len(rows) for count, rows in zip(present, updates, strict=True))
    for micro_batch, accumulation in ((4, 2), (2, 4)):
        cut, _, _ = gradients(
            tmp_path / str(micro_batch), **sources[kind], micro_batch=micro_batch, accumulation=accumulation
        )
        for a, b in zip(whole, cut, strict=True):
            assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-6
    assert max(g.abs().max().item() for g in whole[-1].values()) > 1e-3

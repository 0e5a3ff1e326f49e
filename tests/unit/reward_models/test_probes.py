"""Probes against a direct computation: every row scored once, and the figures those of plain functions."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, mean_squared_error, roc_auc_score

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig
from lmgym.errors import InputError
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn, share_prefix
from reward_models.behaviour import BehaviourTask
from reward_models.config import RewardModelConfig
from reward_models.metrics.evaluations import GOLD, RANK, RANKING, REJECT, RETENTION, RETRY, read_evaluation
from reward_models.metrics.label_metrics import label_metrics
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED, JOINT_BITS, MESSAGES_FIRST_DAYS
from reward_models.objectives import CROSS_ENTROPY, MULTI_LABEL_BCE, SQUARED_ERROR, RankedExample
from reward_models.probes import Forwards, RankingProbe, TranscriptProbe

TASKS = {
    "class": BehaviourTask(ACCEPTED_AND_CONTINUED, CROSS_ENTROPY),
    "number": BehaviourTask(MESSAGES_FIRST_DAYS, SQUARED_ERROR),
    "bits": BehaviourTask(JOINT_BITS, MULTI_LABEL_BCE),
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer(small_models):
    return load_tokenizer(str(small_models["llama"]))


@pytest.fixture(scope="module")
def models(small_models, tokenizer) -> dict[int, ScoringModel]:
    """Untrained models by their number of outputs; weights are large, so that scores differ."""
    found = {}
    for outputs in (1, 2, 6):
        model, _ = load_classifier(str(small_models["llama"]), tokenizer, num_labels=outputs)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0)
        found[outputs] = ScoringModel(model).eval()
    return found


@pytest.mark.parametrize("kind", TASKS)
def test_the_held_out_probe_is_the_scorer_and_plain_functions(
    kind: str, models, tokenizer, small_models, write_log, tmp_path: Path
) -> None:
    task, model = TASKS[kind], models[TASKS[kind].outputs]
    columns = write_log(tmp_path / "logs.parquet")
    settings = RowsConfig(str(tmp_path / "logs.parquet"), max_length=128, eval_size=60)
    config = RewardModelConfig("x", ModelConfig(str(small_models["llama"])), settings, OptimizerConfig())
    data = task.prepare(config, tokenizer)
    probe = task.probe(data, model, tokenizer.pad_token_id, batch_tokens=300)
    found = probe.measure(model, CPU)
    rows = [int(line) - 1 for line in data.evaluation.line]
    chats = [Conversation((Turn("user", columns["input_text"][i].splitlines()[1][6:]),), "A friend.") for i in rows]
    scorer = HFScorer(model, tokenizer, task.reduce, 128)
    direct = scorer.score(chats, [columns["output_text"][i].strip() for i in rows]).numpy()
    np.testing.assert_allclose(probe.scores, direct, atol=1e-5)
    labels = task.label.compute(*(columns[name] for name in task.label.columns))[rows]
    if kind == "class":
        assert found["auc"] == pytest.approx(roc_auc_score(labels, direct))
        assert found["label_accuracy"] == pytest.approx(accuracy_score(labels, direct > 0.5))
        assert found["majority_accuracy"] == max(labels.mean(), 1 - labels.mean())
    elif kind == "number":
        assert found["spearman"] == pytest.approx(stats.spearmanr(direct, labels).statistic)
        assert found["loss"] == pytest.approx(mean_squared_error(labels, direct), rel=1e-4)
        assert found["variance"] == pytest.approx(np.var(labels))
    else:
        logits = HFScorer(model, tokenizer, "mean_sigmoid", 128)
        assert logits.reduce == task.reduce
        assert sum(name.startswith("auc_") and not name.endswith(("_low", "_high")) for name in found) == 6
        assert found["auc"] == pytest.approx(np.mean([found[f"auc_{name}"] for name in task.label.names]))
    assert all(np.isfinite(value) for value in found.values())
    lines = list(probe.lines())
    assert [line["row_id"] for line in lines] == [columns["row_id"][i] for i in rows]
    assert [line["user_id"] for line in lines] == [columns["user_id"][i] for i in rows]
    assert [line["score"] for line in lines] == pytest.approx(probe.scores.tolist())
    assert set(task.label.names) < set(lines[0])


def test_bits_are_measured_a_label_at_a_time_without_the_missing_ones() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 3)), rng.integers(0, 2, (200, 3)).astype(float)
    labels[rng.random((200, 3)) < 0.2] = np.nan
    labels[:, 2] = 1.0
    found = label_metrics("bits", ("a", "b", "c"), logits, logits.mean(1), labels, np.arange(200), np.arange(200))
    aucs = []
    for column, name in ((0, "a"), (1, "b")):
        at = ~np.isnan(labels[:, column])
        aucs.append(roc_auc_score(labels[at, column], logits[at, column]))
        assert found[f"auc_{name}"] == pytest.approx(aucs[-1])
    assert found["auc_c"] is None
    assert found.reasons["auc_c"] == "the label is 1 in all 200 rows"
    assert found["auc"] == pytest.approx(np.mean(aucs))
    at = ~np.isnan(labels)
    assert found["label_accuracy"] == pytest.approx(((logits > 0) == (labels > 0.5))[at].mean())


def test_within_users_only_pairs_of_one_user_count() -> None:
    # user 0: right, right; user 1: wrong; user 2 has one class
    scores, labels = np.array([0.9, 0.1, 0.2, 0.3, 0.4, 0.5]), np.array([1, 0, 0, 1, 0, 1])
    users, logits = np.array([0, 0, 0, 1, 1, 2]), np.zeros((6, 2))
    found = label_metrics("class", ("x",), logits, scores, labels, users, np.arange(6))
    assert found["auc_within_users"] == pytest.approx(2 / 3)
    assert found["auc_within_prompts"] is None
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores))


def test_forwards_keep_the_order_of_rows_with_different_numbers_of_replies(models) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(15):
        prompt = rng.integers(5, 100, rng.integers(2, 20)).tolist()
        rows.append(share_prefix([prompt + rng.integers(5, 100, 3).tolist() for _ in range(rng.integers(1, 4))]))
    found = Forwards(rows, models[2], 0, batch_tokens=60).logits(models[2], CPU)
    with torch.no_grad():
        wanted = torch.cat([models[2](**models[2].collate([row], 0)) for row in rows])
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=5e-5)


def test_the_ranking_probe_finds_the_best_reply_and_gives_a_tie_no_credit(models, monkeypatch) -> None:
    groups = [(2, 1), (1, 2, 3), (1, 2), (1, 1, 2)]
    examples = [
        RankedExample(share_prefix([[5, 6, 7 + i] for i in range(len(ranks))]), ranks, n)
        for n, ranks in enumerate(groups)
    ]
    probe = RankingProbe(examples, models[1], 0, 100)
    scores = [0.0, 1.0, 0.0, 1.0, -1.0, 3.0, 3.0, 0.0, 1.0, 0.5]
    monkeypatch.setattr(probe.forwards, "logits", lambda *_: torch.tensor(scores, dtype=torch.float64)[:, None])
    assert probe.measure(models[1], CPU)["top_1_acc"] == 0.5
    assert [line["scores"] for line in probe.lines()] == [scores[:2], scores[2:5], scores[5:7], scores[7:]]


def chat(i: int, reply: str) -> str:
    return f"User: question {i}\nBot: {reply}"


def write_sets(folder: Path) -> dict[str, list[str]]:
    """A file for each evaluation; the texts of each."""
    rng = np.random.default_rng(0)
    texts = [chat(i // 3, f"reply {i} {'soup ' * (i % 5)}") for i in range(30)]
    flag = lambda: rng.integers(0, 2, 30).tolist()  # noqa: E731
    ids, order = [i // 3 for i in range(30)], [1, 2, 3] * 10
    files = {
        "retry_eval": {"retried": flag(), "end_of_conversation": flag(), "user_id": [i % 4 for i in range(30)]},
        "retention_eval": {"d3": flag(), "d7": flag(), "d30": [None, *flag()[1:]], "is_new_user": flag()},
        "ranking_eval": {"id": ids, RANK: order},
        "reject_eval": {
            "id": ids,
            "label": [int(rank == 3) for rank in order],
            "is_nsfw": [i % 2 for i in ids],
            "new_user": [i % 2 for i in ids],
        },
        "gold_eval": {"utility": rng.normal(size=30).tolist(), "user_id": [i % 4 for i in range(30)]},
    }
    for name, columns in files.items():
        pq.write_table(pa.table({"text": texts, **columns}), folder / f"{name}.parquet")
    return dict.fromkeys(files, texts)


@pytest.mark.parametrize("evaluation", [RETRY, RETENTION, RANKING, REJECT, GOLD], ids=lambda e: e.name)
def test_a_transcript_probe_is_the_measure_of_the_scorers_scores(evaluation, models, tokenizer, tmp_path) -> None:
    texts = write_sets(tmp_path)[evaluation.file]
    path = tmp_path / f"{evaluation.file}.parquet"
    rows = read_evaluation(path, evaluation, 1000, tokenizer, 128)
    probe = TranscriptProbe(rows, models[6], tokenizer.pad_token_id, 200, "mean_sigmoid")
    found = probe.measure(models[6], CPU)
    scorer = HFScorer(models[6], tokenizer, "mean_sigmoid", 128)
    chats = [Conversation((Turn("user", text.splitlines()[0][6:]),)) for text in texts]
    scores = scorer.score(chats, [text.splitlines()[1][5:].strip() for text in texts]).double().numpy()
    table = pq.read_table(path)
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "text"}
    columns["prompt_id"] = np.arange(30) // 3
    wanted = evaluation.measure(scores, columns)
    assert found == pytest.approx({name: value for name, value in wanted.items() if value is not None})
    assert set(evaluation.shown) <= set(found)
    assert all(name in probe.report.undefined for name, value in wanted.items() if value is None)


def test_only_the_first_rows_are_read_and_groups_stay_whole(tokenizer, tmp_path: Path) -> None:
    write_sets(tmp_path)
    assert len(read_evaluation(tmp_path / "retry_eval.parquet", RETRY, 10, tokenizer, 128).replies) == 10
    rows = read_evaluation(tmp_path / "ranking_eval.parquet", RANKING, 10, tokenizer, 128)
    assert rows.columns["id"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_rows_that_end_without_a_reply_are_left_out_and_counted(models, tokenizer, tmp_path: Path) -> None:
    texts = [chat(0, "one"), "User: nobody answers", None, chat(1, "soup " * 100), chat(2, "two")]
    table = pa.table({"text": texts, "utility": [1.0, 2.0, 3.0, 4.0, 5.0]})
    pq.write_table(table, tmp_path / "gold_eval.parquet")
    rows = read_evaluation(tmp_path / "gold_eval.parquet", GOLD, 100, tokenizer, 64)
    assert rows.columns["utility"].tolist() == [1.0, 5.0]
    probe = TranscriptProbe(rows, models[1], tokenizer.pad_token_id, 100, "logit")
    probe.measure(models[1], CPU)
    assert probe.report.undefined["rows"].startswith("3 of 5 rows left out")


def test_a_set_that_cannot_be_measured_is_refused_before_training(tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "retry_eval.jsonl"
    path.write_text('{"text": "User: a\\nBot: b", "retried": 2, "end_of_conversation": 0}\n')
    with pytest.raises(
        InputError,
        match=r"column retried of .*retry_eval.jsonl has no value that can be used: line 1 holds 2; needed: 0, 1",
    ):
        read_evaluation(path, RETRY, 10, tokenizer, 64)
    path.write_text('{"text": "User: a\\nBot: b", "retry": 1, "end_of_conversation": 0}\n')
    with pytest.raises(InputError, match=r"lacks the column\(s\) retried; .*is retry meant to be retried"):
        read_evaluation(path, RETRY, 10, tokenizer, 64)
    path.write_text('{"text": "User: a", "retried": 1, "end_of_conversation": 0}\n')
    with pytest.raises(
        InputError, match=r"has no usable row: 1 of 1 rows rejected: 1 without a reply .field text.; needed"
    ):
        read_evaluation(path, RETRY, 10, tokenizer, 64)

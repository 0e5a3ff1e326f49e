"""Logs of users as a task: a scorer learns what users do after a reply, and is evaluated on other users."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lmgym.config import ColumnConfig
from lmgym.data.column_kinds import ID, NUMBER
from lmgym.data.columns import read_columns, require_columns
from lmgym.data.splitting import AUTO, PROMPT
from lmgym.data.task_data import TaskData, check_sides, length_notes, sample_rows
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError, one_line, shown
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.training.probes import Report
from reward_models.config import RewardModelConfig
from reward_models.logs import (
    LogRows,
    id_array,
    limit_and_split,
    limit_users,
    mix_log,
    read_log,
    refuse_one_class,
    shared_users,
    tokenize_log,
)
from reward_models.metrics.evaluations import GOLD, Evaluation, find_file
from reward_models.metrics.figures import Metrics
from reward_models.metrics.label_metrics import label_metrics
from reward_models.metrics.labels import Label
from reward_models.metrics.outcomes import gold_correlation
from reward_models.objectives import Criterion, Labelled, LabelledExample
from reward_models.probes import Forwards, report_of, scores_of


def refuse_named_columns(columns: ColumnConfig) -> None:
    """Raises InputError for flags that name columns: those of logs have fixed names."""
    if columns.named or columns.reply_format != "auto":
        flag = next((flag for flag, _ in columns.named.values()), "reply_format")
        raise InputError(f"--{flag} is not read of behaviour logs; needed: the columns of docs/behaviour_logs.md")


@dataclass(frozen=True)
class BehaviourTask:
    """Replies with what their users did as labels."""

    label: Label
    criterion: Criterion
    evaluations: tuple[Evaluation, ...] = (GOLD,)

    @property
    def loss(self) -> str:
        """The criterion and what it is of."""
        return f"{self.criterion.name} of {', '.join(self.label.names)}"

    @property
    def outputs(self) -> int:
        """2 for classes, else one per label."""
        return 2 if self.criterion.kind == "class" else len(self.label.names)

    @property
    def reduce(self) -> Reduce:
        """The criterion's."""
        return self.criterion.reduce

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Logs read, validated, labelled, split by user and tokenised."""
        settings, seed, form = config.data, config.optimizer.split_seed, config.columns.prompt_format
        refuse_named_columns(config.columns)
        if settings.split_by not in (AUTO, PROMPT, "user_id"):
            found = f"--split_by {shown(settings.split_by)} of behaviour logs"
            raise InputError(f"{found}; needed: leave it out: logs are split by user (user_id)")
        whole = read_log(settings.dataset, settings.dataset_split, self.label, settings.max_rows, form)
        log, rejections = mix_log(whole, settings, seed), list(whole.rejections)
        if settings.eval_dataset:
            held_out = read_log(settings.eval_dataset, "test", self.label, prompt_format=form)
            rejections += held_out.rejections
            read = log.read + held_out.read
            if both := shared_users(log.users, held_out.users):
                sides = f"{one_line(settings.dataset)} and {one_line(settings.eval_dataset)}"
                raise InputError(
                    f"found {both} users on both sides, in {sides}; needed: none, or the evaluation measures what was "
                    "learned of these users; drop --eval_dataset to split by user"
                )
            kept = limit_users(log, config)
            train_rows = kept[sample_rows(len(kept), settings.train_size, seed)]
            eval_rows = np.arange(len(held_out.usable))
            unused = len(log.usable) - len(train_rows)
            notes: list[str] = []
        else:
            held_out, read = log, log.read
            train_rows, eval_rows, unused, notes = limit_and_split(log, config)
        refuse_one_class(log.labels[log.usable[train_rows]], self.label.names)
        digest = hashlib.sha256()
        train, too_long = tokenize_log(log, train_rows, tokenizer, settings.max_length, digest)
        evaluation, too_long_held_out = tokenize_log(held_out, eval_rows, tokenizer, settings.max_length, digest)
        data = TaskData(
            noun="rows",
            train=train,
            evaluation=_with_utility(evaluation, config),
            lengths=train.tokens.lengths,
            replies=1,
            truncated=train.tokens.truncated + evaluation.tokens.truncated,
            shortened=train.tokens.shortened_rows + evaluation.tokens.shortened_rows,
            rejections=(rejected := [*rejections, *too_long, *too_long_held_out]),
            fingerprint=digest.hexdigest(),
            left_out={"unused_rows": unused + len(whole.usable) - len(log.usable)},
            rows=read,
            parts=log.parts,
            notes=[whole.reading, *notes, *length_notes(rejected, len(train) + len(evaluation), settings.max_length)],
        )
        return check_sides(data, log.read, world_size())

    def suffixes(self, example: LabelledExample) -> tuple[str, ...]:
        """The labels of the reply."""
        labels = zip(self.label.names, np.atleast_1d(example.label), strict=True)
        return (", ".join(f"{name} {value:.3g}" for name, value in labels),)

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Labelled:
        """The criterion over batches."""
        return Labelled(model, pad_id, self.criterion)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> "LabelProbe":
        """The loss and simple measures on held-out users."""
        assert isinstance(data.evaluation, LogRows)
        return LabelProbe(data.evaluation, self, model, pad_id, batch_tokens)


def _with_utility(rows: LogRows, config: RewardModelConfig) -> LogRows:
    """Held-out rows with their hidden utility, if the probes' folder has it by row_id only."""
    folder = config.probe_data
    if (
        folder is None
        or rows.row_ids is None
        or find_file(folder, "gold_eval")
        or not (path := find_file(folder, "gold"))
    ):
        return rows
    columns = read_columns(str(path), {"row_id": ID, "utility": NUMBER})
    require_columns(columns, [("row_id",), ("utility",)])
    named = np.flatnonzero(~columns.is_null("row_id"))
    if not len(named):
        return rows
    ids, utility = id_array(columns.table["row_id"].take(named)), columns.numbers("utility")[named]
    wanted = rows.row_ids
    if ids.dtype != wanted.dtype:
        ids, wanted = ids.astype(str), wanted.astype(str)
    order = np.argsort(ids, kind="stable")
    places = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    known = ids[order][places] == wanted
    return replace(rows, utility=np.where(known, utility[order][places], np.nan))


class LabelProbe:
    """Loss and label metrics on held-out users."""

    loss = "loss"

    def __init__(self, rows: LogRows, task: BehaviourTask, model: ScoringModel, pad_id: int, batch_tokens: int) -> None:
        self.rows, self.task = rows, task
        self.forwards = Forwards(rows.tokens, model, pad_id, batch_tokens)
        self.report = Report({}, {})
        self.scores = np.zeros(len(rows))
        self.shown: Mapping[str, str] = {"loss": f"loss ({task.criterion.name})", **SHOWN[task.criterion.kind]}
        if rows.utility is not None:
            self.shown = {**self.shown, **GOLD.shown}

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """The loss and the label metrics, also within users and within prompts."""
        logits = self.forwards.logits(model, device)
        self.scores = scores_of(logits, self.task.reduce)
        labels = torch.from_numpy(self.rows.labels)
        total, count = self.task.criterion.loss(logits.float(), labels)
        metrics = label_metrics(
            self.task.criterion.kind,
            self.task.label.names,
            logits.numpy(),
            self.scores,
            self.rows.labels,
            self.rows.users,
            self.rows.prompts,
        )
        metrics.add("loss", float(total) / int(count))
        if self.rows.utility is not None:
            _add_gold(metrics, self.scores, self.rows)
        self.report = report_of(metrics)
        return self.report.metrics

    def lines(self) -> Iterator[dict[str, Any]]:
        """The score and labels of each row, with its ids."""
        rows = self.rows
        ids = rows.row_ids.tolist() if rows.row_ids is not None else [None] * len(rows)
        names = self.task.label.names
        for i, (row_id, user, score) in enumerate(zip(ids, rows.users.tolist(), self.scores.tolist(), strict=True)):
            labels = np.atleast_1d(rows.labels[i]).tolist()
            known = {n: None if value != value else value for n, value in zip(names, labels, strict=True)}
            yield {"row_id": row_id, "user_id": user, "score": score, **known}


SHOWN: Mapping[str, Mapping[str, str]] = {
    "class": {
        "label_accuracy": "accuracy of labels",
        "majority_accuracy": "accuracy of the majority class",
        "auc": "AUC",
        "auc_within_users": "AUC within users",
    },
    "number": {
        "spearman": "Spearman with the label",
        "spearman_within_users": "Spearman within users",
        "variance": "loss of the mean as prediction",
    },
    "bits": {"label_accuracy": "accuracy of labels, mean over them", "auc": "AUC, mean over the labels"},
}


def _add_gold(metrics: Metrics, scores: np.ndarray, rows: LogRows) -> None:
    assert rows.utility is not None
    known = ~np.isnan(rows.utility)
    lost = f"{(~known).sum()} of {len(known)} rows left out: no utility for their row_id" if not known.all() else ""
    if not known.any():
        metrics.add("gold_spearman", None, lost)
        return
    gold = gold_correlation(scores[known], rows.utility[known], rows.users[known], rows.prompts[known])
    for name, value in gold.items():
        metrics.add(name, value, gold.reasons.get(name, ""), lost)

"""Metrics of logits against labels: accuracy, AUC and correlation, overall and within users and prompts.

Behaviour is mostly a trait of its user: a scorer that only recognises users has a high overall figure and none within.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmgym.statistics import Ratio, auc, share
from reward_models.metrics.figures import Metrics
from reward_models.metrics.labels import MISSING
from reward_models.metrics.outcomes import gold_correlation
from reward_models.metrics.rank_statistics import dense_ranks, group_codes, ordered_pairs, tie_blocks

Floats = NDArray[np.float64]


def label_metrics(
    kind: Literal["class", "number", "bits"],
    names: Sequence[str],
    logits: Floats,
    scores: Floats,
    labels: NDArray,
    users: NDArray,
    prompts: NDArray,
) -> Metrics:
    """Figures of logits[rows, outputs] and reduced scores[rows] against labels[rows] or labels[rows, names].

    class: `label_accuracy`, `majority_accuracy`, `auc` and the latter within users and prompts; number: `spearman`, the
    same within, `variance` of the labels, which is the squared error of their mean; bits: `label_accuracy`, `auc` and
    `auc_NAME` of each label's own logit. Missing labels are left out; a figure that does not exist is None with the
    reason.
    """
    metrics = Metrics()
    if kind == "class":
        present = labels != MISSING
        truth, predicted = labels[present], logits[present].argmax(1)
        metrics.add_estimate("label_accuracy", share(truth == predicted, users[present]), "user")
        metrics.add_sizes(len(truth), users[present])
        metrics.add("majority_accuracy", float(max(truth.mean(), 1 - truth.mean())))
        _add_auc(metrics, "auc", scores[present], truth == 1, users[present])
        for unit, ids in (("user", users[present]), ("prompt", prompts[present])):
            _add_auc_within(metrics, f"auc_within_{unit}s", scores[present], truth == 1, ids, unit)
    elif kind == "number":
        found = gold_correlation(scores, labels, users, prompts)
        for name, value in found.items():
            metrics.add(name.removeprefix("gold_"), value, found.reasons.get(name, ""))
        metrics.add("variance", float(labels.var()))
    else:
        _add_bits(metrics, names, logits, labels, users)
    return metrics


def _add_bits(metrics: Metrics, names: Sequence[str], logits: Floats, labels: Floats, users: NDArray) -> None:
    present = ~np.isnan(labels)
    of_label = np.repeat(users[:, None], len(names), axis=1)[present]
    metrics.add_estimate("label_accuracy", share(((logits > 0) == (labels > 0.5))[present], of_label), "user")
    metrics.add_sizes(int(present.any(1).sum()), of_label)
    for column, name in enumerate(names):
        at = present[:, column]
        _add_auc(metrics, f"auc_{name}", logits[at, column], labels[at, column] > 0.5, users[at])
    found = [value for name in names if (value := metrics[f"auc_{name}"]) is not None]
    lost = f"{len(names) - len(found)} of {len(names)} labels left out: one class" if len(found) < len(names) else ""
    metrics.add("auc", float(np.mean(found)) if found else None, lost)


def _add_auc(metrics: Metrics, name: str, scores: Floats, flag: NDArray[np.bool_], users: NDArray) -> None:
    """AUC over all rows, with its interval over users."""
    found = auc(scores, flag, users)
    reason = f"the label is {int(flag[0])} in all {len(flag)} rows" if len(flag) else "no row has this label"
    metrics.add_estimate(name, found, "user", reason if found.value is None else "")


def _add_auc_within(
    metrics: Metrics, name: str, scores: Floats, flag: NDArray[np.bool_], ids: NDArray, unit: str
) -> None:
    """The share of rightly ordered pairs inside the groups of ids, with its interval over groups."""
    if not len(flag):
        metrics.add(name, None, "no row has this label")
        return
    groups = group_codes("ids", ids)
    right, pairs = ordered_pairs(tie_blocks(dense_ranks(scores), groups), flag, ~flag)
    alone = int((pairs == 0).sum())
    reason = f"{alone} of {len(pairs)} groups left out: no two rows of different labels" if alone else ""
    metrics.add_estimate(name, Ratio(right[pairs > 0], pairs[pairs > 0].astype(float), (0, 1)).estimate, unit, reason)

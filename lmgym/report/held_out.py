"""Panels of a reward model's scores of held-out pairs: reliability, accuracy by margin and by length, distributions."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lmgym.report.charts import Spec, bars, histogram, reliability_diagram
from lmgym.report.panels import Panel
from lmgym.report.run_files import Row, RunFiles, is_number
from lmgym.statistics import Estimate, mean, share

GROUPS, BINS = 5, 10
A_GROUP, A_BIN = 5, 10  # of small sets: about so many examples a bar, and a point of a reliability diagram
NO_LABELS = ("row_id", "user_id", "score", "row", "prompt", "scores", "ranks")


def held_out(run: RunFiles) -> list[Panel]:
    """Panels of scores.jsonl, which has a line per pair, per ranked group or per labelled reply."""
    pairs = [row for row in run.scores if is_number(row.get("chosen")) and is_number(row.get("rejected"))]
    if not pairs:
        return _other_examples(run.scores)
    chosen, rejected = (np.array([row[side] for row in pairs], dtype=float) for side in ("chosen", "rejected"))
    prompts = np.array([str(row.get("prompt", i)) for i, row in enumerate(pairs)])
    right, several = (np.sign(chosen - rejected) + 1) / 2, f"{len(pairs):,} pairs on {len(set(prompts)):,} prompts"
    panels = [
        Panel(
            "reliability",
            "Reliability",
            "A calibrated scorer lies on the dashed diagonal: of the pairs of which it "
            "is 80% sure it gets 80% right. Below the diagonal it is overconfident. Size: number of pairs; "
            f"vertical lines: 95% intervals over prompts. {several}.",
            reliability_diagram(_bins(1 / (1 + np.exp(-np.abs(chosen - rejected))), right, prompts, 0.5)),
        ),
        Panel(
            "accuracy_by_margin",
            "Accuracy by margin",
            "Groups of about equal size by the absolute difference "
            "of the two scores, with 95% intervals over prompts: large margins should be right more often.",
            _by_quantile(np.abs(chosen - rejected), chosen > rejected, prompts),
        ),
    ]
    lengths = [row.get("lengths") for row in pairs]
    if all(isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)) for pair in lengths):
        longer = np.array([a - b for a, b in lengths])  # type: ignore[misc]
        panels.append(
            Panel(
                "accuracy_by_length",
                "Accuracy by difference in length",
                "Tokens of the chosen reply minus those of "
                "the rejected one. A scorer that prefers long replies is right on the right and wrong on the left.",
                _by_quantile(longer, chosen > rejected, prompts),
            )
        )
    chart = histogram({"chosen": chosen.tolist(), "rejected": rejected.tolist()}, "score")
    about = "Scores of the chosen and of the rejected replies: the further apart, the better the scorer separates them."
    return [*panels, Panel("score_distribution", "Distribution of scores", about, chart)]


def _other_examples(rows: Sequence[Row]) -> list[Panel]:
    """Panels of ranked groups or of labelled replies."""
    samples: dict[str, list[float]] = {}
    panels: list[Panel] = []
    labelled = [row for row in rows if is_number(row.get("score"))]
    for row in rows:
        if isinstance(row.get("scores"), list) and isinstance(row.get("ranks"), list):
            for score, rank in zip(row["scores"], row["ranks"], strict=False):
                samples.setdefault(f"rank {rank}", []).append(score)
    if labelled:
        names = [name for name in labelled[0] if name not in NO_LABELS]
        panels = _labelled_reliability(labelled, names)
        for name in names[:1]:
            for row in labelled:
                if is_number(row.get(name)) and row[name] in (0, 1):
                    samples.setdefault(f"{name}: {'yes' if row[name] else 'no'}", []).append(row["score"])
    if not samples:
        return panels
    about = "Scores of held-out replies by what people did: the further apart, the better the scorer separates them."
    chart = histogram({name: samples[name] for name in sorted(samples)[:8]}, "score")
    return [*panels, Panel("score_distribution", "Distribution of scores", about, chart)]


def _labelled_reliability(rows: Sequence[Row], names: Sequence[str]) -> list[Panel]:
    """The mean of a reply's labels against its score, where the score is a probability and labels are 0 or 1."""
    found = [
        (row["score"], labels, str(row.get("user_id", number)))
        for number, row in enumerate(rows)
        if (labels := [row[name] for name in names if is_number(row.get(name))])
    ]
    if not found or not all(0 <= score <= 1 and all(x in (0, 1) for x in labels) for score, labels, _ in found):
        return []
    scores, means = np.array([score for score, _, _ in found]), np.array([np.mean(labels) for _, labels, _ in found])
    users = np.array([user for _, _, user in found])
    points = _bins(scores, means, users, 0.0)
    about = (
        "The score is a probability. On the dashed diagonal, of the replies with a score of .6, 60% of what was asked "
        "happened. Size: number of replies; vertical lines: 95% intervals over users."
    )
    what = ", ".join(names) if len(names) < 4 else "the labels"
    chart = reliability_diagram(points, "score", f"share with {what}", 0.0)
    return [Panel("reliability", "Reliability", about, chart)]


def _bins(
    confidence: NDArray[np.float64], right: NDArray[np.float64], units: NDArray, lowest: float
) -> list[tuple[float, float, int, float | None, float | None]]:
    """(mean confidence, share right, number, ends of its interval) in equal bins over [lowest, 1], without empty ones.

    Few examples are in fewer bins, of about A_BIN each.
    """
    bins = min(BINS, max(1, len(confidence) // A_BIN))
    place = np.minimum((bins * (confidence - lowest) / (1 - lowest)).astype(int), bins - 1)
    points = []
    for at in (place == i for i in np.unique(place)):
        found = mean(right[at], units[at], (0, 1))
        assert found.value is not None
        points.append((float(confidence[at].mean()), found.value, int(at.sum()), found.low, found.high))
    return points


def _by_quantile(values: NDArray[np.float64], right: NDArray[np.bool_], prompts: NDArray) -> Spec:
    """Accuracy by range of values, in groups of about equal size; equal values are in one group."""
    groups = min(GROUPS, max(1, len(values) // A_GROUP))
    edges = np.unique(np.quantile(values, np.linspace(0, 1, groups + 1)))
    labels = [f"{a:.3g} to {b:.3g}" for a, b in pairwise(edges)] or [f"{edges[0]:.3g}"]
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(labels) - 1)
    found = {label: share(right[at], prompts[at]) for i, label in enumerate(labels) if (at := place == i).any()}
    rows = [(label, *_bar(one)) for label, one in found.items()]
    return bars(rows, "accuracy", 0.5, [one.rows for one in found.values()])


def _bar(found: Estimate) -> tuple[float, float | None, float | None]:
    assert found.value is not None
    return found.value, found.low, found.high

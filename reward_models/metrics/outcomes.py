"""What scores say about behaviour: retries, coming back, people's rankings and rejections, and a true utility.

Design decisions:
- Scores are higher-is-better, one entry a row, gathered from all ranks: nothing here is a mean of batch means.
- A figure that the rows do not define is None and has a reason with its counts; so has what was left out of a figure.
- Behaviour is mostly a trait of the user: figures within users and within prompts stand beside the overall ones, so
  that a scorer that only recognises users is seen.
- A scorer that must pick and ties has picked nothing: wrong. In an AUC a tie is half right, as usual.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reward_models.metrics.rank_statistics import (
    Floats,
    Ints,
    TieBlocks,
    block_ranks,
    dense_ranks,
    finite_column,
    group_codes,
    group_kendall,
    group_ranks,
    group_spearman,
    ordered_pairs,
    pearson,
    spearman,
    tie_blocks,
)

Mask = NDArray[np.bool_]

SMALLEST_CORRELATED_GROUP = 3  # two rows correlate at -1 or 1 whatever they hold


class Metrics(dict[str, float | None]):
    """Figures by name, finite or None; `reasons` says why one is None and what was left out of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def add(self, name: str, value: float | None, *reasons: str) -> None:
        """Records a figure; empty reasons are skipped, and None needs one that is not."""
        assert value is not None or any(reasons), name
        assert value is None or np.isfinite(value), (name, value)
        self[name] = None if value is None else float(value)
        if any(reasons):
            self.reasons[name] = "; ".join(filter(None, reasons))


def retry_continue(
    scores: ArrayLike,
    retried: ArrayLike,
    end_of_conversation: ArrayLike,
    users: ArrayLike | None = None,
    prompts: ArrayLike | None = None,
) -> Metrics:
    """How low scores[rows] are where the user retried the reply, and where the conversation ended after it.

    Both flags are 0 or 1. `retry_auc` and `end_of_convo_auc` are the AUC of -scores, `retry_spearman` and
    `end_of_convo_spearman` its Spearman correlation with the flag: a good scorer has all four high. Where users[rows]
    or prompts[rows] are given, `retry_auc_within_users` and the like are the share of (flagged, unflagged) pairs
    inside a group that are ordered rightly, ties half, over the pairs of all groups. A constant scorer has AUC 0.5
    and no correlation. Raises ValueError for no rows, different lengths, non-finite scores, other flags, null ids.
    """
    badness = -finite_column("scores", scores)
    flags = {
        "retried": _flags("retried", retried),
        "end_of_conversation": _flags("end_of_conversation", end_of_conversation),
    }
    ids = _given_ids(users=users, prompts=prompts)
    _check_lengths(scores=badness, **flags, **ids)
    overall, within = _blocks(badness, ids)
    metrics = Metrics()
    for name, column in (("retry", "retried"), ("end_of_convo", "end_of_conversation")):
        flag = flags[column]
        _add_auc(metrics, f"{name}_auc", overall, column, flag, "rows")
        _add_within_aucs(metrics, f"{name}_auc", within, flag)
        constant = _constant(scores=badness, **{column: flag})
        metrics.add(f"{name}_spearman", None if constant else pearson(block_ranks(overall), flag), constant)
    return metrics


def retention(
    scores: ArrayLike,
    d3: ArrayLike,
    d7: ArrayLike,
    d30: ArrayLike,
    is_new_user: ArrayLike,
    users: ArrayLike | None = None,
    prompts: ArrayLike | None = None,
) -> Metrics:
    """How high scores[rows] are where the user came back after 3, 7 and 30 days.

    d3, d7, d30: 0, 1, or null (None, NaN) for unknown; unknown rows are left out of that flag and counted.
    `d3_auc` is over all rows, `d3_auc_new` and `d3_auc_old` over those of new and of old users (is_new_user 1 and 0),
    `d3_auc_within_users` and `d3_auc_within_prompts`, where ids are given, over the (came back, did not) pairs of a
    group; d7 and d30 alike. Raises ValueError for no rows, different lengths, non-finite scores, other flags, null ids.
    """
    goodness = finite_column("scores", scores)
    given = {"d3": d3, "d7": d7, "d30": d30}
    flags = {name: _flags(name, flag, nullable=True) for name, flag in given.items()}
    new = _flags("is_new_user", is_new_user)
    ids = _given_ids(users=users, prompts=prompts)
    _check_lengths(scores=goodness, is_new_user=new, **flags, **ids)
    overall, within = _blocks(goodness, ids)
    metrics = Metrics()
    for name, flag in flags.items():
        _add_auc(metrics, f"{name}_auc", overall, name, flag, "rows")
        _add_auc(metrics, f"{name}_auc_new", overall, name, flag, "rows of new users", new == 1)
        _add_auc(metrics, f"{name}_auc_old", overall, name, flag, "rows of old users", new == 0)
        _add_within_aucs(metrics, f"{name}_auc", within, flag)
    return metrics


def human_ranking(scores: ArrayLike, rank: ArrayLike, id: ArrayLike) -> Metrics:
    """How scores[rows] rank the replies of each `id` beside people's rank[rows], where lower is better.

    `spearman` pools the rows of all groups: the rank of a score within its group (best = 1, ties at their mean)
    against people's rank as given. `kendall_tau` is tau-b (Kendall 1945) and `top_2_acc` whether the two best by score
    are, as a set, the two best by people; both are means over groups, weighted by rows.
    Groups of one reply and those whose human ranks are all tied say nothing of agreement and are left out of all
    three. tau-b also leaves out groups whose scores are all tied, where it is 0/0. top_2_acc leaves out groups where
    people tied over the second place; scores tied over it pick no two replies and are wrong. A group of two replies
    is always right there and counts, as it did in Chai's evaluation; the reason says how many there are.
    Raises ValueError for no rows, different lengths, non-finite scores or ranks, null ids.
    """
    column, human = finite_column("scores", scores), finite_column("rank", rank)
    groups = group_codes("id", id)
    _check_lengths(scores=column, rank=human, id=groups)
    sizes, predicted, people = np.bincount(groups), group_ranks(-column, groups), group_ranks(human, groups)
    single, undecided = sizes == 1, (sizes > 1) & _all_tied(people, groups)
    ranked = ~single & ~undecided
    left_out = _left_out(len(sizes), "groups", {"one reply": single, "all human ranks tied": undecided})
    metrics = Metrics()
    _add_pooled_spearman(metrics, predicted, human, groups, ranked, left_out)
    tau, silent = group_kendall(-column, human, groups), ranked & _all_tied(predicted, groups)
    excluded = _left_out(len(sizes), "groups", {"all scores tied": silent})
    _add_group_mean(metrics, "kendall_tau", tau, sizes, ranked & ~silent, left_out, excluded)
    _add_top_2(metrics, predicted, people, groups, ranked, left_out)
    return metrics


def reject_worst(
    scores: ArrayLike, label: ArrayLike, id: ArrayLike, is_nsfw: ArrayLike, new_user: ArrayLike
) -> Metrics:
    """How often the lowest of scores[rows] of an `id` belongs to the one reply with label 1, that people rejected.

    A group is right if the reply with the lowest score is the labelled one; a tie for the lowest is wrong.
    `overall_acc` is the mean over rows of their group being right, `nsfw_acc`, `sfw_acc`, `new_user_acc` and
    `old_user_acc` those over the rows with that flag. Groups of one reply, always right, and those without exactly
    one labelled reply are left out and counted. Labels and flags are 0 or 1.
    Raises ValueError for no rows, different lengths, non-finite scores, other labels and flags, null ids.
    """
    column, groups = finite_column("scores", scores), group_codes("id", id)
    given = {"label": label, "is_nsfw": is_nsfw, "new_user": new_user}
    flags = {name: _flags(name, flag) for name, flag in given.items()}
    _check_lengths(scores=column, id=groups, **flags)
    labelled, sizes = np.bincount(groups, flags["label"]), np.bincount(groups)
    single, unclear = sizes == 1, (sizes > 1) & (labelled != 1)
    left_out = _left_out(len(sizes), "groups", {"one reply": single, "not exactly one labelled reply": unclear})
    # the rank is a mean over ties: exactly 1 only where nothing ties with the lowest
    right = np.bincount(groups, (group_ranks(column, groups) == 1) & (flags["label"] == 1)) == 1
    kept = ~(single | unclear)[groups]
    metrics = Metrics()
    parts = {
        "overall_acc": ("", kept),
        "nsfw_acc": (" of nsfw replies", kept & (flags["is_nsfw"] == 1)),
        "sfw_acc": (" of sfw replies", kept & (flags["is_nsfw"] == 0)),
        "new_user_acc": (" of new users", kept & (flags["new_user"] == 1)),
        "old_user_acc": (" of old users", kept & (flags["new_user"] == 0)),
    }
    for name, (whose, rows) in parts.items():
        nothing = "" if rows.any() else f"no rows{whose} among the {kept.sum()} that count"
        metrics.add(name, None if nothing else right[groups][rows].mean(), nothing, left_out)
    return metrics


def gold_correlation(
    scores: ArrayLike, utility: ArrayLike, users: ArrayLike | None = None, prompts: ArrayLike | None = None
) -> Metrics:
    """Spearman's correlation of scores[rows] with a true utility[rows], which only a simulated world knows.

    `gold_spearman` is over all rows; `gold_spearman_within_users` and `gold_spearman_within_prompts`, where ids are
    given, are the mean of the groups' correlations weighted by rows. Groups of fewer than 3 rows and those whose
    scores or utilities are all tied are left out and counted.
    Raises ValueError for no rows, different lengths, non-finite scores or utilities, null ids.
    """
    column, gold = finite_column("scores", scores), finite_column("utility", utility)
    ids = _given_ids(users=users, prompts=prompts)
    _check_lengths(scores=column, utility=gold, **ids)
    metrics = Metrics()
    constant = _constant(scores=column, utility=gold)
    metrics.add("gold_spearman", None if constant else spearman(column, gold), constant)
    for unit, groups in ids.items():
        sizes, correlations = np.bincount(groups), group_spearman(column, gold, groups)
        small = sizes < SMALLEST_CORRELATED_GROUP
        tied = ~small & np.isnan(correlations)
        why = {f"fewer than {SMALLEST_CORRELATED_GROUP} rows": small, "all scores or all utilities tied": tied}
        left_out = _left_out(len(sizes), unit, why)
        _add_group_mean(metrics, f"gold_spearman_within_{unit}", correlations, sizes, ~small & ~tied, left_out)
    return metrics


def _flags(name: str, values: ArrayLike, nullable: bool = False) -> Floats:
    flags = np.asarray(values, dtype=np.float64)  # None becomes NaN
    bad = np.flatnonzero(~(np.isin(flags, (0, 1)) | (nullable & np.isnan(flags))))
    if len(bad):
        raise ValueError(
            f"{name} holds {len(bad)} of {flags.size} values that are no flag, the first {flags.flat[bad[0]]:g} at "
            f"index {bad[0]}; needed: 0 or 1{' or null' if nullable else ''}; correct or drop those rows"
        )
    return flags


def _given_ids(**ids: ArrayLike | None) -> dict[str, Ints]:
    return {name: group_codes(name, values) for name, values in ids.items() if values is not None}


def _check_lengths(**columns: NDArray) -> None:
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or columns["scores"].ndim != 1:
        raise ValueError(f"arrays of shapes {shapes}; needed: one entry a row in each; gather them all alike")
    if not len(columns["scores"]):
        raise ValueError("0 rows; needed at least 1; check the file and the filter of the evaluation rows")


def _constant(**columns: Floats) -> str:
    """Which of the columns have one value only, "" if none."""
    names = [name for name, values in columns.items() if values.max() == values.min()]
    return f"{' and '.join(names)} the same in all {len(columns['scores'])} rows" if names else ""


def _blocks(values: Floats, ids: Mapping[str, Ints]) -> tuple[TieBlocks, dict[str, TieBlocks]]:
    """Tie blocks of values over all rows, and within the groups of each kind of id."""
    places = dense_ranks(values)
    overall = tie_blocks(places, np.zeros(len(values), dtype=np.int64))
    return overall, {unit: tie_blocks(places, groups) for unit, groups in ids.items()}


def _add_auc(
    metrics: Metrics, name: str, blocks: TieBlocks, column: str, flag: Floats, rows: str, where: Mask | None = None
) -> None:
    """The AUC over the rows `where`, which `rows` names; `blocks` are those of one group of all rows."""
    of = np.ones(len(flag), dtype=bool) if where is None else where
    positive, negative, unknown = of & (flag == 1), of & (flag == 0), of & np.isnan(flag)
    (right,), (pairs,) = ordered_pairs(blocks, positive, negative)
    left_out = f"{unknown.sum()} of {of.sum()} {rows} left out: {column} unknown" if unknown.any() else ""
    nothing = "" if of.any() else f"no {rows}"
    if not pairs and (positive | negative).any():
        known = "known " if left_out else ""
        nothing = f"{column} is {int(positive.any())} in all {(positive | negative).sum()} {known}{rows}"
    metrics.add(name, right / pairs if pairs else None, nothing, left_out)


def _add_within_aucs(metrics: Metrics, name: str, within: Mapping[str, TieBlocks], flag: Floats) -> None:
    for unit, blocks in within.items():
        right, pairs = ordered_pairs(blocks, flag == 1, flag == 0)
        left_out = _left_out(len(pairs), unit, {"no two rows of different flags": pairs == 0})
        metrics.add(f"{name}_within_{unit}", right.sum() / pairs.sum() if pairs.any() else None, left_out)


def _left_out(groups: int, unit: str, reasons: Mapping[str, Mask]) -> str:
    """How many groups each reason leaves out, "" if none."""
    counts = {why: int(where.sum()) for why, where in reasons.items()}
    return "; ".join(f"{count} of {groups} {unit} left out: {why}" for why, count in counts.items() if count)


def _all_tied(ranks: Floats, groups: Ints) -> Mask:
    """Groups whose average ranks are all equal: those of distinct values do spread."""
    middle = (np.bincount(groups) + 1) / 2
    return np.bincount(groups, np.abs(ranks - middle[groups])) == 0


def _add_group_mean(metrics: Metrics, name: str, values: Floats | Mask, sizes: Ints, kept: Mask, *reasons: str) -> None:
    metrics.add(name, np.average(values[kept], weights=sizes[kept]) if kept.any() else None, *reasons)


def _add_pooled_spearman(
    metrics: Metrics, predicted: Floats, human: Floats, groups: Ints, ranked: Mask, left_out: str
) -> None:
    rows = ranked[groups]
    why = ""
    # ranks of constant scores differ between groups of two and of three, and would correlate with human ranks
    if rows.any() and _all_tied(predicted, groups)[ranked].all():
        why = f"all scores tied in each of the {ranked.sum()} groups that count"
    defined = rows.any() and not why
    metrics.add("spearman", spearman(predicted[rows], human[rows]) if defined else None, why, left_out)


def _add_top_2(metrics: Metrics, predicted: Floats, people: Floats, groups: Ints, ranked: Mask, left_out: str) -> None:
    # average ranks up to 2 belong to exactly two replies unless there is a tie over the second place
    ours, theirs = predicted <= 2, people <= 2
    two_of_ours, two_of_theirs, shared = (np.bincount(groups, top) == 2 for top in (ours, theirs, ours & theirs))
    sizes = np.bincount(groups)
    excluded = _left_out(len(sizes), "groups", {"human ranks tied over the second place": ranked & ~two_of_theirs})
    pairs = ranked & (sizes == 2)
    trivial = f"{pairs.sum()} of {len(sizes)} groups have two replies: always right" if pairs.any() else ""
    right, kept = two_of_ours & shared, ranked & two_of_theirs
    _add_group_mean(metrics, "top_2_acc", right, sizes, kept, left_out, excluded, trivial)

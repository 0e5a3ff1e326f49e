"""Agreement of scores with users' behaviour (retries, the end of a conversation, coming back) and a true utility.

Design decisions:
- Scores are higher-is-better, one entry a row, gathered from all ranks: nothing here is a mean of batch means.
- A figure that the rows do not define is None and has a reason with its counts; so has what was left out of a figure.
- Behaviour is mostly a trait of the user: figures within users and within prompts show whether a scorer only
  recognises users.
- In an AUC a tie is half right, as usual.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from lmgym.statistics import Ratio, auc
from reward_models.metrics.figures import Mask, Metrics, add_group_mean, check_lengths, flag_column, groups_left_out
from reward_models.metrics.rank_statistics import (
    Floats,
    Ints,
    TieBlocks,
    block_ranks,
    dense_ranks,
    finite_column,
    group_codes,
    group_spearman,
    ordered_pairs,
    pearson,
    spearman,
    tie_blocks,
)

SMALLEST_CORRELATED_GROUP = 3  # two rows correlate at -1 or 1 whatever they hold


def retry_continue(
    scores: ArrayLike,
    retried: ArrayLike,
    end_of_conversation: ArrayLike,
    users: ArrayLike | None = None,
    prompts: ArrayLike | None = None,
) -> Metrics:
    """Agreement of low scores[rows] with retries of the reply and with the end of the conversation after it.

    Both flags are 0 or 1. `retry_auc` and `end_of_convo_auc` are the AUC of -scores, `retry_spearman` and
    `end_of_convo_spearman` its Spearman correlation with the flag: a good scorer has all four high. Where users[rows]
    or prompts[rows] are given, `retry_auc_within_users` and the like are the share of (flagged, unflagged) pairs
    inside a group that are ordered rightly, ties half, over the pairs of all groups. A constant scorer has AUC 0.5
    and no correlation. Raises ValueError for no rows, different lengths, non-finite scores, other flags, null ids.
    """
    badness = -finite_column("scores", scores)
    flags = {
        "retried": flag_column("retried", retried),
        "end_of_conversation": flag_column("end_of_conversation", end_of_conversation),
    }
    ids = _given_ids(users=users, prompts=prompts)
    check_lengths(scores=badness, **flags, **ids)
    overall, within = _blocks(badness, ids)
    metrics = Metrics()
    metrics.add_sizes(len(badness), ids.get("users"))
    for name, column in (("retry", "retried"), ("end_of_convo", "end_of_conversation")):
        flag = flags[column]
        _add_auc(metrics, f"{name}_auc", badness, ids.get("users"), column, flag, "rows")
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
    """Agreement of high scores[rows] with users coming back after 3, 7 and 30 days.

    d3, d7, d30: 0, 1, or null (None, NaN) for unknown; unknown rows are left out of that flag and counted.
    `d3_auc` is over all rows, `d3_auc_new` and `d3_auc_old` over those of new and of old users (is_new_user 1 and 0),
    `d3_auc_within_users` and `d3_auc_within_prompts`, where ids are given, over the (came back, did not) pairs of a
    group; also for d7 and d30. Raises ValueError for no rows, different lengths, non-finite scores, other flags and
    null ids.
    """
    goodness = finite_column("scores", scores)
    given = {"d3": d3, "d7": d7, "d30": d30}
    flags = {name: flag_column(name, flag, nullable=True) for name, flag in given.items()}
    new = flag_column("is_new_user", is_new_user)
    ids = _given_ids(users=users, prompts=prompts)
    check_lengths(scores=goodness, is_new_user=new, **flags, **ids)
    _, within = _blocks(goodness, ids)
    metrics, scored = Metrics(), (goodness, ids.get("users"))
    metrics.add_sizes(len(goodness), ids.get("users"))
    for name, flag in flags.items():
        _add_auc(metrics, f"{name}_auc", *scored, name, flag, "rows")
        _add_auc(metrics, f"{name}_auc_new", *scored, name, flag, "rows of new users", new == 1)
        _add_auc(metrics, f"{name}_auc_old", *scored, name, flag, "rows of old users", new == 0)
        _add_within_aucs(metrics, f"{name}_auc", within, flag)
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
    check_lengths(scores=column, utility=gold, **ids)
    metrics = Metrics()
    constant = _constant(scores=column, utility=gold)
    metrics.add("gold_spearman", None if constant else spearman(column, gold), constant)
    for unit, groups in ids.items():
        sizes, correlations = np.bincount(groups), group_spearman(column, gold, groups)
        small = sizes < SMALLEST_CORRELATED_GROUP
        tied = ~small & np.isnan(correlations)
        why = {f"fewer than {SMALLEST_CORRELATED_GROUP} rows": small, "all scores or all utilities tied": tied}
        left_out = groups_left_out(len(sizes), unit, why)
        add_group_mean(metrics, f"gold_spearman_within_{unit}", correlations, sizes, ~small & ~tied, left_out)
    return metrics


def _given_ids(**ids: ArrayLike | None) -> dict[str, Ints]:
    return {name: group_codes(name, values) for name, values in ids.items() if values is not None}


def _constant(**columns: Floats) -> str:
    """Columns with one value only, in words; empty if there are none."""
    names = [name for name, values in columns.items() if values.max() == values.min()]
    return f"{' and '.join(names)} the same in all {len(columns['scores'])} rows" if names else ""


def _blocks(values: Floats, ids: Mapping[str, Ints]) -> tuple[TieBlocks, dict[str, TieBlocks]]:
    """Tie blocks of values over all rows, and within the groups of each kind of id."""
    places = dense_ranks(values)
    overall = tie_blocks(places, np.zeros(len(values), dtype=np.int64))
    return overall, {unit: tie_blocks(places, groups) for unit, groups in ids.items()}


def _add_auc(
    metrics: Metrics,
    name: str,
    values: Floats,
    users: Ints | None,
    column: str,
    flag: Floats,
    rows: str,
    where: Mask | None = None,
) -> None:
    """The AUC over the rows `where`, which `rows` names; its interval is over users, or over rows if they are None."""
    of = np.ones(len(flag), dtype=bool) if where is None else where
    positive, negative, unknown = of & (flag == 1), of & (flag == 0), of & np.isnan(flag)
    known_rows = positive | negative
    found = auc(values[known_rows], flag[known_rows] == 1, None if users is None else users[known_rows])
    left_out = f"{unknown.sum()} of {of.sum()} {rows} left out: {column} unknown" if unknown.any() else ""
    nothing = "" if of.any() else f"no {rows}"
    if found.value is None and known_rows.any():
        known = "known " if left_out else ""
        nothing = f"{column} is {int(positive.any())} in all {known_rows.sum()} {known}{rows}"
    metrics.add_estimate(name, found, "row" if users is None else "user", nothing, left_out)


def _add_within_aucs(metrics: Metrics, name: str, within: Mapping[str, TieBlocks], flag: Floats) -> None:
    for unit, blocks in within.items():
        right, pairs = ordered_pairs(blocks, flag == 1, flag == 0)
        left_out = groups_left_out(len(pairs), unit, {"no two rows of different flags": pairs == 0})
        found = Ratio(right[pairs > 0], pairs[pairs > 0].astype(np.float64), (0, 1)).estimate
        metrics.add_estimate(f"{name}_within_{unit}", found, unit.removesuffix("s"), left_out)

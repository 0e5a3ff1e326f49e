"""Agreement of scores with people's rankings of the replies to one prompt, and with their rejections.

Scores that tie for a pick have picked nothing: wrong.
"""

import numpy as np
from numpy.typing import ArrayLike

from reward_models.metrics.figures import Mask, Metrics, add_group_mean, check_lengths, flag_column, groups_left_out
from reward_models.metrics.rank_statistics import (
    Floats,
    Ints,
    finite_column,
    group_codes,
    group_kendall,
    group_ranks,
    spearman,
)


def human_ranking(scores: ArrayLike, rank: ArrayLike, id: ArrayLike) -> Metrics:
    """Agreement of scores[rows] with people's rank[rows] of the replies of each `id`, where a lower rank is better.

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
    check_lengths(scores=column, rank=human, id=groups)
    sizes, predicted, people = np.bincount(groups), group_ranks(-column, groups), group_ranks(human, groups)
    single, undecided = sizes == 1, (sizes > 1) & _all_tied(people, groups)
    ranked = ~single & ~undecided
    left_out = groups_left_out(len(sizes), "groups", {"one reply": single, "all human ranks tied": undecided})
    metrics = Metrics()
    _add_pooled_spearman(metrics, predicted, human, groups, ranked, left_out)
    tau, silent = group_kendall(-column, human, groups), ranked & _all_tied(predicted, groups)
    excluded = groups_left_out(len(sizes), "groups", {"all scores tied": silent})
    add_group_mean(metrics, "kendall_tau", tau, sizes, ranked & ~silent, left_out, excluded)
    _add_top_2(metrics, predicted, people, groups, ranked, left_out)
    return metrics


def reject_worst(
    scores: ArrayLike, label: ArrayLike, id: ArrayLike, is_nsfw: ArrayLike, new_user: ArrayLike
) -> Metrics:
    """Accuracy of finding the one reply of each `id` with label 1, that people rejected, by the lowest of scores[rows].

    A group is right if the reply with the lowest score is the labelled one; a tie for the lowest is wrong.
    `overall_acc` is the mean over rows of their group being right, `nsfw_acc`, `sfw_acc`, `new_user_acc` and
    `old_user_acc` those over the rows with that flag. Groups of one reply, always right, and those without exactly
    one labelled reply are left out and counted. Labels and flags are 0 or 1.
    Raises ValueError for no rows, different lengths, non-finite scores, other labels and flags, null ids.
    """
    column, groups = finite_column("scores", scores), group_codes("id", id)
    given = {"label": label, "is_nsfw": is_nsfw, "new_user": new_user}
    flags = {name: flag_column(name, flag) for name, flag in given.items()}
    check_lengths(scores=column, id=groups, **flags)
    labelled, sizes = np.bincount(groups, flags["label"]), np.bincount(groups)
    single, unclear = sizes == 1, (sizes > 1) & (labelled != 1)
    left_out = groups_left_out(len(sizes), "groups", {"one reply": single, "not exactly one labelled reply": unclear})
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
    for name, (subset, rows) in parts.items():
        nothing = "" if rows.any() else f"no rows{subset} among the {kept.sum()} that count"
        metrics.add(name, None if nothing else right[groups][rows].mean(), nothing, left_out)
    return metrics


def _all_tied(ranks: Floats, groups: Ints) -> Mask:
    """Groups whose average ranks are all equal: those of distinct values do spread."""
    middle = (np.bincount(groups) + 1) / 2
    return np.bincount(groups, np.abs(ranks - middle[groups])) == 0


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
    excluded = groups_left_out(
        len(sizes), "groups", {"human ranks tied over the second place": ranked & ~two_of_theirs}
    )
    pairs = ranked & (sizes == 2)
    trivial = f"{pairs.sum()} of {len(sizes)} groups have two replies: always right" if pairs.any() else ""
    right, kept = two_of_ours & shared, ranked & two_of_theirs
    add_group_mean(metrics, "top_2_acc", right, sizes, kept, left_out, excluded, trivial)

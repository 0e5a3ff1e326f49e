"""Metrics of behaviour: numbers worked out by hand, scipy and scikit-learn, and every figure that does not exist."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from reward_models.metrics.figures import Metrics
from reward_models.metrics.outcomes import gold_correlation, retention, retry_continue
from reward_models.metrics.rankings import human_ranking, reject_worst

pytestmark = pytest.mark.filterwarnings("error")  # no figure is worth a RuntimeWarning

SCORES = [0.1, 0.9, 0.4, 0.4, 0.7]
RETRIED = [1, 0, 0, 1, 0]
ENDED = [1, 0, 1, 0, 0]
USERS = ["ann", "ann", "bob", "bob", "cy"]


def random_rows(seed: int, rows: int = 600) -> dict[str, np.ndarray]:
    """Columns of every metric; scores and utilities hold ties, ids are in no order."""
    rng = np.random.default_rng(seed)
    flags = ("retried", "end_of_conversation", "d3", "d7", "d30", "is_new_user", "is_nsfw", "new_user")
    columns = {name: rng.integers(2, size=rows) for name in flags}
    groups = rng.permutation(np.repeat(np.arange(rows // 4), 4))
    first = np.unique(groups, return_index=True)[1]
    return columns | {
        "scores": rng.integers(-8, 8, size=rows) / 4,
        "utility": rng.integers(-9, 9, size=rows) / 2,
        "rank": rng.integers(1, 5, size=rows).astype(float),
        "users": rng.integers(rows // 5, size=rows),
        "prompts": np.array([f"prompt {i}" for i in rng.integers(rows // 8, size=rows)]),
        "id": groups,
        "label": np.isin(np.arange(rows), first).astype(int),
    }


WANTED: dict[Any, tuple[str, ...]] = {
    retry_continue: ("retried", "end_of_conversation", "users", "prompts"),
    retention: ("d3", "d7", "d30", "is_new_user", "users", "prompts"),
    human_ranking: ("rank", "id"),
    reject_worst: ("label", "id", "is_nsfw", "new_user"),
    gold_correlation: ("utility", "users", "prompts"),
}
every_metric = pytest.mark.parametrize("metric", WANTED, ids=lambda metric: metric.__name__)


def of(metric, rows: dict[str, np.ndarray], **changed: Any) -> Metrics:
    return metric(**{name: rows[name] for name in ("scores", *WANTED[metric])} | changed)


def without_intervals(found: dict) -> dict:
    """Without the ends of intervals and the numbers of rows and users."""
    return {k: v for k, v in found.items() if not k.endswith(("_low", "_high")) and k not in ("rows", "users")}


def test_five_replies_give_the_retry_figures_worked_out_by_hand() -> None:
    found = retry_continue(SCORES, RETRIED, ENDED, users=USERS)
    # retried .1 and .4 below .9, .4, .7: 3 and 2.5 of 6 pairs; ended .1 and .4 below .9, .4, .7: the same scores
    assert found["retry_auc"] == found["end_of_convo_auc"] == pytest.approx(5.5 / 6)
    # ranks of -scores are 5 1 3.5 3.5 2, those of the flags 4.5 where set, 2 elsewhere: 6.25 / sqrt(9.5 * 7.5)
    assert found["retry_spearman"] == found["end_of_convo_spearman"] == pytest.approx(6.25 / math.sqrt(9.5 * 7.5))
    # ann: one pair, right; bob: one pair, a tie; cy: none
    assert found["retry_auc_within_users"] == found["end_of_convo_auc_within_users"] == 0.75
    assert found.reasons == dict.fromkeys(
        ("retry_auc_within_users", "end_of_convo_auc_within_users"),
        "1 of 3 users left out: no two rows of different flags",
    )


def test_six_replies_give_the_retention_figures_worked_out_by_hand() -> None:
    scores, new = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [1, 1, 1, 0, 0, 0]
    d3, d7, d30 = [1, 0, 1, 0, 1, None], [True, True, True, False, False, False], [0.0, math.nan, 1.0, 1, 0, 1]
    found = retention(scores, d3, d7, d30, new, prompts=[1, 2, 1, 2, 2, 2])
    # d3: came back at 5, 3, 1 beside 4 and 2: 2 + 1 + 0 of 6
    assert found["d3_auc"] == 0.5
    assert (found["d3_auc_new"], found["d3_auc_old"]) == (0.5, 0)
    # prompt 1: no pair; prompt 2: 4 and 2 did not, 1 did
    assert found["d3_auc_within_prompts"] == 0
    assert (found["d7_auc"], found["d7_auc_new"], found["d7_auc_old"]) == (1, None, None)
    # d30: 3, 2 and 0 beside 5 and 1: 0 + 1, 0 + 1, 0 of 6
    assert found["d30_auc"] == pytest.approx(2 / 6)
    assert without_intervals(found.reasons) == {
        "d3_auc": "1 of 6 rows left out: d3 unknown",
        "d3_auc_old": "1 of 3 rows of old users left out: d3 unknown",
        "d3_auc_within_prompts": "1 of 2 prompts left out: no two rows of different flags",
        "d7_auc_new": "d7 is 1 in all 3 rows of new users",
        "d7_auc_old": "d7 is 0 in all 3 rows of old users",
        "d7_auc_within_prompts": "1 of 2 prompts left out: no two rows of different flags",
        "d30_auc": "1 of 6 rows left out: d30 unknown",
        "d30_auc_new": "1 of 3 rows of new users left out: d30 unknown",
    }


def test_two_groups_give_the_ranking_figures_worked_out_by_hand() -> None:
    # a: scores put people's 1 2 3 4 at 2 1 3 4; b: their 1 2 3 at 1 3 2
    found = human_ranking([8, 9, 5, 1, 0.3, 0.1, 0.2], [1, 2, 3, 4, 1, 2, 3], list("aaaabbb"))
    predicted, human = [2, 1, 3, 4, 1, 3, 2], [1, 2, 3, 4, 1, 2, 3]
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, human).statistic)
    # 5 of 6 pairs agree, 2 of 3 do
    assert found["kendall_tau"] == pytest.approx((4 * 4 / 6 + 3 * 1 / 3) / 7)
    assert found["top_2_acc"] == pytest.approx(4 / 7)
    assert found.reasons == {}


def test_the_lowest_score_of_three_groups_is_rejected_as_worked_out_by_hand() -> None:
    # a: right; b: the lowest is another; c: the labelled one ties for the lowest; d: two labels; e: one reply
    scores = [0.1, 0.2, 0.3, 0.5, 0.4, 0.7, 0.7, 0.9, 0.1, 0.2, 0.0]
    label = [1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1]
    nsfw = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    new = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    found = reject_worst(scores, label, list("aaabbcccdde"), nsfw, new)
    assert found == {
        "overall_acc": 3 / 8,
        "nsfw_acc": 3 / 5,
        "sfw_acc": 0,
        "new_user_acc": 1,
        "old_user_acc": pytest.approx(2 / 7),
    }
    why = "1 of 5 groups left out: one reply; 1 of 5 groups left out: not exactly one labelled reply"
    assert found.reasons == dict.fromkeys(found, why)


def test_seven_replies_give_the_gold_correlations_worked_out_by_hand() -> None:
    # 1: 1 2 3 with 10 20 30; 2: 1 2 3 with 3 1 2, -1/2, and a fourth of another user
    scores, utility = [1, 2, 3, 1, 2, 3, 9], [10, 20, 30, 3, 1, 2, 99]
    found = gold_correlation(scores, utility, users=[1, 1, 1, 2, 2, 2, 3], prompts=[1, 1, 1, 1, 2, 2, 2])
    assert found["gold_spearman"] == pytest.approx(stats.spearmanr(scores, utility).statistic)
    assert found["gold_spearman_within_users"] == pytest.approx((3 * 1 - 3 * 0.5) / 6)
    first, second = (stats.spearmanr(scores[rows], utility[rows]).statistic for rows in (slice(4), slice(4, 7)))
    assert found["gold_spearman_within_prompts"] == pytest.approx((4 * first + 3 * second) / 7)
    assert found.reasons == {"gold_spearman_within_users": "1 of 3 users left out: fewer than 3 rows"}


@pytest.mark.parametrize("seed", range(5))
def test_overall_figures_are_those_of_scipy_and_scikit_learn(seed: int) -> None:
    rows = random_rows(seed)
    retry, back = of(retry_continue, rows), of(retention, rows)
    for name, flag in (("retry", rows["retried"]), ("end_of_convo", rows["end_of_conversation"])):
        assert retry[f"{name}_auc"] == pytest.approx(roc_auc_score(flag, -rows["scores"]))
        assert retry[f"{name}_spearman"] == pytest.approx(stats.spearmanr(-rows["scores"], flag).statistic)
    new = rows["is_new_user"] == 1
    for name in ("d3", "d7", "d30"):
        for part, where in (("", slice(None)), ("_new", new), ("_old", ~new)):
            assert back[f"{name}_auc{part}"] == pytest.approx(roc_auc_score(rows[name][where], rows["scores"][where]))
    gold = stats.spearmanr(rows["scores"], rows["utility"]).statistic
    assert of(gold_correlation, rows)["gold_spearman"] == pytest.approx(gold)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("unit", ["users", "prompts"])
def test_figures_within_groups_are_sums_over_groups_one_by_one(seed: int, unit: str) -> None:
    rows = random_rows(seed)
    score, flag, right, pairs, rho, weights = rows["scores"], rows["d3"], 0.0, 0, 0.0, 0
    for group in set(rows[unit]):
        where = rows[unit] == group
        up, down = score[where & (flag == 1)], score[where & (flag == 0)]
        right += sum(float(u > d) + 0.5 * float(u == d) for u in up for d in down)
        pairs += len(up) * len(down)
        if where.sum() >= 3 and len(set(score[where])) > 1 and len(set(rows["utility"][where])) > 1:
            rho += where.sum() * stats.spearmanr(score[where], rows["utility"][where]).statistic
            weights += where.sum()
    assert of(retention, rows)[f"d3_auc_within_{unit}"] == pytest.approx(right / pairs)
    low = of(retry_continue, rows, retried=flag)[f"retry_auc_within_{unit}"]
    assert low == pytest.approx(1 - right / pairs)
    assert of(gold_correlation, rows)[f"gold_spearman_within_{unit}"] == pytest.approx(rho / weights)


@pytest.mark.parametrize("seed", range(5))
def test_rankings_and_rejections_are_those_of_groups_one_by_one(seed: int) -> None:
    rows = random_rows(seed)
    tau, top, ranks, rejected = [], [], [], []
    for group in np.unique(rows["id"]):
        where = np.flatnonzero(rows["id"] == group)
        score, human, label = (rows[name][where] for name in ("scores", "rank", "label"))
        rejected.append(set(where[score == score.min()]) == set(where[label == 1]))
        if len(set(human)) == 1:
            continue
        ranks.append(np.stack([stats.rankdata(-score), human]))
        if len(set(score)) > 1:
            tau.append(stats.kendalltau(-score, human).statistic)
        best, theirs = np.argsort(-score, kind="stable"), np.argsort(human, kind="stable")
        if human[theirs[1]] < human[theirs[2]]:
            top.append(set(best[:2]) == set(theirs[:2]) and score[best[1]] > score[best[2]])
    found = of(human_ranking, rows)
    assert found["kendall_tau"] == pytest.approx(np.mean(tau))
    assert found["top_2_acc"] == pytest.approx(np.mean(top))
    assert found["spearman"] == pytest.approx(stats.spearmanr(*np.concatenate(ranks, axis=1)).statistic)
    assert of(reject_worst, rows)["overall_acc"] == pytest.approx(np.mean(rejected))
    assert 0 < np.mean(rejected) < 1


@every_metric
def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(metric) -> None:
    rows = random_rows(7)
    order = np.random.default_rng(8).permutation(600)
    shuffled = {name: column[order] for name, column in rows.items()}
    shuffled |= {name: np.array([f"u{i}" for i in shuffled[name]], dtype=object) for name in ("users", "id")}
    there, back = of(metric, rows), of(metric, shuffled)
    assert there == pytest.approx(back)
    assert there.reasons == back.reasons


@every_metric
@pytest.mark.parametrize("transform", [np.exp, np.cbrt, lambda x: 1e9 + 1e-3 * x, lambda x: 1e308 * np.tanh(x)])
def test_a_monotone_transform_of_scores_changes_nothing(metric, transform) -> None:
    rows = random_rows(9)
    assert of(metric, rows) == of(metric, rows, scores=transform(rows["scores"]))


@pytest.mark.parametrize("metric", [retry_continue, retention, gold_correlation], ids=lambda metric: metric.__name__)
def test_without_ids_the_overall_figures_stay_and_no_other_is_there(metric) -> None:
    rows = random_rows(10)
    whole, without = of(metric, rows), of(metric, rows, users=None, prompts=None)
    kept = {name for name in whole if "_within_" not in name} - {"users"}
    assert without.keys() == kept
    figures = {name for name in kept if not name.endswith(("_low", "_high"))}  # intervals over users, or over rows
    assert {name: without[name] for name in figures} == {name: whole[name] for name in figures}


def test_a_scorer_that_only_recognises_users_stands_out_overall_and_not_within_them() -> None:
    users = np.repeat(np.arange(200), 10)
    loyal = users % 2
    came_back = (np.random.default_rng(11).random(2000) < np.where(loyal, 0.9, 0.1)).astype(int)
    found = retention(loyal.astype(float), came_back, loyal, came_back, loyal, users=users)
    assert (found["d3_auc"] > 0.85, found["d7_auc"]) == (True, 1)
    assert (found["d3_auc_within_users"], found["d7_auc_within_users"]) == (0.5, None)
    assert found.reasons["d7_auc_within_users"] == "200 of 200 users left out: no two rows of different flags"


def test_a_scorer_that_knows_everything_has_every_figure_at_one() -> None:
    rows = random_rows(12)
    rows["rank"] = stats.rankdata(np.random.default_rng(13).random(600))
    flag = rows["retried"]
    retry = without_intervals(retry_continue(-flag, flag, flag, rows["users"]))
    assert list(retry.values()) == pytest.approx([1] * 6)
    back = without_intervals(retention(flag, flag, flag, flag, rows["is_new_user"], rows["users"]))
    assert set(back.values()) == {1}
    ranking = human_ranking(-rows["rank"], rows["rank"], rows["id"])
    assert (ranking["kendall_tau"], ranking["top_2_acc"]) == (pytest.approx(1), 1)
    assert set(reject_worst(-rows["label"], *(rows[name] for name in WANTED[reject_worst])).values()) == {1}


def test_a_scorer_of_constants_has_half_of_an_auc_no_correlation_and_no_pick() -> None:
    rows = random_rows(14)
    same = np.full(600, 0.1)
    retry = of(retry_continue, rows, scores=same)
    assert (retry["retry_auc"], retry["retry_auc_within_users"], retry["retry_spearman"]) == (0.5, 0.5, None)
    assert retry.reasons["retry_spearman"] == "scores the same in all 600 rows"
    ranking = of(human_ranking, rows, scores=same)
    undecided = sum(len(set(rows["rank"][rows["id"] == group])) == 1 for group in range(150))
    assert undecided > 0
    left_out = f"{undecided} of 150 groups left out: all human ranks tied"
    assert (ranking["spearman"], ranking["kendall_tau"], ranking["top_2_acc"]) == (None, None, 0)
    assert (
        ranking.reasons["spearman"] == f"all scores tied in each of the {150 - undecided} groups that count; {left_out}"
    )
    assert ranking.reasons["kendall_tau"] == f"{left_out}; {150 - undecided} of 150 groups left out: all scores tied"
    assert of(reject_worst, rows, scores=same)["overall_acc"] == 0
    gold = of(gold_correlation, rows, scores=same)
    assert set(gold.values()) == {None}
    assert "users left out: all scores or all utilities tied" in gold.reasons["gold_spearman_within_users"]


def test_constant_scores_do_not_correlate_through_the_sizes_of_groups() -> None:
    # the ranks 1.5 of pairs and 2.5 of fours would
    found = human_ranking([0.0] * 6, [1, 2, 1, 2, 3, 4], [0, 0, 1, 1, 1, 1])
    assert found["spearman"] is None
    assert found.reasons["spearman"] == "all scores tied in each of the 2 groups that count"


def test_flags_of_one_class_have_neither_auc_nor_correlation() -> None:
    found = retry_continue(SCORES, [0] * 5, [1] * 5, USERS, USERS)
    assert set(without_intervals(found).values()) == {None}
    assert found.reasons["retry_auc"] == "retried is 0 in all 5 rows"
    assert found.reasons["end_of_convo_auc"] == "end_of_conversation is 1 in all 5 rows"
    assert found.reasons["retry_spearman"] == "retried the same in all 5 rows"
    assert found.reasons["retry_auc_within_prompts"] == "3 of 3 prompts left out: no two rows of different flags"


def test_retention_without_new_users_or_known_flags_is_none_with_the_counts() -> None:
    found = retention(SCORES, [None] * 5, [1, None, 1, 1, 1], RETRIED, [0] * 5)
    known = {name: value for name, value in found.items() if value is not None}
    assert without_intervals(known).keys() == {"d30_auc", "d30_auc_old"}
    assert without_intervals(found.reasons) == {
        "d3_auc": "5 of 5 rows left out: d3 unknown",
        "d3_auc_new": "no rows of new users",
        "d3_auc_old": "5 of 5 rows of old users left out: d3 unknown",
        "d7_auc": "d7 is 1 in all 4 known rows; 1 of 5 rows left out: d7 unknown",
        "d7_auc_new": "no rows of new users",
        "d7_auc_old": "d7 is 1 in all 4 known rows of old users; 1 of 5 rows of old users left out: d7 unknown",
        "d30_auc_new": "no rows of new users",
    }


def test_rankings_of_groups_of_one_and_of_ties_do_not_exist() -> None:
    found = human_ranking([1.0, 2.0, 3.0], [1, 2, 2], ["a", "b", "b"])
    assert found == {"spearman": None, "kendall_tau": None, "top_2_acc": None}
    why = "1 of 2 groups left out: one reply; 1 of 2 groups left out: all human ranks tied"
    assert found.reasons == dict.fromkeys(found, why)


def test_ties_over_the_second_place_leave_a_group_out_by_people_and_are_wrong_by_scores() -> None:
    # a: people tie over the second place; b: scores do, and in d all three; c: both tie elsewhere, and agree
    human = [1, 2, 2, 1, 2, 3, 1, 1, 3, 3, 1, 2, 3]
    found = human_ranking([3, 2, 1, 3, 2, 2, 9, 9, 4, 4, 5, 5, 5], human, list("aaabbbccccddd"))
    assert found["top_2_acc"] == pytest.approx(4 / 10)
    assert found.reasons == {
        "kendall_tau": "1 of 4 groups left out: all scores tied",
        "top_2_acc": "1 of 4 groups left out: human ranks tied over the second place",
    }


def test_groups_of_two_always_agree_on_their_top_two_and_are_counted() -> None:
    found = human_ranking([1, 2, 5, 4, 3], [1, 2, 3, 1, 2], list("aabbb"))
    assert found["top_2_acc"] == pytest.approx(2 / 5)
    assert found.reasons == {"top_2_acc": "1 of 2 groups have two replies: always right"}


def test_rejections_without_a_group_or_a_row_that_counts_are_none() -> None:
    found = reject_worst([1, 2, 3, 4], [1, 0, 0, 0], list("aabc"), [1, 1, 0, 0], [0, 0, 1, 1])
    assert found == {"overall_acc": 1, "nsfw_acc": 1, "sfw_acc": None, "new_user_acc": None, "old_user_acc": 1}
    left_out = "2 of 3 groups left out: one reply"
    assert found.reasons["sfw_acc"] == f"no rows of sfw replies among the 2 that count; {left_out}"
    assert found.reasons["overall_acc"] == left_out
    nothing = reject_worst([1, 2], [0, 0], [1, 1], [0, 0], [0, 0])
    assert set(nothing.values()) == {None}
    assert nothing.reasons["overall_acc"] == (
        "no rows among the 0 that count; 1 of 1 groups left out: not exactly one labelled reply"
    )


def test_a_constant_utility_and_small_groups_have_no_gold_correlation() -> None:
    found = gold_correlation(SCORES, [2.0] * 5, users=USERS, prompts=[1, 1, 1, 2, 2])
    assert set(found.values()) == {None}
    assert found.reasons == {
        "gold_spearman": "utility the same in all 5 rows",
        "gold_spearman_within_users": "3 of 3 users left out: fewer than 3 rows",
        "gold_spearman_within_prompts": "1 of 2 prompts left out: fewer than 3 rows; "
        "1 of 2 prompts left out: all scores or all utilities tied",
    }


@every_metric
def test_one_row_has_no_figure_and_a_reason_for_each(metric) -> None:
    found = of(metric, {name: column[:1] for name, column in random_rows(15).items()})
    assert set(without_intervals(found).values()) == {None}
    assert found.reasons.keys() == without_intervals(found).keys()
    assert all(found.reasons.values())


@every_metric
@pytest.mark.parametrize("seed", range(20))
def test_few_random_rows_never_give_nan_and_each_none_has_a_reason(metric, seed: int) -> None:
    rows = {name: column[: 2 + seed % 7] for name, column in random_rows(seed).items()}
    found = of(metric, rows, scores=np.round(rows["scores"]))
    assert all(isinstance(value, float) and math.isfinite(value) for value in found.values() if value is not None)
    assert found.reasons.keys() >= {name for name, value in found.items() if value is None}


def test_reasons_survive_a_copy_and_a_pickle() -> None:
    found = retry_continue(SCORES, [0] * 5, ENDED)
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (twin, twin.reasons) == (found, found.reasons)


@every_metric
def test_arrays_of_different_lengths_no_rows_and_non_finite_scores_are_refused(metric) -> None:
    rows = random_rows(16, 40)
    for name in WANTED[metric]:
        with pytest.raises(ValueError, match="needed: one entry a row in each"):
            of(metric, rows, **{name: rows[name][:-1]})
    with pytest.raises(ValueError, match="0 rows; needed at least 1"):
        of(metric, {name: column[:0] for name, column in rows.items()})
    with pytest.raises(ValueError, match="scores holds 1 non-finite of 40 values, the first inf at index 3"):
        of(metric, rows, scores=np.where(np.arange(40) == 3, np.inf, rows["scores"]))


@pytest.mark.parametrize(
    ("metric", "name", "bad", "needed"),
    [
        (retry_continue, "retried", 2, "0 or 1;"),
        (retry_continue, "end_of_conversation", math.nan, "0 or 1;"),
        (retention, "d3", -1, "0 or 1 or null;"),
        (retention, "d7", 0.5, "0 or 1 or null;"),
        (retention, "d30", math.inf, "0 or 1 or null;"),
        (retention, "is_new_user", math.nan, "0 or 1;"),
        (reject_worst, "label", 3, "0 or 1;"),
        (reject_worst, "is_nsfw", 2, "0 or 1;"),
        (reject_worst, "new_user", 2, "0 or 1;"),
    ],
)
def test_flags_that_are_none_are_counted_and_located(metric, name: str, bad: float, needed: str) -> None:
    rows = random_rows(17, 40)
    column = np.where(np.isin(np.arange(40), (5, 9)), bad, rows[name])
    with pytest.raises(ValueError, match=f"{name} holds 2 of 40 values that are no flag, the first .* at index 5") as e:
        of(metric, rows, **{name: column})
    assert f"the first {bad:g} at index 5; needed: {needed}" in str(e.value)


def test_human_ranks_and_utilities_that_are_not_finite_and_null_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="rank holds 1 non-finite of 2 values"):
        human_ranking([0, 1], [1, math.nan], [0, 0])
    with pytest.raises(ValueError, match="utility holds 1 non-finite of 2 values"):
        gold_correlation([0, 1], [1, math.nan])
    with pytest.raises(ValueError, match="users holds 1 null of 5 ids, the first at index 4"):
        retry_continue(SCORES, RETRIED, ENDED, users=[*USERS[:4], None])

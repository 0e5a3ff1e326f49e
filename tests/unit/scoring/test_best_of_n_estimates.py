"""Value and KL of best-of-n, by hand."""

from itertools import combinations

import numpy as np
import pytest

from lmgym.scoring.best_of_n_estimates import best_of_n_kl, best_of_n_values


def test_four_samples_give_the_values_worked_out_by_hand() -> None:
    proxy, gold = [[3.0, 1.0, 4.0, 2.0]], [[10.0, 20.0, 0.0, 40.0]]
    # by proxy: 20, 40, 10, 0; of 2 the weights are 0, 1/6, 2/6, 3/6; of 3 they are 0, 0, 1/4, 3/4
    assert best_of_n_values(proxy, gold, 1) == pytest.approx([17.5])
    assert best_of_n_values(proxy, gold, 2) == pytest.approx([40 / 6 + 20 / 6])
    assert best_of_n_values(proxy, gold, 3) == pytest.approx([2.5])
    assert best_of_n_values(proxy, gold, 4) == pytest.approx([0.0])


def test_right_or_wrong_answers_with_themselves_as_proxy_give_pass_at_k() -> None:
    right = np.array([[1.0, 0, 0, 1, 0, 0, 0, 0, 0, 0]])
    # 1 - C(8, 3) / C(10, 3) = 1 - 56/120
    assert best_of_n_values(right, right, 3) == pytest.approx([1 - 56 / 120])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_the_value_is_the_mean_over_all_subsets_with_ties_halved(n: int) -> None:
    rng = np.random.default_rng(n)
    proxy, gold = rng.integers(0, 4, (6, 7)).astype(float), rng.normal(size=(6, 7))
    found = best_of_n_values(proxy, gold, n)
    for row in range(6):
        best = []
        for chosen in map(list, combinations(range(7), n)):
            top = proxy[row, chosen].max()
            best.append(np.mean([gold[row, i] for i in chosen if proxy[row, i] == top]))
        # the mean of a tie within each subset is, over all subsets, the mean of the whole tie
        assert found[row] == pytest.approx(np.mean(best))


def test_the_value_is_unbiased_for_samples_of_a_known_distribution() -> None:
    samples = np.random.default_rng(0).random((20_000, 8))
    found = best_of_n_values(samples, samples, 4)  # of 4 uniform numbers the largest is 4/5 on average
    assert found.mean() == pytest.approx(0.8, abs=4 * found.std() / np.sqrt(len(found)))


def test_many_samples_do_not_overflow() -> None:
    samples = np.random.default_rng(0).random((2, 20_000))
    assert best_of_n_values(samples, np.ones_like(samples), 5_000) == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("proxy", "gold", "n", "message"),
    [
        ([[1.0, 2]], [[1.0, 2]], 3, "best of 3 out of 2 samples"),
        ([[1.0, 2]], [[1.0, 2]], 0, "best of 0"),
        ([[1.0, 2]], [[1.0]], 1, r"proxy is \[1, 2\] and gold \[1, 1\]"),
        ([1.0], [1.0], 1, "needed: .prompts, N. both"),
    ],
)
def test_impossible_requests_are_refused(proxy, gold, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best_of_n_values(proxy, gold, n)


def test_the_bound_is_as_worked_out_by_hand() -> None:
    assert best_of_n_kl(1) == 0
    assert best_of_n_kl(2) == pytest.approx(0.193147, abs=1e-6)
    assert best_of_n_kl(16) == pytest.approx(2.772589 - 0.9375, abs=1e-6)
    with pytest.raises(ValueError, match="best of 0"):
        best_of_n_kl(0)


@pytest.mark.parametrize("n", [2, 4, 16])
def test_the_bound_is_the_kl_of_best_of_n_if_replies_are_never_equal(n: int) -> None:
    outcomes = np.arange(1, 200_001) / 200_000  # equally likely, ranked
    best = np.diff(np.concatenate([[0.0], outcomes**n]))
    exact = np.sum(best * np.log(np.maximum(best, 1e-300) * 200_000))
    assert exact == pytest.approx(best_of_n_kl(n), abs=1e-3)
    few = np.arange(1, 4) / 3  # of three replies it is less
    best = np.diff(np.concatenate([[0.0], few**n]))
    assert np.sum(best * np.log(best * 3)) < best_of_n_kl(n)

"""The budget without gold: what two halves see, what both miss, and how it is judged."""

from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.lab.budget import Budget, Case, cross_fit, judged, read_cases
from lmgym.apps.lab.curves import Curve, Point
from lmgym.apps.lab.plan import Plan, Proxy, Run
from lmgym.scoring.best_of_n_estimates import best_of_n_values


def halves(seed: int, shared: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores of both halves, gold): one reply in thirty is bad; each half likes its own such replies, or both do."""
    rng = np.random.default_rng(seed)
    good = rng.standard_normal((100, 256))
    bad = rng.random((2, 100, 256)) < 1 / 30
    if shared:
        bad[1] = bad[0]
    gold = good - 4 * (bad[0] | bad[1])
    first, second = (
        good + rng.normal(0, 0.5, good.shape) + 4 * liked - 4 * (other & ~liked) for liked, other in (bad, bad[::-1])
    )
    return first, second, gold


def test_an_error_that_each_half_has_for_itself_is_seen_and_the_budget_is_near_the_best_n() -> None:
    first, second, gold = halves(0, shared=False)
    budget = cross_fit(first, second)
    true = [best_of_n_values(first, gold, n).mean() for n in budget.sizes]
    assert budget.optimised == tuple(sorted(budget.optimised))  # the optimised half sees nothing
    assert budget.watched[-1] < budget.watched[budget.place] - 0.5
    assert abs(budget.place - int(np.argmax(true))) <= 1
    assert budget.kl[budget.place] < np.log(budget.sizes[budget.place])


def test_an_error_that_both_halves_share_is_not_seen() -> None:
    first, second, gold = halves(0, shared=True)
    budget = cross_fit(first, second)
    true = [best_of_n_values(first, gold, n).mean() for n in budget.sizes]
    assert budget.sizes[budget.place] == 256
    assert true[-1] < max(true) - 1


def test_a_half_in_other_units_changes_nothing() -> None:
    first, second, _ = halves(1, shared=False)
    assert cross_fit(first, 100 * second + 7).watched == pytest.approx(cross_fit(first, second).watched, abs=1e-3)


def case(world: int, gold: list[float], watched: list[float]) -> Case:
    return Case(world, "a", np.array(gold), Budget([1, 2, 4], [0, 0.2, 0.6], watched, watched))


def test_each_world_is_judged_by_the_constant_of_the_others() -> None:
    cases = [
        case(0, [0, 1, 0.5], [0, 1, 0.5]),
        case(1, [0, 1, 0.8], [0, 0.5, 1.0]),
        case(2, [0, 0.4, 1.0], [0, 0.5, 1.0]),
    ]
    found = {name: estimate.value for name, estimate in judged(cases).items()}
    # of worlds 1 and 2 the best constant is 4, and loses .5 in world 0; of the others it is 2 twice over
    assert found["budget"] == pytest.approx((0 + 0.2 + 0) / 3)
    assert found["constant"] == pytest.approx((0.5 + 0.2 + 0.6) / 3)
    assert found["none"] == pytest.approx((0.5 + 0.2 + 0) / 3)
    assert found["budget - constant"] == pytest.approx((-0.5 + 0 - 0.6) / 3)


def test_a_case_is_read_where_both_halves_have_scored_the_pool(tmp_path: Path) -> None:
    first, second, _ = halves(0, shared=False)
    proxies = {name: Proxy() for name in ("whole", "one", "two", "alone")}
    runs = [Run(name, method) for name in ("whole", "alone") for method in ("best_of_n", "ppo")]
    plan = Plan(runs, proxies, halves={"whole": ("one", "two")})
    points = [Point(2**power, 0.1 * power, 0.0, 0.5 * power, 0.1, 8.0, None) for power in range(9)]
    curves = [Curve(run.proxy, run.method, run.kl, run.world, run.seed, points) for run in runs]
    assert read_cases(tmp_path, plan, curves) == []
    (tmp_path / "world_0/pool").mkdir(parents=True)
    np.save(tmp_path / "world_0/pool/one.npy", first)
    assert read_cases(tmp_path, plan, curves) == []
    np.save(tmp_path / "world_0/pool/two.npy", second)
    [found] = read_cases(tmp_path, plan, curves)
    assert (found.world, found.proxy, found.gold.tolist()) == (0, "whole", [0.5 * power for power in range(9)])
    assert found.budget == cross_fit(first, second)

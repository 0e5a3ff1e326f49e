"""The lesson on the best of N prints what its page explains."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
SIZES = [2**power for power in range(11)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """Of each policy a table[N, value, pool, error, again, error, KL, pool, bound]."""
    figure = tmp_path_factory.mktemp("lesson") / "figure.svg"
    drawn = ["--output", str(figure)] if find_spec("matplotlib") else []
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/lessons/best_of_n.py"), *drawn],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert figure.is_file() == bool(drawn)
    rows = [
        line.replace("|", " ").replace(",", "").split() for line in done.stdout.splitlines() if line.count("|") == 2
    ]
    numbers = np.array([row for row in rows if row[0] != "N"], dtype=np.float64)
    return np.split(numbers, 2)


@pytest.mark.slow
def test_the_kl_is_below_the_bound_and_at_most_log_four_where_there_are_four_replies(printed: list[np.ndarray]) -> None:
    cook, poet = printed
    for table in printed:
        assert table[:, 0].tolist() == SIZES
        np.testing.assert_allclose(table[:, 8], [np.log(n) - (n - 1) / n for n in SIZES], atol=6e-4)
        assert (table[:, 6] <= table[:, 8] + 1e-3).all()
    assert cook[-1, 6] == pytest.approx(np.log(4), abs=6e-4)
    np.testing.assert_allclose(poet[:, 6], poet[:, 8], atol=2e-3)
    for table in printed:
        np.testing.assert_allclose(table[:, 7], table[:, 6], atol=0.06)


@pytest.mark.slow
def test_the_value_grows_less_with_each_doubling_and_estimates_agree_within_their_errors(
    printed: list[np.ndarray],
) -> None:
    for table in printed:
        exact = table[:, 1]
        assert (np.diff(exact) >= 0).all()
        assert exact[-1] - exact[-2] < 0.3 * (exact[1] - exact[0])
        for estimate, error in ((2, 3), (4, 5)):
            assert (np.abs(table[:, estimate] - exact) <= 4 * table[:, error] + 1e-3).all()

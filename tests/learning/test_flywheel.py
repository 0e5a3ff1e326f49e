"""The loop closes: a person's 30 picks make a scorer that agrees with that person more often than the one before."""

from pathlib import Path

import pytest
from flywheel import SEEDS, judge, run_seed
from scipy.stats import binomtest


@pytest.mark.slow
def test_30_picks_of_a_person_close_the_loop_and_picks_random_picks_gain_less(tmp_path: Path) -> None:
    outcome = run_seed(SEEDS[0], tmp_path, random_scorers=1)
    assert judge([outcome]) == []
    assert 120 <= outcome.preferences <= 150  # 30 picks against 5 others, but for identical replies
    assert outcome.picks.new < outcome.ceiling


@pytest.mark.slow
def test_the_loop_closes_for_other_people_in_worlds_of_their_own(tmp_path: Path) -> None:
    # Together, since rounding is another processor's: of 30 initialisations 2 miss p < .01 alone (docs/flywheel.md).
    picks = []
    for seed in SEEDS[1:]:
        folder = tmp_path / str(seed)
        folder.mkdir()
        picks.append(run_seed(seed, folder).picks)
    assert all(comparison.gained > comparison.lost for comparison in picks)
    gained, lost = (sum(getattr(comparison, side) for comparison in picks) for side in ("gained", "lost"))
    assert binomtest(gained, gained + lost).pvalue < 1e-6

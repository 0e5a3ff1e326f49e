"""Against scripted rivals a policy learns both sides of a negotiation and its judge, who is asked only in some games.

The whole runs are those of benchmarks/negotiation.py. With the sides' rewards exchanged nothing of a side is learned.
"""

from pathlib import Path

import pytest
from negotiation import GAIN, LAWFUL, METHODS, RANDOM, WORLD, learn

from lmgym.runs.user_code import import_file


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_sides_and_a_judge_are_learned(method: str, tmp_path: Path) -> None:
    found = learn(import_file(WORLD, "needed: the example"), tmp_path, method, seed=0)
    assert found["gain"][0] < 0.6
    assert found["lawful"][0] < 0.6
    assert found["gain"][1] > GAIN
    assert found["lawful"][1] > LAWFUL
    assert all(0 < share < 0.5 for share in found["absent_agents"]), "the judge is asked in some games only"


@pytest.mark.slow
def test_a_side_with_the_other_ones_rewards_is_not_learned(tmp_path: Path) -> None:
    assert learn(import_file(WORLD, "needed: the example"), tmp_path, "ppo", seed=0, swap=True)["gain"][1] < RANDOM

"""docs/results.md: what is said of all policies, runs or files holds of each in benchmarks/results."""

import json
import re
from typing import Any

import numpy as np
import pytest
from pages import files_of
from printed_blocks import ROOT

from lmgym.statistics import mean

PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")
WORLDS = json.loads((ROOT / "benchmarks/results/preferences_in_world.json").read_text(encoding="utf-8"))["worlds"]
TRAINED = [name for name in WORLDS[0]["policies"] if name != "SFT"]


def average(world: dict[str, Any], name: str, kind: str) -> float:
    """Hidden utility of a policy's single replies ("utility"), or of its best of 4 ("best")."""
    return float(np.mean(world["policies"][name][kind]))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"world {world['world']}")
def test_all_trained_policies_are_above_sft_and_below_its_best_of_four(world: dict[str, Any]) -> None:
    assert "All are above SFT. Choosing the best of four by the scorer is worth more than training alone" in PAGE
    assert "and the two add up" in PAGE
    for name in TRAINED:
        change = mean(np.subtract(world["policies"][name]["utility"], world["policies"]["SFT"]["utility"]))
        assert change.low is not None
        assert change.low > 0, name
        assert average(world, name, "utility") < average(world, "SFT", "best") < average(world, name, "best"), name


def test_every_script_that_wrote_a_figure_of_the_page_is_among_its_commands() -> None:
    commands = PAGE.partition("\n## Commands\n")[2]
    for name in files_of(PAGE):
        found = json.loads((ROOT / "benchmarks/results" / name).read_text(encoding="utf-8"))
        for script in re.findall(r"benchmarks/\w+\.py", found["command"]):
            assert f"`{script}" in commands, name

"""The benchmark of doors: each plays episode after episode."""

from itertools import islice

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")

from environment_doors import DOORS


@pytest.mark.parametrize(("game", "name"), [(game, name) for game, doors in DOORS.items() for name in doors])
def test_a_door_plays_on(game: str, name: str) -> None:
    if name.startswith("pettingzoo"):
        pytest.importorskip("pygame")
    steps = DOORS[game][name]()
    assert len(list(islice(steps, 60))) == 60
    steps.close()

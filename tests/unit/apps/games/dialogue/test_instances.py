"""Instances: functions of the seed, different from each other, and held out by what they are about."""

import json

import pytest

from lmgym.apps.games.dialogue.games import GAMES
from lmgym.apps.games.dialogue.instances import draw_instances, instance_of, split_of
from lmgym.apps.games.dialogue.taboo import draw
from lmgym.errors import InputError


@pytest.mark.parametrize("name", GAMES)
def test_instances_follow_from_the_seed_and_differ(name: str) -> None:
    game = GAMES[name]
    assert game.experiments(8, seed=3) == game.experiments(8, seed=3)
    assert game.experiments(8, seed=3) != game.experiments(8, seed=4)
    for experiment in game.experiments(8):
        drawn = [json.dumps(one | {"game_id": 0}, sort_keys=True) for one in experiment["game_instances"]]
        assert len(set(drawn)) == 8
        assert [one["game_id"] for one in experiment["game_instances"]] == list(range(8))


def test_no_word_is_in_both_splits() -> None:
    words = {
        split: {one["target_word"] for seed in range(5) for one in draw_instances(draw, "common", 12, seed, split)}
        for split in ("train", "validation")
    }
    assert words["train"]
    assert not words["train"] & words["validation"]
    assert {split_of(word) for word in words["validation"]} == {"validation"}


def test_a_task_without_an_instance_draws_a_training_one_from_the_seed() -> None:
    drawn = [instance_of({}, seed, draw, ("common", "less_common"))["target_word"] for seed in range(30)]
    assert drawn == [instance_of({}, seed, draw, ("common", "less_common"))["target_word"] for seed in range(30)]
    assert len(set(drawn)) > 15
    assert {split_of(word) for word in drawn} == {"train"}
    assert instance_of({"instance": {"target_word": "bell"}}, 0, draw, ("common",)) == {"target_word": "bell"}


def test_mistakes_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"common has \d+ different instances of the split validation; needed: 5000, or a"
    ):
        draw_instances(draw, "common", 5000, 0, "validation")
    with pytest.raises(InputError, match="split='test'; needed: train or validation"):
        draw_instances(draw, "common", 1, 0, "test")
    with pytest.raises(InputError, match="number"):
        draw_instances(draw, "common", 0, 0)

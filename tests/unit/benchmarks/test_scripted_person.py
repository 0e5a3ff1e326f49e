"""The parts of benchmarks/flywheel.py: its criterion, and the person who picks."""

from dataclasses import replace

import numpy as np
import pytest
from flywheel import SEEDS, TASTES, Comparison, Outcome, Person, agreed_worth, bot_reply, compare, judge

from lmgym.apps.world.world import World
from lmgym.text import Conversation, Turn

GAINED, NOTHING = compare([False] * 40, [True] * 30 + [False] * 10), compare([True, False], [True, False])
MET = [Outcome(seed, "questions", "opinions", 150, GAINED, (NOTHING,), 0.9, 1.0) for seed in SEEDS]


# --- what the criterion is made of


def test_mcnemar_by_hand() -> None:
    old = [True] * 5 + [False] * 8 + [True] + [False] * 2
    new = [True] * 5 + [True] * 8 + [False] + [False] * 2
    found = compare(old, new)
    assert (found.gained, found.lost) == (8, 1)
    assert found.p == pytest.approx(2 * (1 + 9) / 2**9)
    assert found.change == pytest.approx(7 / 16)
    assert Comparison(0.5, 0.5, 0, 0, 1.0) == NOTHING


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"picks": compare([False] * 7, [True] * 7)}, "p = 0.0156"),  # 2 / 2^7
        ({"random_picks": (GAINED,)}, "random picks gain 0.750, the person's 0.750"),
    ],
)
def test_a_seed_without_its_gain_is_a_fault(change: dict, says: str) -> None:
    assert judge(MET) == []
    [fault] = judge([replace(MET[0], **change)])
    assert says in fault


def test_random_picks_that_gain_on_average_are_a_fault() -> None:
    little = compare([False] * 50, [True] * 2 + [False] * 48)
    assert judge([replace(outcome, random_picks=(little, NOTHING)) for outcome in MET]) == []  # .02 on average
    little = compare([False] * 50, [True] * 3 + [False] * 47)
    [fault] = judge([replace(outcome, random_picks=(little,)) for outcome in MET])
    assert "0.060 on average" in fault


# --- the person


def test_a_person_likes_what_all_like_and_has_tastes_besides() -> None:
    world = World(0)
    person = Person(world, seed=0)
    person.loves, person.hates = "warm words", "questions"
    thing = next(iter(world.grammar.topic_of))
    prompt = Conversation((Turn("user", f"what about {thing}?"),))
    replies = [f"i saw {thing} today.", f"i saw {thing} today. thank you.", "who cares.", f"why {thing}?", "ok."]
    assert agreed_worth(world, [prompt] * 5, replies).tolist() == pytest.approx([1.2, 1.2, -1.8, 1.2, -1.0])
    assert person.worth(prompt, replies).tolist() == pytest.approx([0.6, 3.6, -0.9, -2.4, -0.5])
    picks = [person.choose(prompt, replies) for _ in range(300)]
    assert picks.count(1) / 300 > 0.95  # by Luce's rule in .997: it is 3 above the next, 6 in units of the noise


def test_a_reply_closes_with_each_matter_of_taste_alike() -> None:
    world, rng = World(0), np.random.default_rng(0)
    prompt = Conversation((Turn("user", f"what about {next(iter(world.grammar.topic_of))}?"),))
    kinds = [world.grammar.parse(bot_reply(world, prompt, rng))[-1].kind for _ in range(2000)]
    for taste in TASTES.values():
        assert sum(kind in taste for kind in kinds) / 2000 == pytest.approx(0.25, abs=0.04)

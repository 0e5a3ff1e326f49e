"""The schedule: who meets whom, on which side, by the settings alone."""

from collections import Counter
from dataclasses import replace

import pytest

from lmgym.apps.debate.formats import consultancy, debate, judge_alone
from lmgym.apps.debate.tournament.config import TournamentConfig
from lmgym.apps.debate.tournament.schedule import make_schedule
from lmgym.errors import InputError

CONFIG = TournamentConfig("test")
NAMES = ["a", "b", "c"]


def schedule(config: TournamentConfig, questions: int = 4, names=NAMES, format=debate()):  # noqa: B008
    return make_schedule(config, names, questions, format)


def test_each_pair_plays_each_question_on_both_sides() -> None:
    rounds = schedule(CONFIG)
    assert [r.number for r in rounds] == list(range(24))
    found = Counter((r.question, r.players) for r in rounds)
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    assert found == Counter((question, pair) for question in range(4) for pair in pairs)
    # exchanged debaters exchange their answers: the option of a side is the question's
    assert all(len({r.flipped for r in rounds if r.question == q}) == 1 for q in range(4))


def test_sides_are_fixed_or_alternate() -> None:
    fixed = schedule(replace(CONFIG, sides="fixed"))
    assert {r.players for r in fixed} == {("a", "b"), ("a", "c"), ("b", "c")}
    alternate = schedule(replace(CONFIG, sides="alternate"), names=["a", "b"])
    assert [r.players for r in alternate] == [("a", "b"), ("b", "a")] * 2


def test_self_play_is_of_each_player_and_flipped_for_the_other_answer() -> None:
    rounds = schedule(replace(CONFIG, pairs="self_play"), questions=1)
    assert [r.players for r in rounds] == [("a", "a")] * 2 + [("b", "b")] * 2 + [("c", "c")] * 2
    assert [r.flipped for r in rounds[::2]] == [not r.flipped for r in rounds[1::2]]


def test_custom_pairs_speak_in_their_order() -> None:
    config = replace(CONFIG, pairs="custom", custom=("c:a", "b:b"), sides="fixed")
    assert [r.players for r in schedule(config, 1)] == [("c", "a"), ("b", "b")]
    for wrong in ("c", "a:d", "a:b:c"):
        with pytest.raises(InputError, match="needed: first:second, of the players a, b, c"):
            schedule(replace(config, custom=(wrong,)))


def test_consultants_argue_for_both_answers_and_a_judge_alone_has_no_players() -> None:
    rounds = schedule(CONFIG, 1, format=consultancy())
    assert [r.players for r in rounds] == [("a",), ("a",), ("b",), ("b",), ("c",), ("c",)]
    assert {r.flipped for r in rounds if r.players == ("a",)} == {True, False}
    alone = schedule(CONFIG, 2, names=[], format=judge_alone())
    assert [(r.question, r.players) for r in alone] == [(0, ()), (0, ()), (1, ()), (1, ())]


def test_pairs_with_a_share_play_different_questions_as_often_as_there_are_enough() -> None:
    rounds = schedule(replace(CONFIG, share=1 / 3, sides="fixed"), questions=6)
    assert {pair: {r.question for r in rounds if r.players == pair} for pair in {r.players for r in rounds}} == {
        ("a", "b"): {0, 1}, ("a", "c"): {2, 3}, ("b", "c"): {4, 5},
    }  # fmt: skip


def test_in_a_capped_round_robin_no_player_meets_a_question_in_two_pairs() -> None:
    rounds = schedule(replace(CONFIG, pairs="capped", sides="fixed"), questions=13, names=["a", "b", "c", "d"])
    found = {pair: sorted(r.question for r in rounds if r.players == pair) for pair in {r.players for r in rounds}}
    # of 4 parts with 3 questions, by hand: the part of players i and j is (i + j - 1) mod 4
    parts = {("a", "b"): 0, ("a", "c"): 1, ("a", "d"): 2, ("b", "c"): 2, ("b", "d"): 3, ("c", "d"): 0}
    assert found == {pair: [3 * part, 3 * part + 1, 3 * part + 2] for pair, part in parts.items()}
    met = Counter((name, r.question) for r in rounds for name in r.players)
    assert set(met.values()) == {1}


def test_a_part_of_a_capped_round_robin_has_the_questions_that_it_has_in_the_whole() -> None:
    config = replace(CONFIG, pairs="capped", sides="fixed")
    whole, part = (schedule(one, questions=6) for one in (config, replace(config, custom=("c:b",))))
    assert {(r.players, r.question) for r in part} == {(("b", "c"), 4), (("b", "c"), 5)}
    assert {(r.players, r.question) for r in part} < {(r.players, r.question) for r in whole}
    for wrong, questions, message in ((("a:a",), 6, "a player that meets itself"), ((), 2, "2 question")):
        with pytest.raises(InputError, match=message):
            schedule(replace(config, custom=wrong), questions)
    with pytest.raises(InputError, match="a format with two debaters"):
        schedule(config, 6, format=consultancy())


def test_a_shorter_run_is_the_beginning_of_a_longer_one_and_replicates_have_other_seeds() -> None:
    whole = schedule(replace(CONFIG, replicates=2))
    assert schedule(replace(CONFIG, replicates=2, rounds=7)) == whole[:7]
    assert whole[0].seed != whole[24].seed
    assert whole == schedule(replace(CONFIG, replicates=2))
    assert {r.flipped for r in whole} == {True, False}
    with pytest.raises(InputError, match=r"rounds=25, and .* give 24; needed"):
        schedule(replace(CONFIG, rounds=25))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": "0/2"}, "shard='0/2'; needed: i/n"),
        ({"shard": "3/2"}, "shard='3/2'; needed: i/n"),
        ({"custom": ("a:b",)}, "needed: --pairs custom"),
        ({"pairs": "custom"}, "needed: --pairs custom"),
        ({"custom": ("a:b",), "pairs": "self_play"}, "needed: --pairs custom"),
        ({"pairs": "capped", "share": 0.5}, "capped has its own parts"),
        ({"previous_run": "a", "transcripts": "b"}, "needed: one of the two"),
        ({"share": 0.0}, "share=0"),
        ({"batch": 0}, "batch=0"),
        ({"name": "a/b"}, "name='a/b'"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(CONFIG, **change)

"""A judge that compares: both orders, groups scored together, replies without a verdict, and shares won."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
from judge_server import RuleModel, comparing_judge

from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.best_of_n import BestOfN
from lmgym.scoring.protocol import NoVerdict
from lmgym.scoring.strengths import bradley_terry
from lmgym.text import Conversation, Turn

ASKED = Conversation((Turn("user", "How far is the moon?"),))
OTHER = Conversation((Turn("user", "How far is Mars?"),))
REPLIES = ["near", "384,400 km", "far away", "I do not know", "ask a friend", "very far", "about 1.3 light seconds"]


def longer(a: str, b: str) -> float:
    """P of A, by length alone."""
    return 1 / (1 + math.exp(len(b) - len(a)))


def test_a_preference_for_a_place_cancels_and_is_measured(tmp_path: Path) -> None:
    judge = comparing_judge(lambda a, b: 0.8 if len(a) == len(b) else (0.95 if len(a) > len(b) else 0.6), tmp_path)
    even, more = judge.compare([ASKED, ASKED], ["abc", "longer"], ["xyz", "abc"])
    assert (even.p, even.flips) == (pytest.approx(0.5), True)
    assert (more.p, more.flips) == (pytest.approx((0.95 + 0.4) / 2), True)
    assert judge.order_bias.comparisons == judge.order_bias.flips == 2
    assert judge.order_bias.first / 4 == pytest.approx((0.8 + 0.8 + 0.95 + 0.6) / 4)


def test_two_replies_have_opposite_strengths_and_one_alone_is_refused(tmp_path: Path) -> None:
    judge = comparing_judge(lambda a, b: 0.9 if a < b else 0.3, tmp_path)
    found = judge.score([ASKED] * 2, ["b", "a"])
    assert found.tolist() == pytest.approx(bradley_terry(2, {(0, 1): 0.2}).tolist())
    with pytest.raises(InputError, match="was given one reply to 'How far is the moon"):
        judge.score([ASKED], ["a"])


def test_the_replies_of_a_group_are_scored_together_whatever_their_order(tmp_path: Path) -> None:
    judge = comparing_judge(longer, tmp_path)
    scores = judge.score([ASKED] * 7, REPLIES)
    assert scores.sum() == pytest.approx(0, abs=1e-5)
    assert [len(REPLIES[i]) for i in np.argsort(scores)][-3:] == sorted(map(len, REPLIES))[-3:]
    assert judge.order_bias.comparisons == 12, "four rounds of three"
    order = random.Random(1).sample(range(7), 7)
    assert judge.score([ASKED] * 7, [REPLIES[i] for i in order]).tolist() == [scores.tolist()[i] for i in order]
    model = judge.verdicts.model
    assert isinstance(model, RuleModel)
    assert model.asked == 24, "kept verdicts are not asked for again"


def test_groups_are_compared_among_themselves_and_equal_replies_are_one(tmp_path: Path) -> None:
    judge = comparing_judge(longer, tmp_path)
    first, second, third = judge.score_groups([ASKED, OTHER, ASKED], [["a", "bbb"], ["dd", "c", "dd"], ["e", "e"]])
    assert first[0] == -first[1] < 0
    assert second[0] == second[2] > 0 > second[1]
    assert sum(second) == pytest.approx(0, abs=1e-12), "each counts in the sum"
    assert third == [0.0, 0.0]
    assert judge.order_bias.comparisons == 2
    assert second[0] - second[1] == pytest.approx(judge.score_groups([OTHER], [["dd", "c"]])[0][0] * 2)


def test_a_reply_without_any_verdict_has_none_and_the_others_have_theirs(tmp_path: Path) -> None:
    judge = comparing_judge(lambda a, b: None if "odd" in (a, b) else longer(a, b), tmp_path)
    [found] = judge.score_groups([ASKED], [["a", "odd", "bbb"]])
    assert math.isnan(found[1])
    assert found[0] == -found[2] < 0
    with pytest.raises(NoVerdict, match="no verdict on 1 of 3 questions"):
        judge.score([ASKED] * 3, ["a", "odd", "bbb"])


def test_a_share_is_won_against_the_starting_reply(tmp_path: Path) -> None:
    judge = comparing_judge(longer, tmp_path)
    assert judge.shares_won([ASKED, OTHER], ["ab", "a"]) == [0.5, 0.5]
    found = judge.shares_won([OTHER, ASKED, ASKED], ["abc", "ab", "a"])
    assert found == pytest.approx([1 / (1 + math.exp(-2)), 0.5, 1 / (1 + math.exp(1))])


def test_the_best_of_forty_is_found(tmp_path: Path) -> None:
    several = [Conversation((Turn("user", f"How far is {place}?"),)) for place in ("Mars", "Rome", "Oslo", "home")]
    best = BestOfN(ScriptedGenerator(REPLIES), comparing_judge(longer, tmp_path), 40).reply(several, 1, Sampling())
    assert [reply.text for [reply] in best] == [max(REPLIES, key=len)] * 4

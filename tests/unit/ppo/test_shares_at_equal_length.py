"""Evaluations with a judge that compares: the share won at equal length, of parts of the reward and of monitors."""

from dataclasses import replace

import pytest
from judge_server import comparing_judge

from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.report.known_metrics import metric_of
from lmgym.scoring.retries import RewardResult
from lmgym.text import Conversation, Turn
from ppo.monitoring.equal_length import shares_at_equal_length

ASKED = [Conversation((Turn("user", f"question {i}"),)) for i in range(5)]
START, LONGER, SHORTER = "start", "started!", "st"


def episode(number: int, reply: str, share: float | None) -> Episode:
    scores = {} if share is None else {"j": share}
    step = Step([], "", Completion(reply, "eos"), scores=scores, observed=ASKED[number])
    return Episode(number, "policy", [step], True, False, None, {})


def test_it_is_that_of_replies_beside_those_before_step_1(tmp_path) -> None:
    judge = comparing_judge(lambda a, b: float(len(a) > len(b)), tmp_path)
    assert judge.shares_won(ASKED[:4], [START] * 4) == [0.5] * 4
    tasks = [{"prompt": asked} for asked in ASKED]
    # the longer ones win: no better at equal length; the last prompt has no reply to compare with
    replies = [LONGER, LONGER, SHORTER, SHORTER, LONGER]
    shares = [1.0, 1.0, 0.0, 0.0, 1.0]
    played = [episode(i, reply, share) for i, (reply, share) in enumerate(zip(replies, shares, strict=True))]
    metrics, notes = shares_at_equal_length({"j": judge}, played, tasks, {})
    assert metrics["eval/equal_length/j"] == pytest.approx(0.5, abs=1e-9)
    assert notes == []
    assert set(metrics) == {"eval/equal_length/j", "eval/equal_length/j_low", "eval/equal_length/j_high"}
    for name in metrics:
        found = metric_of(name, "ppo")
        assert found is not None
        assert found.unit == "share of replies"
        assert found.better == "higher"
    watched = [RewardResult(share) for share in shares]
    bare = [replace(one, steps=[replace(one.steps[0], scores={}, observed="")]) for one in played]
    assert shares_at_equal_length({"j": judge}, bare, tasks, {"j": watched})[0] == metrics


def test_without_a_reply_that_is_as_short_a_note_says_so(tmp_path) -> None:
    judge = comparing_judge(lambda a, b: float(len(a) > len(b)), tmp_path)
    judge.shares_won(ASKED, [START] * 5)
    played = [episode(i, LONGER, 1.0) for i in range(3)]
    metrics, notes = shares_at_equal_length({"j": judge}, played, [{"prompt": asked} for asked in ASKED], {})
    assert metrics == {}
    assert notes == [
        "no share that j gives at equal length: every reply is longer than the one that it is compared with"
    ]
    failed = [episode(0, LONGER, None)]
    assert shares_at_equal_length({"j": judge}, failed, [{"prompt": ASKED[0]}], {}) == ({}, [])

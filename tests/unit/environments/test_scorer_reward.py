"""Rewards by scorers: scores, their moments over reference replies, and invalid settings."""

from dataclasses import replace

import pytest
import torch
from judge_server import comparing_judge
from rewarded import chats, rewards_of, sample

from lmgym.environments.scorer_reward import ScorerReward, reference_moments, to_moments
from lmgym.errors import InputError
from lmgym.scoring.scorers import FunctionScorer
from lmgym.scoring.strengths import bradley_terry
from lmgym.text import Conversation, Turn

NAN, INF = float("nan"), float("inf")
LONG = FunctionScorer(lambda _, replies: [float(len(reply)) for reply in replies])
MINUS = FunctionScorer(lambda _, replies: [-10.0 * len(reply) for reply in replies])


def test_scores_are_normalised_clipped_weighted_and_summed_as_by_hand() -> None:
    reward_function = ScorerReward(
        {"a": LONG, "b": MINUS}, {"a": 2.0, "b": 0.5}, {"a": (3.0, 2.0), "b": (-20.0, 10.0)}, clip=1.5
    )
    found = reward_function.rewards(chats("x", "xxxxxxxxx"))
    # lengths 1 and 9: a is -1, then 3 -> 1.5; b is (-10 + 20) / 10 = 1, then (-90 + 20) / 10 = -7 -> -1.5
    assert rewards_of(found) == [-1.5, 2.25]
    assert [one.scores for one in found] == [{"a": 1.0, "b": -10.0}, {"a": 9.0, "b": -90.0}]
    plain = ScorerReward({"a": LONG}, {"a": 2.0}, None, clip=None)
    assert rewards_of(plain.rewards(chats("x" * 50))) == [100.0]


def test_a_scorer_is_called_once_for_the_batch_with_unchanged_replies() -> None:
    calls = []

    def score(conversations, replies):
        calls.append((list(conversations), list(replies)))
        return [0.0] * len(replies)

    batch = chats("  hi\nthere \t you ", "ok")
    ScorerReward({"a": FunctionScorer(score)}, {"a": 1.0}).rewards(batch)
    assert calls == [([one.request.prompt for one in batch], ["hi\nthere \t you", "ok"])]


def test_weights_that_change_are_worked_out_by_hand_and_0_at_the_beginning_is_no_failure() -> None:
    """Two letters score 2 and -20."""
    reward = ScorerReward({"a": LONG, "gold": MINUS}, {"a": 1.0, "gold": 0.5}, first_weights={"a": 0.0})
    found = [reward.at(share).rewards(chats("xx"))[0].reward for share in (0.0, 0.25, 1.0)]
    assert found == [-10.0, 0.5 - 10, 2 - 10.0]
    alone = ScorerReward({"a": LONG}, {"a": 1.0}, first_weights={"a": 0.0})
    assert alone.at(0.0).rewards(chats("xx"))[0].reward == 0.0


def test_scores_of_weight_0_are_logged_and_their_failure_loses_no_reward() -> None:
    broken = FunctionScorer(lambda _, replies: [NAN] * len(replies))
    weights = {"a": 1.0, "gold": 0.0}
    [found] = ScorerReward({"a": LONG, "gold": MINUS}, weights).rewards(chats("xx"))
    assert (found.reward, found.scores) == (2.0, {"a": 2.0, "gold": -20.0})
    [found] = ScorerReward({"a": LONG, "gold": broken}, weights).rewards(chats("xx"))
    assert (found.reward, found.scores) == (2.0, {"a": 2.0})
    assert "gold: raised ValueError" in found.error


def test_a_reply_that_one_scorer_cannot_score_alone_has_no_reward() -> None:
    class Picky:
        def score(self, conversations, replies):
            if any(len(reply) == 2 for reply in replies):
                raise RuntimeError("two letters")
            return torch.tensor([0.5 if len(reply) < 3 else NAN for reply in replies])

    found = ScorerReward({"a": LONG, "b": Picky()}, {"a": 1.0, "b": 1.0}).rewards(chats("x", "xx", "xxx"))
    assert rewards_of(found) == [1.5, None, None]
    assert [one.scores for one in found] == [{"a": 1.0, "b": 0.5}, {"a": 2.0}, {"a": 3.0}]
    assert found[1].error.startswith("b: raised RuntimeError: two letters")
    assert "nan" in found[2].error


def test_scores_of_a_wrong_number_or_shape_are_never_used() -> None:
    for scores in (torch.zeros(2), torch.zeros(3, 1), torch.tensor(0.0)):

        class Wrong:
            def score(self, conversations, replies, scores=scores):
                return scores

        reward_function = ScorerReward({"a": Wrong()}, {"a": 1.0}, retries=0)
        assert rewards_of(reward_function.rewards(chats("x", "y", "z"))) == [None] * 3


def test_a_text_as_prompt_cannot_be_scored_and_is_refused() -> None:
    with pytest.raises(InputError, match="needed: a conversation"):
        ScorerReward({"a": LONG}, {"a": 1.0}).rewards([sample("x")])


def test_moments_over_reference_replies_add_up_over_ranks() -> None:
    broken = FunctionScorer(
        lambda _, replies: [1.0 if reply == "y" else len(reply) / (reply != "xx") for reply in replies]
    )
    reward_function = ScorerReward({"a": LONG, "b": broken}, {"a": 1.0, "b": 1.0}, retries=0)
    parts = [
        reference_moments(reward_function, chats("x", "xxx")),
        reference_moments(reward_function, chats("xx", "xxxxxx", "y")),
    ]
    sums = {name: parts[0][name] + parts[1][name] for name in reward_function.scorers}
    assert sums["a"].tolist() == [13.0, 51.0, 5.0]
    assert sums["b"].tolist() == [11.0, 47.0, 4.0]  # "xx" divides by 0
    assert to_moments(sums)["a"] == pytest.approx((2.6, (51 / 5 - 2.6**2) ** 0.5))


@pytest.mark.parametrize("texts", [(), ("x",), ("x", "y", "z")])
def test_a_scorer_with_equal_scores_or_none_cannot_be_normalised(texts: tuple[str, ...]) -> None:
    sums = reference_moments(ScorerReward({"flat": LONG}, {"flat": 1.0}), chats(*texts))
    with pytest.raises(InputError, match=f"scorer flat gave {len(texts)} reference replies"):
        to_moments(sums)


def test_invalid_scorers_weights_and_moments_are_refused() -> None:
    for weights, moments, clip, named in (
        ({"b": 1.0}, None, 10.0, "weights for"),
        ({"a": 0.0}, None, 10.0, "not all 0"),
        ({"a": NAN}, None, 10.0, "finite"),
        ({"a": 1.0}, {"b": (0.0, 1.0)}, 10.0, "moments for"),
        ({"a": 1.0}, {"a": (0.0, 0.0)}, 10.0, "std above 0"),
        ({"a": 1.0}, {"a": (NAN, 1.0)}, 10.0, "finite"),
        ({"a": 1.0}, None, 0.0, "clip"),
    ):
        with pytest.raises(InputError, match=named):
            ScorerReward({"a": LONG}, weights, moments, clip)
    with pytest.raises(InputError, match="each of the scorers"):
        ScorerReward({}, {})


def test_a_judge_that_compares_scores_groups_together_and_lone_replies_against_the_start(tmp_path) -> None:
    judge = comparing_judge(lambda a, b: None if "odd" in (a, b) else float(len(a) > len(b)), tmp_path)
    reward = ScorerReward({"j": judge}, {"j": 2.0})
    samples, asked = chats("a", "bbb", "cc", "dd", "odd"), Conversation((Turn("user", "a question"),))
    grouped = [
        replace(one, group=group, request=replace(one.request, prompt=asked))
        for one, group in zip(samples, (0, 0, 1, 2, 2), strict=True)
    ]
    found = reward.rewards(grouped)
    strength = bradley_terry(2, {(0, 1): 0.0})[0]
    assert rewards_of(found)[:2] == pytest.approx([2 * strength, -2 * strength])
    assert [one.reward for one in found[2:]] == [None] * 3
    assert "had one reply to its prompt" in found[2].error
    assert "gave no verdict on its comparisons" in found[3].error
    alone = [replace(one, group=None) for one in grouped]
    assert rewards_of(reward.rewards(alone[:1])) == [1.0], "2 times a half"
    assert rewards_of(reward.rewards(alone[1:2])) == [2.0]


def test_replies_of_one_group_to_different_prompts_are_not_compared(tmp_path) -> None:
    judge = comparing_judge(lambda a, b: 1.0, tmp_path)
    first, second = (replace(one, group=0) for one in (chats("a")[0], chats("b")[0]))
    asked = Conversation((Turn("user", "another question"),))
    second = replace(second, request=replace(second.request, prompt=asked))
    found = ScorerReward({"j": judge}, {"j": 1.0}).rewards([first, second])
    assert [one.reward for one in found] == [None, None]

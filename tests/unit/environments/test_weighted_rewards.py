"""Several reward functions: their weighted sum, each function's own reward, and what fails."""

from typing import Any

import pytest
from acting import TOKENIZER
from rewarded import rewards_of, sample

from lmgym.environments.function_reward import FunctionReward, WeightedRewards
from lmgym.errors import InputError

TWO = [sample("a", answer=1), sample("bbb", answer=2)]


def lengths(outputs: list[str], **_: Any) -> list[float]:
    return [float(len(output)) for output in outputs]


def answers(outputs: list[str], answer: list[float], **_: Any) -> list[float]:
    return answer


def broken(outputs: list[str], **_: Any) -> list[float]:
    raise OSError("away")


def several(weights: dict[str, float], **functions: Any) -> WeightedRewards:
    return WeightedRewards({name: FunctionReward(one, TOKENIZER, None, 0) for name, one in functions.items()}, weights)


def test_the_reward_is_the_weighted_sum_and_each_functions_reward_is_a_score() -> None:
    reward = several({"length": 0.5, "answer": -2.0}, length=lengths, answer=answers)
    found = reward.rewards(TWO)
    assert rewards_of(found) == [0.5 - 2, 1.5 - 4]
    assert [dict(one.scores) for one in found] == [{"length": 1.0, "answer": 1.0}, {"length": 3.0, "answer": 2.0}]
    assert not any(one.error for one in found)
    assert reward.rewards([]) == []


def test_a_function_of_weight_0_is_only_logged_and_may_fail() -> None:
    found = several({"length": 1.0, "answer": 0.0, "broken": 0.0}, length=lengths, answer=answers, broken=broken)
    rewards = found.rewards(TWO)
    assert rewards_of(rewards) == [1.0, 3.0]
    assert [dict(one.scores) for one in rewards] == [{"length": 1.0, "answer": 1.0}, {"length": 3.0, "answer": 2.0}]
    assert rewards[0].error.startswith("broken: raised OSError: away")


def test_a_reward_with_a_failed_part_has_failed_and_is_not_0() -> None:
    [first, second] = several({"length": 1.0, "broken": 1.0}, length=lengths, broken=broken).rewards(TWO)
    assert (first.reward, second.reward) == (None, None)
    assert dict(first.scores) == {"length": 1.0}
    assert first.error.startswith("broken: raised OSError: away")


def test_a_reward_for_each_token_is_refused_among_several() -> None:
    found = several({"dense": 1.0, "length": 1.0}, dense=lambda outputs, **_: [[1, 2], 3], length=lengths).rewards(TWO)
    assert rewards_of(found) == [None, 6.0]
    assert found[0].error == "dense: gave a list for a sample; needed: a number, of one of several functions"


@pytest.mark.parametrize("weights", [{"length": 0.0}, {}, {"length": 1.0, "other": 1.0}])
def test_weights_are_one_for_each_function_and_not_all_0(weights: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"weights .* for reward functions \['length'\]; needed: a number for each"):
        several(weights, length=lengths)


def test_columns_that_a_function_lacks_or_does_not_take_are_refused_by_its_name() -> None:
    def no_columns(samples, prompts, outputs, tokenizer) -> list[float]:
        return [0.0] * len(outputs)

    several({"length": 1.0, "answer": 1.0}, length=lengths, answer=answers).check(["answer"])
    with pytest.raises(InputError, match=r"^answer: the reward function cannot be called with .*missing.*answer"):
        several({"length": 1.0, "answer": 1.0}, length=lengths, answer=answers).check([])
    with pytest.raises(InputError, match=r"^plain: the reward function cannot be called with .*answer"):
        several({"plain": 1.0}, plain=no_columns).check(["answer"])

"""Several reward functions: their weighted sum, each function's own reward, and what fails."""

from typing import Any

import pytest
import torch
from acting import TOKENIZER
from rewarded import rewards_of, sample

from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

TWO = [sample("a", answer=1), sample("bbb", answer=2)]


def lengths(outputs: list[str], **_: Any) -> list[float]:
    return [float(len(output)) for output in outputs]


def answers(outputs: list[str], answer: list[float], **_: Any) -> list[float]:
    return answer


def several(weights: dict[str, float], **functions: Any) -> ScorerReward:
    named = {name: FunctionReward(one, TOKENIZER, None, 0, name) for name, one in functions.items()}
    return ScorerReward(named, weights)


def test_a_reward_for_each_token_is_refused_among_several() -> None:
    found = several({"dense": 1.0, "length": 1.0}, dense=lambda outputs, **_: [[1, 2], 3], length=lengths).rewards(TWO)
    assert rewards_of(found) == [None, 6.0]
    assert found[0].error == "dense: gave a list for a sample; needed: a number, of one of several functions"


def test_a_column_that_a_function_requires_and_lacks_is_refused_by_its_name_and_one_that_it_does_not_take_is_not() -> (
    None
):
    def no_columns(samples, prompts, outputs, tokenizer) -> list[float]:
        return [0.0] * len(outputs)

    several({"length": 1.0, "answer": 1.0}, length=lengths, answer=answers).check(["answer"])
    with pytest.raises(InputError, match=r"^answer requires answer, .*there are samples, .* and no columns"):
        several({"length": 1.0, "answer": 1.0}, length=lengths, answer=answers).check([])
    several({"plain": 1.0}, plain=no_columns).check(["answer"])


def solved(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    return [None if one == "" else float(one in text) for text, one in zip(completions, answer, strict=True)]


def test_a_function_in_trls_form_may_abstain_and_the_sum_is_of_the_others() -> None:
    samples = [sample("so 7", answer="7"), sample("so", answer=""), sample("so 8", answer="9")]
    reward = several({"length": 0.5, "solved": 2.0}, length=lengths, solved=solved)
    found = reward.rewards(samples)
    assert rewards_of(found) == [2 + 2, 1.0, 2.0]
    assert dict(found[1].scores) == {"length": 2.0}
    alone = several({"solved": 2.0}, solved=solved).rewards(samples)
    assert rewards_of(alone) == [2.0, None, 0.0]
    assert alone[1].error == "no function rewards this reply: each gave None"
    assert rewards_of(FunctionReward(solved, TOKENIZER, None, 0).rewards(samples)) == [1.0, None, 0.0]


def test_a_single_function_may_reward_tokens_with_its_weight() -> None:
    [found] = several({"dense": 2.0}, dense=lambda outputs, **_: [[1, 2]]).rewards(TWO[:1])
    assert (found.reward, dict(found.scores)) == ((2.0, 4.0), {"dense": 3.0})


class Longest:
    """A scorer, which reads no blanks."""

    def score(self, conversations: list[Conversation], replies: list[str]) -> Any:
        return torch.tensor([float(len(reply)) for reply in replies])


def test_functions_and_scorers_are_summed_each_normalised_or_not() -> None:
    samples = [sample(" ab", prompt=Conversation((Turn("user", "hi"),)))]
    sources = {"function": FunctionReward(lengths, TOKENIZER, None, 0), "scorer": Longest()}
    weights = {"function": 1.0, "scorer": 10.0}
    assert rewards_of(ScorerReward(sources, weights).rewards(samples)) == [3 + 20]
    normalised = ScorerReward(sources, weights, {"scorer": (1.0, 0.5)}, clip=1.5)
    assert rewards_of(normalised.rewards(samples)) == [3 + 10 * 1.5]
    with pytest.raises(InputError, match=r"moments for \['other'\]; needed: for some of"):
        ScorerReward(sources, weights, {"other": (0.0, 1.0)})

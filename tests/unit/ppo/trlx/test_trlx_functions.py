"""trlx's reward_fn and metric_fn: with or without the arguments they do not need."""

from functools import partial
from typing import Any

import pytest
import torch
from acting import TOKENIZER as BYTES

from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import Sample, ScoreRequest
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.text import tokenize_texts
from ppo.trlx.functions import adapt_metric, adapt_reward, refuse_unfit


class Nine:
    """A tokenizer's part that functions read."""

    eos_token, eos_token_id = "</s>", 9


TOKENIZER = Nine()
GIVEN: dict[str, Any] = {
    "samples": ["ab", "cde"], "prompts": ["a", "c"], "outputs": ["b", "de"], "tokenizer": TOKENIZER,
    "output_ids": [[1, 9], [2, 3]], "answer": [5, 6],
}  # fmt: skip


class Lengths:
    def __call__(self, samples, answer) -> list[int]:
        return [len(sample) + one for sample, one in zip(samples, answer, strict=True)]


def scaled(factor, outputs, **kwargs) -> list[float]:
    return [factor * len(output) for output in outputs]


@pytest.mark.parametrize(
    ("function", "rewards"),
    [
        (lambda samples, **kwargs: [len(sample) for sample in samples], [2, 3]),
        (lambda samples: [len(sample) for sample in samples], [2, 3]),
        (lambda samples, prompts, outputs: [len(output) for output in outputs], [1, 2]),
        (lambda outputs, *, tokenizer: [tokenizer.eos_token_id for _ in outputs], [9, 9]),
        (lambda **kwargs: kwargs["answer"], [5, 6]),
        (lambda **kwargs: [len(kwargs) for _ in range(2)], [5, 5]),
        (lambda samples, output_ids, **kwargs: [ids[-1] for ids in output_ids], [9, 3]),
        (lambda samples, **kwargs: torch.tensor([0.5, 1.0]), [0.5, 1.0]),
        (Lengths(), [7, 9]),
        (partial(scaled, 2), [2, 4]),
    ],
)
def test_a_function_gets_what_it_has_parameters_for(function, rewards: list) -> None:
    refuse_unfit(function, "reward_fn", ["answer"])
    assert adapt_reward(function)(**GIVEN) == rewards
    metric = {name: value for name, value in GIVEN.items() if name != "output_ids"}
    if "output_ids" not in getattr(getattr(function, "__code__", None), "co_varnames", ()):
        assert list(adapt_metric(function)(**metric)) == rewards


def test_a_reward_for_each_token_of_the_text_gets_a_0_for_the_eos() -> None:
    dense = adapt_reward(lambda outputs, **kwargs: [[1.0] * len(output) for output in outputs])
    assert dense(**GIVEN) == [[1.0, 0.0], [1.0, 1.0]]
    tensors = adapt_reward(lambda outputs, **kwargs: [torch.ones(len(output)) for output in outputs])
    assert list(tensors(**GIVEN)[0]) == [1.0, 0.0]
    whole = adapt_reward(lambda output_ids, **kwargs: [[1.0] * len(ids) for ids in output_ids])
    assert whole(**GIVEN) == [[1.0, 1.0], [1.0, 1.0]]


def test_a_program_that_tokenises_the_outputs_rewards_what_was_sampled() -> None:
    """As trlx's ppo_dense_sentiments, which has two rewards a reply, the second at its end."""

    def dense(samples, outputs, tokenizer, **kwargs):
        rewards = []
        for output in outputs:
            found = [0.0] * len(tokenizer(output).input_ids)
            found[0], found[-1] = 0.25, 1.0
            rewards.append(found)
        return rewards

    texts = ["hello there, how are you?", "one two"]
    letters = [[tokenize_texts(BYTES, [letter])[0][0] for letter in text] for text in texts]
    replies = [
        Completion(texts[0], "eos", (*letters[0], BYTES.eos_token_id)),
        Completion(texts[1], "length", tuple(letters[1])),
    ]
    samples = [Sample(ScoreRequest("policy", "", reply.text), "", reply) for reply in replies]
    for sample, text, found in zip(
        samples, texts, FunctionReward(adapt_reward(dense), BYTES, None).rewards(samples), strict=True
    ):
        reward = found.reward
        assert isinstance(reward, tuple), found.error
        assert len(reward) == len(sample.completion.ids)
        first = BYTES(text, return_offsets_mapping=True).offset_mapping[0]
        assert reward[len(text) - 1] == 1.0, "the last letter, not an eos"
        assert reward[first[1] - 1] == 0.25, "the last letter of the first token"
        assert sum(reward) == 1.25


def test_what_is_no_list_of_rewards_is_left_to_the_caller() -> None:
    assert adapt_reward(lambda **kwargs: [1.0])(**GIVEN) == [1.0]
    assert adapt_reward(lambda **kwargs: None)(**GIVEN) is None


async def waiting(samples) -> list[float]:
    return [0.0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda texts: [0.0], r"reward_fn has the parameter\(s\) texts, and is called by name with samples, prompts"),
        (lambda samples, wanted: [0.0], r"parameter\(s\) wanted"),
        (lambda samples, /: [0.0], r"parameter\(s\) samples"),
        (waiting, "needed: a plain function"),
        ("reward", "reward_fn is 'reward'; needed: a plain function"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(function, said: str) -> None:
    with pytest.raises(InputError, match=said):
        refuse_unfit(function, "reward_fn", ["answer"])
    refuse_unfit(lambda samples, wanted=1, *more, **others: [0.0], "reward_fn", [])

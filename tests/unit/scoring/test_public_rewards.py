"""Reward functions with the signatures of public repositories give what a direct call of each gives, value by value."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from acting import TOKENIZER
from public_rewards import FUNCTIONS, Call, call_trl_chat, call_trl_text

from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import Sample, ScoreRequest
from lmgym.generation.protocol import Completion
from lmgym.text import Conversation, Turn, ensure_template, render, tokenize_texts

SAID = [
    (" <think> 2 and 2 </think> <answer>4</answer>", "4", "math"),
    ("<think>\nwell\n</think>\n<answer>\n7\n</answer>\n", "7", "chat"),
    ("\n1. First the dog.\n- Next the dog, \\boxed{12}.", "12", "math"),
    ("#### 9", "9", "chat"),
    ("a a a a and a \\boxed{3}", "5", "math"),
    ("Thanks. It is 44.", "44", "chat"),
]


def replies(is_text: bool) -> list[dict[str, Any]]:
    """One to each of six prompts, with the columns of its row."""
    ensure_template(TOKENIZER)
    found = []
    for number, (reply, answer, task) in enumerate(SAID):
        prompt = f"What is number {number}?"
        chat = Conversation((Turn("user", prompt),), is_text=is_text)
        columns = {
            "answer": answer, "solution": f"\\boxed{{{answer}}}" if number != 3 else "?", "task": task,
            "target": int(answer), "nums": [2, 2] if number == 0 else [int(answer)], "label": answer,
            "data_source": "openai/gsm8k" if number % 2 else "lighteval/MATH",
            "reward_model": {"style": "rule", "ground_truth": answer}, "extra_info": {"index": number},
            "original_output": "x" * number, "original_summaries": "it is the dog",
        }  # fmt: skip
        ids = (*tokenize_texts(TOKENIZER, [reply])[0], TOKENIZER.eos_token_id)
        found.append(
            {"prompt": prompt, "messages": [{"role": "user", "content": prompt}], "conversation": chat, "reply": reply,
             "prompt_text": render(TOKENIZER, chat), "ids": ids, "columns": columns}
        )  # fmt: skip
    return found


def as_samples(given: list[dict[str, Any]]) -> list[Sample]:
    return [
        Sample(
            ScoreRequest("policy", one["conversation"], one["reply"], one["columns"]),
            one["prompt_text"],
            Completion(one["reply"], "eos", one["ids"], (0.0,) * len(one["ids"]), len(one["ids"])),
        )
        for one in given
    ]


def test_there_are_sixty_of_them_and_no_two_are_the_same() -> None:
    assert len({id(function) for _, function in FUNCTIONS}) == len(FUNCTIONS) == 60


@pytest.mark.parametrize(("call", "function"), FUNCTIONS, ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_each_gives_what_a_direct_call_gives(call: Call, function: Callable[..., Any]) -> None:
    given = replies(is_text=call is not call_trl_chat)
    expected = call(function, given, TOKENIZER)
    reward = FunctionReward(function, TOKENIZER, timeout=None, retries=0)
    reward.check(given[0]["columns"])
    found = reward.rewards(as_samples(given))
    numbers = [sum(one.reward) if isinstance(one.reward, tuple) else one.reward for one in found]
    for number, wanted, one in zip(numbers, expected, found, strict=True):
        if wanted is None or (isinstance(wanted, float) and math.isnan(wanted)):
            assert (number, one.error) == (None, "no function rewards this reply: each gave None")
        else:
            assert number == pytest.approx(float(sum(wanted) if isinstance(wanted, list) else wanted), rel=1e-6), one


def test_a_trl_function_for_messages_and_one_for_texts_tell_the_rows_apart() -> None:
    def kinds(prompts, completions, **_):
        return [float(isinstance(p, str)) + 2 * isinstance(c, str) for p, c in zip(prompts, completions, strict=True)]

    for is_text, kind in ((True, 3.0), (False, 0.0)):
        found = FunctionReward(kinds, TOKENIZER, None, 0).rewards(as_samples(replies(is_text)))
        assert {one.reward for one in found} == {kind}
        direct = call_trl_text if is_text else call_trl_chat
        assert direct(kinds, replies(is_text), TOKENIZER) == [kind] * len(SAID)

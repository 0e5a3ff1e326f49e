"""Forms of reward functions: which one a function is in, what it may ask for, and how coroutines end."""

import asyncio
import re
import threading
from typing import Any

import pytest

from lmgym.environments.function_reward import FunctionReward
from lmgym.errors import InputError
from lmgym.scoring.function_forms import Given, RewardCall, RewardInput, awaited
from lmgym.text import Conversation, Turn

CHAT = Conversation((Turn("user", "hi"),), persona="Be kind.")
ROWS = Given(frozenset(("answer", "label")), of_policy=True)


def asked(reply: str = " a", **columns: Any) -> RewardInput:
    return RewardInput(CHAT, reply, "<hi>", (5, 6), columns)


@pytest.mark.parametrize(
    ("function", "library"),
    [
        (lambda completions: 0, "TRL"),
        (lambda prompts, completions, **kwargs: 0, "TRL"),
        (lambda solution_str, extra_info=None: 0, "verl"),
        (lambda solution_strs, **kwargs: 0, "verl"),
        (lambda queries, prompts: 0, "OpenRLHF"),
        (lambda samples: 0, "trlx"),
        (lambda outputs, prompts: 0, "trlx"),
        (lambda conversations, replies: 0, "lmgym"),
        (lambda completion_ids, **kwargs: 0, "TRL"),
        (lambda output_ids, **columns: 0, "trlx"),
        (lambda conversations, completion_ids: 0, "lmgym"),
    ],
)
def test_one_parameter_decides_the_form(function: Any, library: str) -> None:
    assert RewardCall("f", function).form.library == library


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda a, b: 0, r"f\(a, b\) has no parameter that says its form"),
        (lambda **kwargs: 0, r"f\(kwargs\) has no parameter that says its form"),
        (lambda prompts, responses: 0, "has no parameter that says its form"),
        (lambda completions, samples: 0, "has completions, samples, of different forms"),
        (3, "f is 3, no function"),
        (max, "f does not tell its parameters|has no parameter that says its form"),
    ],
)
def test_a_function_of_no_form_or_of_two_is_refused_with_all_forms(function: Any, found: str) -> None:
    with pytest.raises(InputError, match=found) as error:
        RewardCall("f", function)
    for call in (
        "f(prompts, completions, completion_ids, **columns) of TRL",
        "f(data_source, solution_str, ground_truth, extra_info) of verl",
        "f(queries, prompts, labels) of OpenRLHF",
        "f(samples, prompts, outputs, tokenizer, **columns) of trlx",
        "f(conversations, replies, **columns) of lmgym",
    ):
        assert call in str(error.value)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (lambda completions, answer: 0, ROWS, ""),
        (
            lambda completions, gold: 0,
            ROWS,
            "f requires gold, .* are prompts, completions, completion_ids, token",
        ),
        (lambda completions, gold: 0, ROWS, "and the columns answer, label; needed: one of these names, or a default"),
        (lambda completions, gold=None: 0, ROWS, ""),
        (lambda completions, completion_ids: 0, Given(), "requires completion_ids, .*and no columns"),
        (lambda completions, trainer_state: 0, ROWS, "requires trainer_state"),
        (lambda answer, /, completions: 0, ROWS, "requires answer"),
        (lambda solution_str, ground_truth: 0, ROWS, "requires ground_truth"),
        (lambda solution_str, ground_truth: 0, Given(frozenset(("ground_truth",))), ""),
        (lambda solution_str, ground_truth, extra_info: 0, Given(frozenset(("reward_model",))), ""),
        (lambda solution_str, data_source: 0, ROWS, "requires data_source"),
        (lambda queries, labels: 0, ROWS, ""),
        (lambda queries, labels: 0, Given(frozenset(("answer",))), "requires labels"),
        (lambda outputs, tokenizer: 0, Given(), ""),  # trlx's own, None without a policy
        (lambda conversations, tokenizer: 0, Given(), "requires tokenizer"),
        (lambda conversations, output_ids: 0, ROWS, ""),
        (lambda completions, **kw: 0, Given(frozenset(("prompts",))), "columns named prompts, .*functions of TRL"),
        (lambda completions, **kw: 0, Given(frozenset(("samples",))), ""),
        (lambda samples, output_ids: 0, Given(frozenset(("output_ids",)), True), "columns named output_ids"),
        (lambda samples, **kw: 0, Given(frozenset(("output_ids",)), True), ""),
    ],
)
def test_what_a_command_has_not_is_refused_with_what_there_is(function: Any, given: Given, message: str) -> None:
    call = RewardCall("f", function)
    if message:
        with pytest.raises(InputError, match=message):
            call.check(given)
    else:
        call.check(given)


def test_arguments_are_bound_by_name_and_columns_go_where_the_form_has_them() -> None:
    seen: list[dict[str, Any]] = []

    def trl(completions, answer, label=0, **rest):
        seen.append({"completions": completions, "answer": answer, "label": label, **rest})
        return [1.0]

    def openrlhf(queries, **rest):
        seen.append({"queries": queries, **rest})
        return [1.0]

    inputs = [asked(answer="4", other="x")]
    assert RewardCall("f", trl)(inputs) == [1.0]
    assert RewardCall("f", openrlhf)(inputs) == [1.0]
    said = {"role": "assistant", "content": " a"}
    prompts = [[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]]
    ids = {"completion_ids": [[5, 6]]}
    assert seen[0] == {"completions": [[said]], "answer": ["4"], "label": 0, "other": ["x"], "prompts": prompts, **ids}
    assert seen[1] == {"queries": ["<hi> a"], "prompts": ["<hi>"]}
    with pytest.raises(ValueError, match="the column reward_model is 'rule'; needed: an object with ground_truth"):
        RewardCall("f", lambda solution_str, ground_truth: 0)([asked(reward_model="rule")])


def test_a_column_that_is_required_and_that_a_batch_lacks_is_none() -> None:
    assert RewardCall("f", lambda outputs, answer: answer)([asked(), asked()]) == [None, None]


def test_coroutines_run_at_once_and_on_one_loop_from_call_to_call() -> None:
    loops, together = [], []

    async def score(solution_str: str) -> float:
        loops.append(asyncio.get_running_loop())
        together.append(solution_str)
        while len(together) < 3:  # ends only if the three run at once
            await asyncio.sleep(0)
        return float(len(solution_str))

    call = RewardCall("f", score)
    assert call([asked("a"), asked("bb"), asked("ccc")]) == [1.0, 2.0, 3.0]
    assert call([asked("dddd")]) == [4.0]
    assert len({id(loop) for loop in loops}) == 1


def test_an_exception_of_a_coroutine_is_raised_once_all_have_ended() -> None:
    ended = []

    async def score(solution_str: str) -> float:
        await asyncio.sleep(0)
        ended.append(solution_str)
        return 1 / (len(solution_str) - 1)

    with pytest.raises(ZeroDivisionError):
        RewardCall("f", score)([asked("a"), asked("bb")])
    assert sorted(ended) == ["a", "bb"]


def test_coroutines_are_awaited_where_a_loop_runs_already_as_in_a_notebook() -> None:
    async def two() -> int:
        return 2

    async def cell() -> list[Any]:
        return awaited([1, two()])

    assert asyncio.run(cell()) == [1, 2]


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_coroutine_that_exits_or_stalls_is_a_failure_and_the_next_call_works(timeout: float | None) -> None:
    from rewarded import rewards_of, sample

    async def leave(outputs):
        raise SystemExit(3)

    async def score(outputs):
        await asyncio.sleep(0)
        return [1.0]

    [found] = FunctionReward(leave, None, timeout, 0).rewards([sample("a")])
    assert found.reward is None
    assert "SystemExit(3)" in found.error
    assert rewards_of(FunctionReward(score, None, timeout, 0).rewards([sample("a")])) == [1.0]
    release = threading.Event()

    async def stall(outputs):
        release.wait(30)
        return [1.0]

    if timeout is not None:
        [found] = FunctionReward(stall, None, 0.3, 0).rewards([sample("a")])
        assert re.search("no answer within", found.error)
        assert rewards_of(FunctionReward(score, None, timeout, 0).rewards([sample("a")])) == [1.0]
        release.set()

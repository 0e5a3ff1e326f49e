"""Reward functions in Python: their arguments, valid and invalid answers, and every kind of failure."""

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patience import wait_until
from rewarded import rewards_of, sample

from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import RewardFunction, Sample, SampleReward
from lmgym.environments.rollout_engine import run_episodes
from lmgym.environments.scored_chat import ScoredChat
from lmgym.errors import InputError, RunStopped
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.scoring import retries as retries_module
from ppo.config import PPOConfig, RolloutConfig
from ppo.monitoring.safeguards import stop_if_too_many_failed
from ppo.task_setups import text_with_function

ROOT = Path(__file__).parents[3]

NAN, INF = float("nan"), float("inf")
TOKENIZER = object()


THREE = [sample("a"), sample("bb", 3), sample("ccc", 4)]


def reward_samples(
    function: Callable[..., Any], samples: Sequence[Sample] = THREE, **settings: Any
) -> list[SampleReward]:
    settings = {"timeout": 20.0, "retries": 1, **settings}
    return FunctionReward(function, TOKENIZER, **settings).rewards(samples)


def lengths(outputs: list[str], **_: Any) -> list[int]:
    return [len(output) for output in outputs]


def test_a_function_is_called_once_with_trlxs_arguments_and_the_tasks_columns() -> None:
    calls = []

    def reward_fn(samples, prompts, outputs, tokenizer, **columns):
        calls.append((samples, prompts, outputs, tokenizer, columns))
        return [1, 2.5]

    batch = [sample("a", answer="x", level=3), sample("bb", answer="y")]
    assert rewards_of(reward_samples(reward_fn, batch)) == [1.0, 2.5]
    columns = {"answer": ["x", "y"], "level": [3, None]}
    assert calls == [(["Say: a", "Say: bb"], ["Say: ", "Say: "], ["a", "bb"], TOKENIZER, columns)]
    reward_function: RewardFunction = FunctionReward(lengths, TOKENIZER)
    assert reward_function.rewards([]) == []


@pytest.mark.parametrize(
    "answer",
    [
        [1, 2, 3],
        (1.0, 2.0, 3.0),
        np.array([1, 2, 3], dtype=np.float32),
        torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
        [torch.tensor(1), np.float64(2), 3],
        (n for n in (1, 2, 3)),
        [True, 2, 3],
    ],
)
def test_rewards_may_be_any_ordered_collection_of_numbers(answer: Any) -> None:
    given = list(answer) if hasattr(answer, "__next__") else answer
    found = reward_samples(lambda samples, **_: given)
    assert rewards_of(found) == [1.0, 2.0, 3.0]
    assert all(type(one.reward) is float and not one.error for one in found)


def test_a_list_for_a_sample_is_a_reward_for_each_of_its_tokens() -> None:
    found = reward_samples(lambda samples, **_: [[1, 2], torch.tensor([1.0, 2.0, 3.0]), 7])
    assert rewards_of(found) == [(1.0, 2.0), (1.0, 2.0, 3.0), 7.0]


def test_only_a_function_with_a_parameter_output_ids_gets_the_sampled_ids() -> None:
    calls: list[Any] = []

    def by_name(outputs, output_ids, **columns):
        calls.append((output_ids, columns))
        output_ids[0].pop()
        return [[0.5] * tokens for tokens in (2, 3, 4)]

    assert rewards_of(reward_samples(by_name)) == [(0.5,) * 2, (0.5,) * 3, (0.5,) * 4]
    [(ids, columns)] = calls
    assert ids == [[0], [0, 1, 2], [0, 1, 2, 3]]
    assert sorted(columns) == ["prompts", "samples", "tokenizer"]
    assert [one.completion.ids for one in THREE] == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]  # the function changed a copy

    def by_column(outputs, **columns):
        calls.append(columns)
        return [0.0] * len(outputs)

    reward_samples(by_column)
    reward_samples(by_column, [sample("a", output_ids="mine")])
    assert "output_ids" not in calls[1]
    assert calls[2]["output_ids"] == ["mine"]


def test_dense_rewards_fit_replies_that_end_by_eos_and_by_length(talkative_models: dict[str, Path]) -> None:
    text = (ROOT / "docs/ppo.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "output_ids" in block]
    names: dict[str, Any] = {}
    exec(example, names)
    folder = str(talkative_models["gpt2"])
    tokenizer = load_tokenizer(folder)
    generator = LocalGenerator(load_policy(folder, tokenizer).eval(), tokenizer)
    tasks = [{"prompt": f"hello {i}"} for i in range(16)]
    episodes = run_episodes(
        [ScoredChat() for _ in tasks], tasks, list(range(16)), generator, tokenizer, Sampling(max_new_tokens=6),
        FunctionReward(names["reward"], tokenizer, retries=0),
    )  # fmt: skip
    steps = [episode.steps[0] for episode in episodes]
    assert {step.completion.finish_reason for step in steps} == {"eos", "length"}
    assert not any(step.error for step in steps)
    for step in steps:
        assert isinstance(step.reward, tuple)
        repeats = len(step.completion.ids) - len(set(step.completion.ids))
        assert sum(step.reward) == pytest.approx(step.completion.text.count("thank") - 0.1 * repeats)


def test_a_column_called_output_ids_is_refused_where_the_function_asks_for_the_sampled_ids(tmp_path: Path) -> None:
    def reward(samples, prompts, outputs, tokenizer, output_ids):
        return [[0.0] * len(ids) for ids in output_ids]

    def write(name: str, rows: list[dict[str, Any]]) -> str:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    plain = write("plain.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    named = write("named.jsonl", [{"prompt": "c", "output_ids": [1]}, {"prompt": "d", "output_ids": [2]}])
    config = PPOConfig(name="dense", rollout=RolloutConfig(prompts=plain, eval_size=1))
    text_with_function(reward)(config, TOKENIZER)
    for rollout in (RolloutConfig(prompts=named, eval_size=1), RolloutConfig(prompts=plain, eval_prompts=named)):
        with pytest.raises(InputError, match=r"columns named output_ids, .*other names"):
            text_with_function(reward)(replace(config, rollout=rollout), TOKENIZER)
        if not rollout.eval_prompts:
            text_with_function(lengths)(replace(config, rollout=rollout), TOKENIZER)


def test_a_dense_reward_of_another_length_than_the_tokens_fails_alone() -> None:
    found = reward_samples(lambda samples, **_: [[1, 2, 3], [1, 2, NAN], [1, 2, 3, 4]])
    assert rewards_of(found) == [None, None, (1.0, 2.0, 3.0, 4.0)]
    assert "3 numbers for 2 sampled tokens" in found[0].error
    assert "a parameter output_ids of the function is given the sampled ids" in found[0].error
    assert "nan" in found[1].error
    [empty] = reward_samples(lambda samples, **_: [[]], [sample("", tokens=0)])
    assert empty.reward is None


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (NAN, "nan"),
        (INF, "inf"),
        (-INF, "-inf"),
        (1e39, "finite"),
        (1e38, "at most 1,000,000 in size"),
        (-1_000_001, "-1000001.0 is no reward"),
        (10**400, "too large"),
        (None, "NoneType"),
        ("1", "str"),
        ({}, "dict"),
    ],
)
def test_an_invalid_reward_is_retried_and_then_fails_alone(bad: Any, named: str) -> None:
    calls = []

    def reward_fn(outputs, **_):
        calls.append(len(outputs))
        return [1.0, bad, 3.0]

    found = reward_samples(reward_fn, retries=2)
    assert rewards_of(found) == [1.0, None, 3.0]
    assert named in found[1].error
    assert calls == [3, 3, 3]


def test_valid_rewards_of_one_attempt_are_kept() -> None:
    answers = iter([[1.0, NAN, NAN], [NAN, 20.0, NAN], [NAN, NAN, 300.0]])
    assert rewards_of(reward_samples(lambda samples, **_: next(answers), retries=5)) == [1.0, 20.0, 300.0]
    assert next(answers, "none left") == "none left"


def test_a_sample_that_makes_the_function_raise_does_not_lose_the_others() -> None:
    calls = []

    def reward_fn(outputs, **_):
        calls.append(list(outputs))
        return [{"a": 1.0, "ccc": 3.0}[output] for output in outputs]

    found = reward_samples(reward_fn)
    assert rewards_of(found) == [1.0, None, 3.0]
    assert "KeyError: 'bb'" in found[1].error
    assert "test_function_reward.py:" in found[1].error  # where, in the user's own file
    assert calls == [["a", "bb", "ccc"]] * 2 + [["a"], ["bb"], ["ccc"]]


@pytest.mark.parametrize("answer", [[1.0, 2.0], [1.0] * 4, [], np.ones(2), (1.0 for _ in range(9**9))])
def test_a_wrong_number_of_rewards_is_never_used(answer: Any) -> None:
    found = reward_samples(lambda samples, **_: answer, retries=0)
    assert rewards_of(found) == [None] * 3
    assert "one a sample" in found[0].error


def test_after_a_wrong_number_of_rewards_each_sample_is_tried_alone() -> None:
    def without_the_empty(outputs, **_):
        return [float(len(output)) for output in outputs if output]

    found = reward_samples(without_the_empty, [sample("a"), sample(""), sample("ccc")])
    assert rewards_of(found) == [1.0, None, 3.0]
    assert "gave 0 rewards for 1 samples" in found[1].error


def test_the_error_of_the_batch_is_reported_if_each_sample_alone_fails_in_another_way() -> None:
    found = reward_samples(lambda outputs, **_: [0.0] * (len(outputs) - 1), [sample("a")] * 16)
    assert rewards_of(found) == [None] * 16
    assert found[0].error.startswith("gave 15 rewards for 16 samples; needed: one a sample; asked for alone: gave 0")
    with pytest.raises(RunStopped, match=r"16 of 16 rewards .* one of them: gave 15 rewards for 16 samples"):
        stop_if_too_many_failed(16, 16, 0.1, found[0].error)


@pytest.mark.parametrize("answer", [1.0, None, "123", {"a": 1, "b": 2, "c": 3}, {1.0, 2.0, 3.0}, torch.tensor(1.0)])
def test_an_answer_that_is_no_list_fails_for_all_samples(answer: Any) -> None:
    found = reward_samples(lambda samples, **_: answer)
    assert rewards_of(found) == [None] * 3
    assert all(one.error for one in found)


def test_a_function_that_stalls_is_left_behind_and_the_others_have_their_rewards() -> None:
    release = threading.Event()

    def reward_fn(outputs, **_):
        if "bb" in outputs:
            release.wait(60)
        return [float(len(output)) for output in outputs]

    found = reward_samples(reward_fn, timeout=1.5)
    # two whole attempts and one alone; the thread of an answer may take a moment to end
    wait_until(lambda: sum(thread.name == "reward" for thread in threading.enumerate()) == 3)
    left = [thread for thread in threading.enumerate() if thread.name == "reward"]
    release.set()
    assert rewards_of(found) == [1.0, None, 3.0]
    assert "no answer within 1.5 s" in found[1].error
    assert all(one.daemon for one in left)


@pytest.mark.parametrize(("retries", "asked"), [(0, [50, 1, 1]), (1, [50, 50, 1, 1]), (9, [50, 50, 1, 1])])
def test_a_function_that_always_stalls_costs_three_timeouts_however_many_retries(
    retries: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls, waited = threading.Event(), [], []

    def clocked(seconds: float | None, call: Callable[[], list[Any]]) -> list[Any]:
        waited.append(seconds)
        return within(seconds, call)

    def reward_fn(outputs, **_):
        calls.append(len(outputs))
        release.wait(60)
        return [0.0] * len(outputs)

    within = retries_module._call_within
    monkeypatch.setattr(retries_module, "_call_within", clocked)
    found = reward_samples(reward_fn, [sample("a")] * 50, timeout=0.1, retries=retries)
    release.set()
    assert rewards_of(found) == [None] * 50
    assert calls == asked
    assert sum(waited) == pytest.approx(0.1 * (len(asked) - 1))
    assert all("gave no answer within 0.1 s" in one.error for one in found)


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("leave", [sys.exit, os._exit], ids=["sys.exit", "os._exit"])
def test_a_function_that_exits_the_program_fails_without_ending_the_run(leave, timeout: float | None) -> None:
    name = leave.__name__  # os._exit as it is when the function runs
    found = reward_samples(lambda samples, **_: (sys.exit if name == "exit" else os._exit)(3), timeout=timeout)
    assert rewards_of(found) == [None] * 3
    assert "SystemExit(3)" in found[0].error


def test_a_function_may_stop_the_run() -> None:
    def reward_fn(samples, **_):
        raise RunStopped("out of credit", "stopped", 1)

    with pytest.raises(RunStopped, match="out of credit"):
        reward_samples(reward_fn)


def test_a_function_that_changes_its_arguments_changes_only_copies() -> None:
    def reward_fn(outputs, prompts, **_):
        seen.append([*prompts, *outputs])
        prompts.clear()
        return [float(len(outputs.pop(0))) if len(seen) > 1 else NAN for _ in range(len(outputs))]

    seen: list[list[str]] = []
    assert rewards_of(reward_samples(reward_fn)) == [1.0, 2.0, 3.0]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_rewards_record_no_gradient_and_without_a_timeout_there_is_no_thread(timeout: float | None) -> None:
    seen = []

    def reward_fn(outputs, **_):
        seen.append((torch.is_grad_enabled(), threading.current_thread() is threading.main_thread()))
        return [0.0] * len(outputs)

    reward_samples(reward_fn, timeout=timeout)
    assert seen == [(False, timeout is None)]


def test_a_long_error_is_shortened_to_one_line() -> None:
    def reward_fn(samples, **_):
        raise ValueError("x\ny " * 500)

    error = reward_samples(reward_fn)[0].error
    assert len(error) <= 300
    assert "\n" not in error


def test_functions_with_a_wrong_signature_are_refused_before_the_first_step() -> None:
    for wrong in ("not a function", lambda replies: [0.0], lambda **columns: [0.0], lambda samples, completions: [0.0]):
        with pytest.raises(InputError, match=r"needed: .*f\(samples, prompts, outputs, tokenizer"):
            FunctionReward(wrong, TOKENIZER)  # type: ignore[arg-type]
    asking = FunctionReward(lambda samples, prompts, outputs, tokenizer, answer: [0.0], TOKENIZER)
    asking.check(["answer"])
    with pytest.raises(InputError, match=r"requires answer, .* there are samples, .* and the columns question"):
        asking.check(["question"])
    with pytest.raises(InputError, match=r"columns named prompts, .*other names"):
        FunctionReward(lengths, TOKENIZER).check(["prompts"])
    FunctionReward(lengths, TOKENIZER).check(["answer"])
    with pytest.raises(InputError, match="timeout"):
        FunctionReward(lengths, TOKENIZER, timeout=0)
    with pytest.raises(InputError, match="retries"):
        FunctionReward(lengths, TOKENIZER, retries=-1)


def test_the_run_stops_if_more_than_the_allowed_share_of_rewards_failed() -> None:
    stop_if_too_many_failed(1, 10, 0.1, "x")
    stop_if_too_many_failed(0, 10, 0.0, "x")
    stop_if_too_many_failed(0, 0, 0.0, "x")
    with pytest.raises(RunStopped, match=r"2 of 10 rewards failed, .*one of them: gave nan") as stopped:
        stop_if_too_many_failed(2, 10, 0.1, "gave nan")
    assert (stopped.value.outcome, stopped.value.exit_code) == ("rewards_failed", 69)
    with pytest.raises(RunStopped):
        stop_if_too_many_failed(1, 1000, 0.0, "x")

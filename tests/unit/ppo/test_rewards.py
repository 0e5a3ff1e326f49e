"""Rewards of the settings: `--reward` beside scorers, what they may ask for, and what normalises them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting import TOKENIZER
from rewarded import rewards_of, sample

from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.errors import InputError
from lmgym.runs.flags import override
from lmgym.runs.paths import with_absolute_paths
from lmgym.text import Conversation, Turn
from ppo.best import check_best_metric
from ppo.check import check_normalize
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.experiments.hh_harmless import CONFIG
from ppo.rewards import load_scorer_reward, normalised_by_run, optimised, weights_by_group
from ppo.task_setups import chat_with_scorers, check_unused_settings, text_with_function

FILE = """
def right(completions, answer, **columns):
    return [float(a in text) for text, a in zip(completions, answer)]
def blank(solution_str, ground_truth=""):
    return float(solution_str.startswith(" "))
def ids(conversations, replies, output_ids, tokenizer):
    return [len(one) + (tokenizer is None) for one in output_ids]
"""
TEXT = Conversation((Turn("user", "hi"),), is_text=True)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "rewards.py").write_text(FILE)
    return str(tmp_path / "rewards.py")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"what is {i}?", "answer": str(i)}) + "\n" for i in range(12))
    )
    return str(tmp_path / "rows.jsonl")


def asked(rows: str, **reward: Any) -> PPOConfig:
    return PPOConfig("x", rollout=RolloutConfig(prompts=rows, eval_size=2), reward=RewardConfig(**reward))


def test_functions_and_scorers_are_one_weighted_sum_with_columns_ids_and_the_first_blank(file: str, rows: str) -> None:
    words = f"right={file}:right,{file}:blank,{file}:ids"
    setup = chat_with_scorers(asked(rows, reward=words, scorers="w=world:0", weights="blank=10,w=0,ids=100"), TOKENIZER)
    assert isinstance(setup.reward_function, ScorerReward)
    check_unused_settings(RewardConfig(reward=words), setup)
    assert [*setup.reward_function.scorers] == ["right", "blank", "ids", "w"]
    samples = [sample(" 7", 3, TEXT, answer="7"), sample("8", 2, TEXT, answer="9")]
    found = setup.reward_function.rewards(samples)
    assert rewards_of(found) == [1 + 10 + 300, 200]
    assert found[0].scores["w"] == pytest.approx(setup.reward_function.scores(samples)["w"][0].value)


def test_a_column_that_the_prompts_have_not_is_refused_with_those_that_they_have(file: str, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"prompt": "a", "topic": "x"}\n{"prompt": "b", "topic": "y"}\n')
    with pytest.raises(
        InputError, match=r"rewards.py:right requires answer, .*completion_ids, .* and the columns topic"
    ):
        chat_with_scorers(asked(str(tmp_path / "other.jsonl"), reward=f"{file}:right"), TOKENIZER)


def test_a_function_may_be_watched_too_with_the_columns_of_the_prompts(file: str, rows: str) -> None:
    setup = chat_with_scorers(asked(rows, reward=f"{file}:blank", monitor_scorers=f"{file}:right"), TOKENIZER)
    assert isinstance(setup.monitors["right"], FunctionReward)


def test_a_reward_takes_the_place_of_an_experiments_scorers_unless_both_are_given(file: str) -> None:
    alone = override(CONFIG, ["--reward", f"{file}:right"])
    assert (optimised(alone.reward), alone.reward.missing_eos_penalty) == ({"right": f"{file}:right"}, 0.0)
    both = override(CONFIG, ["--reward", f"{file}:right", "--scorers", "a=world:0", "--missing_eos_penalty", "0.5"])
    assert [*optimised(both.reward)] == ["right", "a"]
    assert both.reward.missing_eos_penalty == 0.5
    assert [*optimised(override(CONFIG, []).reward)] == ["harmless"]
    with pytest.raises(InputError, match="the policy is optimised for it"):
        check_best_metric(replace(alone.reward, best_metric="scores/right"), ["b"])


def test_a_functions_file_is_found_whatever_the_working_folder_is(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(file).parent)
    found = with_absolute_paths(PPOConfig("x", reward=RewardConfig(reward="a=rewards.py:right,rewards.py"))).reward
    assert found.reward == f"a={file}:right,{file}"


def test_a_reward_that_a_task_setup_does_not_use_is_refused(file: str, rows: str) -> None:
    with pytest.raises(InputError, match=r"--reward .*rewards.py:right would not be used: a Python function"):
        text_with_function(lambda outputs: [0.0])(asked(rows, reward=f"{file}:right"), TOKENIZER)
    with pytest.raises(InputError, match="--normalize group would not be used"):
        text_with_function(lambda outputs: [0.0])(asked(rows, normalize="group"), TOKENIZER)
    text_with_function(lambda outputs: [0.0])(asked(rows, normalize="none"), TOKENIZER)  # as others' scripts ask for


@pytest.mark.parametrize(
    ("normalize", "by_run", "by_group"),
    [(None, ["w"], False), ("run", ["right", "w"], False), ("none", [], False), ("group", [], True)],
)
def test_scorers_are_normalised_and_functions_are_not_unless_asked_for(
    normalize: Any, by_run: list[str], by_group: bool, file: str
) -> None:
    settings = RewardConfig(f"{file}:right", "w=world:0", "w=.5", normalize=normalize)
    reward, _ = load_scorer_reward(settings, TOKENIZER, ["answer"])
    assert normalised_by_run(settings, reward) == by_run
    assert weights_by_group(settings, reward) == ({"right": 1.0, "w": 0.5} if by_group else None)
    assert normalised_by_run(settings, None) == []


@pytest.mark.parametrize(
    ("method", "reward", "message"),
    [
        (MethodConfig("grpo"), {}, ""),
        (MethodConfig("rloo"), {"cliprange_reward": float("inf")}, ""),
        (MethodConfig("ppo"), {}, "normalize=group with --method ppo, .*needed: one of rloo, grpo, dr_grpo, .*run"),
        (MethodConfig("reinforce_pp"), {}, "normalize=group with --method reinforce_pp,"),
        (MethodConfig("rft"), {}, "normalize=group with --method rft,"),
        (MethodConfig("grpo", scale_rewards="none"), {}, "scale_rewards=none with normalize=group"),
        (MethodConfig("grpo"), {"cliprange_reward": 5.0}, "cliprange_reward=5 with normalize=group"),
        (MethodConfig("grpo"), {"normalize": True}, "normalize=True; needed: run, group or none"),
    ],
)
def test_rewards_by_group_need_a_method_that_compares_replies(method: MethodConfig, reward: Any, message: str) -> None:
    config = PPOConfig("x", method=method, reward=RewardConfig(**{"normalize": "group", **reward}))
    if message:
        with pytest.raises(InputError, match=message):
            check_normalize(config)
    else:
        check_normalize(config)

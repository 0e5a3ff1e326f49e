"""A judge that compares as the reward of a run: its method and groups, what its evaluations compare with, its cost."""

from dataclasses import replace

import pytest
from judge_server import comparing_judge

from lmgym.environments.scored_chat import ScoredChat
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn
from ppo.check import check_settings
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import TaskSetup, share_starting_replies, verdict_notes


def test_a_judge_that_compares_needs_a_method_and_groups_that_it_can_compare() -> None:
    scorers = RewardConfig(scorers="pick=compare:openai:http://127.0.0.1:1/v1#tiny")
    config = PPOConfig("x", method=MethodConfig("grpo"), reward=scorers)
    assert config.algorithm.scale_rewards == "none"
    assert PPOConfig(
        "x", method=MethodConfig("grpo", scale_rewards="group"), reward=scorers
    ).algorithm.scale_rewards == ("group")
    with pytest.raises(InputError, match="compares the replies to one prompt, and --method ppo has each reply alone"):
        check_settings(PPOConfig("x", reward=scorers), 1)
    odd = replace(
        config, rollout=replace(config.rollout, num_rollouts=24), optimizer=replace(config.optimizer, global_batch=8)
    )
    check_settings(odd, 1)
    with pytest.raises(InputError, match="3 groups on 2 ranks are split; needed: num_rollouts="):
        check_settings(odd, 2)
    with pytest.raises(InputError, match="normalize=run with a judge that compares"):
        check_settings(replace(config, reward=replace(scorers, normalize="run")), 1)


def test_evaluations_compare_with_the_replies_before_step_1_and_verdicts_are_counted(tmp_path) -> None:
    judge = comparing_judge(lambda a, b: float(len(a) > len(b)), tmp_path)
    setup = TaskSetup([{"prompt": "a"}], [{"prompt": "a"}], ScoredChat, ScorerReward({"j": judge}, {"j": 1.0}), "x")
    config = PPOConfig("x", method=MethodConfig("grpo"), rollout=RolloutConfig(num_rollouts=32, num_generations=8))
    assert verdict_notes(config, setup) == [
        "j compares 8 replies to a prompt: at most 128 verdicts an iteration, both orders counted"
    ]
    asked = Conversation((Turn("user", "q"),))
    assert judge.shares_won([asked], ["start"]) == [0.5]
    kept = share_starting_replies(setup, {})
    again = comparing_judge(lambda a, b: float(len(a) > len(b)), tmp_path)
    resumed = replace(setup, reward_function=ScorerReward({"j": again}, {"j": 1.0}))
    assert share_starting_replies(resumed, kept) == kept
    assert again.shares_won([asked], ["longer than the start"]) == [1.0]

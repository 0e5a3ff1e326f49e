"""The methods' own settings, what overrides them, and which settings they read."""

from dataclasses import fields
from typing import get_args

import pytest

from lmgym.runs.fields import flatten
from lmgym.runs.flags import override
from ppo.algorithms.methods import MethodName, preset, readers
from ppo.check import unread_notes
from ppo.config import CriticConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig

NAMES = get_args(MethodName)
CRITIC = {field.name for field in fields(CriticConfig)}


@pytest.mark.parametrize("name", NAMES)
def test_a_method_without_settings_is_its_preset(name: MethodName) -> None:
    found, own = PPOConfig("x", method=MethodConfig(name)).algorithm, preset(name)
    ours = {field.name for field in fields(own)} - {"outcome"}
    assert {n: getattr(found, n) for n in ours} == {n: getattr(own, n) for n in ours}
    assert (found.outcome is None) == (name == "ppo") == found.has_critic
    assert str(found).startswith(f"method {name}: ")


def test_settings_that_are_given_override_a_methods_own() -> None:
    config = PPOConfig(
        "x",
        rollout=RolloutConfig(num_generations=4),
        reward=RewardConfig(overlong_penalty=0.0),
        method=MethodConfig("dapo", init_kl_coef=0.1, kl_in="reward", cliprange=0.3, epsilon_high=0.5, ppo_epochs=2),
    )
    found = config.algorithm
    assert (found.num_generations, found.overlong_penalty, found.max_refills) == (4, 0.0, 10)
    assert (found.init_kl_coef, found.kl_in, found.ppo_epochs) == (0.1, "reward", 2)
    assert (found.epsilon_low, found.epsilon_high) == (0.3, 0.5), "cliprange sets what is not given"


def test_flags_that_a_method_does_not_read_are_refused_with_those_that_do(capsys) -> None:
    for name, flag, said in (
        (
            "grpo",
            "--lam 0.9",
            "--lam is not read by --method grpo, only by ppo; needed: another --method, or leave --lam out",
        ),
        ("ppo", "--scale_rewards none", "only by grpo, dr_grpo, dapo, gspo, cispo; needed"),
        ("cispo", "--delta 10", "--delta is not read by --method cispo"),
        ("reinforce_pp", "--max_refills 2", "--max_refills is not read by --method reinforce_pp"),
        ("ppo", "--credit turn", "--credit is not read by --method ppo"),
        ("grpo", "--percentile 0.8", "--percentile is not read by --method grpo, only by rft"),
        ("rft", "--cliprange 0.2", "--cliprange is not read by --method rft"),
    ):
        with pytest.raises(SystemExit):
            override(PPOConfig("x"), f"--method {name} {flag}".split())
        assert said in capsys.readouterr().err


def test_settings_of_an_experiment_that_another_method_does_not_read_are_named_and_not_refused() -> None:
    config = override(PPOConfig("x", critic=CriticConfig(vf_coef=2.0)), ["--method", "grpo"])
    assert unread_notes(config) == ["grpo does not read vf_coef=2.0 of the experiment"]
    assert unread_notes(override(config, ["--method", "ppo"])) == []


def test_every_setting_is_read_by_some_method_and_the_critics_by_ppo_alone() -> None:
    settings = set(flatten(PPOConfig("x")))
    unread = {name: PPOConfig("x", method=MethodConfig(name)).unread for name in NAMES}
    assert all(names <= settings for names in unread.values())
    assert set.intersection(*unread.values()) == {"action_scores"}, "which a policy over actions reads"
    assert all(readers(name) for name in set.union(*unread.values()) - CRITIC - {"action_scores"})
    assert [name for name in NAMES if not CRITIC & unread[name]] == ["ppo"]


def test_a_method_that_is_not_known_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        override(PPOConfig("x"), ["--method", "trpo"])
    assert "--method: found 'trpo'; needed one of 'ppo', 'rloo', 'grpo'" in capsys.readouterr().err


def test_no_group_of_settings_has_more_than_25() -> None:
    groups = [getattr(PPOConfig("x"), field.name) for field in fields(PPOConfig)]
    assert all(len(fields(group)) <= 25 for group in groups if hasattr(group, "__dataclass_fields__"))

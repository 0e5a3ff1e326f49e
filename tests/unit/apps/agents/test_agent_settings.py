"""LlamaGym's dicts of settings as configs."""

import math

import pytest

from lmgym.apps.agents.settings import agent_config, run_config
from lmgym.errors import InputError

BATCH = {"batch_size": 8, "mini_batch_size": 4}


def test_without_dicts_settings_are_llamagyms_and_trls() -> None:
    config, notes = agent_config(None, None)
    assert (config.rollout.max_new_tokens, config.rollout.top_p, config.rollout.temperature) == (32, 0.6, 0.9)
    assert (config.rollout.num_rollouts, config.optimizer.global_batch, config.optimizer.micro_batch) == (16, 16, 16)
    assert (config.optimizer.learning_rate, config.algorithm.init_kl_coef, config.method.target) == (1.41e-5, 0.2, 6.0)
    assert (config.critic.vf_coef, config.critic.lam, config.critic.gamma, config.algorithm.ppo_epochs) == (
        0.1, 0.95, 1.0, 4,
    )  # fmt: skip
    assert config.reward.cliprange_reward == math.inf
    assert [note for note in notes if "top_p=0.6" not in note] == []


def test_trls_names_become_ours() -> None:
    given = BATCH | {
        "gradient_accumulation_steps": 2, "adap_kl_ctrl": False, "kl_penalty": "mse", "early_stopping": True,
        "target_kl": 0.1, "score_clip": 5.0, "seed": 3, "ppo_epochs": 2, "entropy_coef": 0.01,
    }  # fmt: skip
    config, notes = agent_config({"generate/max_new_tokens": 7, "stop_strings": "\n", "top_k": None}, given)
    assert config.sampling.max_new_tokens == 7
    assert config.sampling.stop == ("\n",)
    assert (config.optimizer.global_batch, config.optimizer.micro_batch) == (8, 4)
    assert (config.method.target, config.method.kl_estimator, config.method.stop_kl) == (
        None,
        "k2",
        pytest.approx(0.15),
    )
    assert (config.reward.cliprange_reward, config.optimizer.seed, config.method.entropy_coef) == (5.0, 3, 0.01)
    assert notes == []


def test_keys_without_a_meaning_are_reported_in_a_line_and_unknown_ones_with_the_nearest() -> None:
    _, notes = agent_config(
        {"temprature": 1.0, "pad_token_id": 0, "min_length": -1}, BATCH | {"log_with": "wandb", "lerning_rate": 1e-4}
    )
    assert notes == [
        "generate_config_dict: min_length, pad_token_id have no meaning here",
        "generate_config_dict: 'temprature' is unknown and not used; did you mean temperature?",
        "ppo_config_dict: log_with has no meaning here",
        "ppo_config_dict: 'lerning_rate' is unknown and not used; did you mean learning_rate?",
    ]


@pytest.mark.parametrize(
    ("generate", "ppo", "message"),
    [
        ({"do_sample": False}, None, "greedy or beam search; needed: do_sample=True"),
        ({"num_beams": 4}, None, "greedy or beam search"),
        ({"temperature": 0}, None, "greedy or beam search"),
        ({"max_new_tokens": 0}, None, "max_new_tokens=0; needed: 1"),
        (None, {"batch_size": 10, "mini_batch_size": 4}, "batch_size=10 is not a multiple of mini_batch_size=4"),
        (None, {"batch_size": 0}, "batch_size=0"),
        (None, BATCH | {"learning_rate": "fast"}, "learning_rate='fast'; needed: 0 to 1"),
        (None, BATCH | {"method": "grpo"}, "this loop plays one at a time; needed: ppo or reinforce_pp"),
        (None, BATCH | {"method": "reinforce_pp", "vf_coef": 1.0}, "--vf_coef is not read by --method reinforce_pp"),
        (["max_new_tokens"], None, "settings are a list of 1 item; needed: a dict"),
    ],
)
def test_settings_that_do_not_work_are_refused(generate, ppo, message: str) -> None:
    with pytest.raises(InputError, match=message):
        agent_config(generate, ppo)


def test_a_method_without_a_critic_has_its_own_kl() -> None:
    config, _ = agent_config(None, BATCH | {"method": "reinforce_pp"})
    assert (config.algorithm.has_critic, config.algorithm.init_kl_coef, config.method.target) == (False, 0.01, None)


def test_a_run_takes_any_flag_and_its_batch_is_the_number_of_environments() -> None:
    settings = {"model": "m", "num_rollouts": 32, "output": "o", "lora_rank": 4}
    given = {"method": "grpo", "num_generations": 8, "deepspeed": "zero2", "lora_rank": 8}
    config, notes = run_config("agents", None, given, settings)
    assert (config.policy.model, config.policy.lora_rank, config.output, config.run.deepspeed) == ("m", 8, "o", "zero2")
    assert (config.rollout.num_rollouts, config.optimizer.global_batch, config.algorithm.num_generations) == (32, 32, 8)
    assert notes == []
    with pytest.raises(InputError, match="batch_unit='turns' is for a loop of your own"):
        run_config("agents", None, {"batch_unit": "turns"}, settings)

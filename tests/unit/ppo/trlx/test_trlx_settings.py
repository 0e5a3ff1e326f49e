"""The fields of a trlx config as ours, and notes on those without a meaning here."""

import math
import re

import pytest
from peft import LoraConfig

from lmgym.errors import InputError
from ppo.check import check_settings
from ppo.trlx.data.default_configs import TRLConfig, default_ppo_config
from ppo.trlx.settings import find_schedule, ppo_config


def base() -> TRLConfig:
    """With nothing that is told."""
    return TRLConfig.update(
        default_ppo_config(),
        {"tokenizer.tokenizer_path": "lvwerra/gpt2-imdb", "optimizer.kwargs.eps": 1e-5, "train.tracker": None},
    )


def notes(**sections: dict) -> list[str]:
    return ppo_config(base().evolve(**sections))[1]


def test_every_field_that_has_a_meaning_is_mapped() -> None:
    config = TRLConfig.update(base(), {
        "train.batch_size": 8, "train.minibatch_size": 2, "train.total_steps": 10000, "train.epochs": 3,
        "train.seq_length": 100, "train.seed": 5, "train.checkpoint_dir": "here", "train.eval_interval": 7,
        "train.checkpoint_interval": 6, "train.run_name": "my run/1", "train.tracker": "tensorboard",
        "method.num_rollouts": 16, "method.chunk_size": 4, "method.ppo_epochs": 2, "method.init_kl_coef": 0.1,
        "method.target": 6, "method.horizon": 900, "method.gamma": 0.9, "method.lam": 0.8, "method.cliprange": 0.3,
        "method.cliprange_value": 0.4, "method.vf_coef": 0.5, "method.cliprange_reward": 5,
        "method.scale_reward": "ref", "method.ref_std": 4.0, "method.gen_kwargs.max_new_tokens": 30,
        "method.gen_kwargs.temperature": 0.7, "method.gen_kwargs.top_k": 0.0, "optimizer.kwargs.lr": "1e-4",
        "optimizer.kwargs.weight_decay": 0.1, "model.num_layers_unfrozen": 3, "model.model_path": "a/b",
        "tokenizer.tokenizer_path": "a/b",
    })  # fmt: skip
    ours, told = ppo_config(config, ["\n", "User:"])
    assert told == []
    o, r, m, c = ours.optimizer, ours.rollout, ours.method, ours.critic
    assert (o.global_batch, o.micro_batch, o.seed, o.learning_rate, o.weight_decay) == (8, 2, 5, 1e-4, 0.1)
    assert o.max_updates == 3 * 2 * 16 // 8, "epochs end before total_steps"
    assert (o.adam_beta2, o.max_grad_norm, o.schedule, o.warmup) == (0.95, 1e9, "constant_with_warmup", 0)
    assert (r.num_rollouts, r.generation_batch_size, r.max_new_tokens, r.max_prompt) == (16, 4, 30, 70)
    assert (r.temperature, r.top_k, r.top_p, r.stop) == (0.7, 0, 1.0, ("\n", "User:"))
    assert ours.sampling.stop == ("\n", "User:")
    assert (m.ppo_epochs, m.init_kl_coef, m.target, m.horizon, m.cliprange, m.num_layers_unfrozen) == (
        2, 0.1, 6, 900, 0.3, 3,
    )  # fmt: skip
    assert (c.gamma, c.lam, c.cliprange_value, c.vf_coef) == (0.9, 0.8, 0.4, 0.5)
    assert (ours.reward.cliprange_reward, ours.reward.scale) == (5, 0.25)
    assert (ours.name, ours.output, ours.run.tracking) == ("my_run_1", "here", "tensorboard")
    assert (ours.run.eval_updates, ours.run.save_updates, ours.policy.model, ours.policy.precision) == (
        7,
        6,
        "a/b",
        "fp32",
    )
    assert (ours.limits.max_kl, ours.limits.min_length) == (0, 0), "trlx stops no run as collapsed"
    check_settings(ours, 1)


def test_total_steps_end_a_run_before_its_epochs_and_a_late_checkpoint_is_none() -> None:
    ours, _ = ppo_config(base().evolve(train={"total_steps": 50, "checkpoint_interval": 50}))
    assert ours.optimizer.max_updates == 50
    assert ours.run.save_updates == -1


def test_updates_are_whole_iterations_and_that_is_told() -> None:
    method = {"num_rollouts": 32, "ppo_epochs": 4}
    ours, told = ppo_config(base().evolve(train={"total_steps": 2}, method=method))
    assert (ours.optimizer.max_updates, ours.updates_per_iteration) == (2, 4)
    assert told == ["train.total_steps: 2 updates become 4, in whole iterations of 4"]
    assert ppo_config(base().evolve(train={"total_steps": 8}, method=method))[1] == []


def test_rows_are_counted_over_all_ranks(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    ours, _ = ppo_config(base())
    assert (ours.optimizer.global_batch, ours.rollout.num_rollouts, ours.optimizer.micro_batch) == (128, 512, 32)
    assert ours.updates_per_iteration == 16, "as on one rank"
    check_settings(ours, 4)


def test_rollouts_are_whole_batches_and_that_is_told() -> None:
    ours, told = ppo_config(base().evolve(train={"batch_size": 100}))
    assert ours.rollout.num_rollouts == 200
    assert told == ["method.num_rollouts=128 becomes 200: whole batches of train.batch_size=100"]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"model_extra_configs": {"a": 1}}}, "model.model_extra_configs"),
        ({"tokenizer": {"padding_side": "right"}}, "tokenizer.padding_side='right'"),
        ({"tokenizer": {"truncation_side": "left"}}, "tokenizer.truncation_side='left'"),
        ({"tokenizer": {"tokenizer_path": "gpt2"}}, "tokenizer.tokenizer_path='gpt2'"),
        ({"train": {"project_name": "mine"}}, "train.project_name='mine' is not used: set WANDB_PROJECT"),
        ({"train": {"tags": ["a"]}}, "train.tags"),
        ({"train": {"trainer": "NeMoPPOTrainer"}}, "train.trainer='NeMoPPOTrainer' is not used: config.method decides"),
        ({"train": {"resume_from_checkpoint": "x"}}, "train.resume_from_checkpoint"),
        ({"method": {"ref_mean": 1.0}}, "method.ref_mean"),
        ({"method": {"num_value_layers_unfrozen": 2}}, "method.num_value_layers_unfrozen"),
        ({"method": {"scale_reward": "running"}}, "method.scale_reward=running"),
        ({"method": {"scale_reward": "ref"}}, "method.scale_reward=ref"),
        ({"method": {"gen_kwargs": {"min_length": 4}}}, "gen_kwargs.min_length=4"),
        ({"method": {"gen_experience_kwargs": {"temperature": 0.5}}}, "evaluations sample as rollouts do"),
        ({"optimizer": {"name": "adamw_8bit_bnb"}}, "optimizer.name=adamw_8bit_bnb"),
        ({"optimizer": {"kwargs": {"eps": 1e-8}}}, "optimizer.kwargs.eps"),
        ({"optimizer": {"kwargs": {"betas": (0.8, 0.95)}}}, "optimizer.kwargs.betas=0.8"),
        ({"optimizer": {"kwargs": {"amsgrad": True}}}, "optimizer.kwargs.amsgrad=True"),
    ],
)
def test_a_field_without_a_meaning_is_told_once(sections: dict, said: str) -> None:
    assert notes() == []
    [told] = notes(**sections)
    assert told.startswith(said) or told.endswith(said)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"model_arch_type": "seq2seq"}}, "model.model_arch_type is 'seq2seq'; needed: causal"),
        ({"model": {"peft_config": {"peft_type": "IA3"}}}, "model.peft_config is of 'IA3'; needed: LORA"),
        ({"method": {"gen_kwargs": {"do_sample": False}}}, "greedy or beam search"),
        ({"method": {"gen_kwargs": {"top_k": [1, 2]}}}, "gen_kwargs.top_k is a list of 2 items; needed: one number"),
        ({"method": {"num_rollouts": "many"}}, "method.num_rollouts is 'many'; needed: one number"),
        ({"method": {"scale_reward": "other"}}, "method.scale_reward is 'other'; needed: ignored, running or ref"),
        ({"method": {"scale_reward": "ref", "ref_std": 0}}, "method.ref_std=0; needed: above 0"),
        ({"train": {"seq_length": 40}}, "train.seq_length=40 leaves no room for a prompt beside max_new_tokens=40"),
        ({"train": {"tracker": "mlflow"}}, "train.tracker is 'mlflow'; needed: wandb, tensorboard, or None"),
        ({"optimizer": {"name": "sgd"}}, "optimizer.name is 'sgd'; needed: adamw"),
        ({"scheduler": {"name": "step"}}, "scheduler.name is 'step'; needed: cosine_annealing or linear"),
        ({"scheduler": {"kwargs": {"T_max": 0}}}, "scheduler.kwargs.T_max=0; needed: above 0"),
    ],
)  # fmt: skip
def test_what_ppo_here_cannot_do_is_refused(sections: dict, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        ppo_config(base().evolve(**sections))


def test_a_learning_rate_and_new_tokens_are_needed() -> None:
    config = base()
    del config.optimizer.kwargs["lr"]
    with pytest.raises(InputError, match=r"optimizer\.kwargs lack lr"):
        ppo_config(config)
    config = base()
    config.method.gen_kwargs = {"max_length": 48}
    with pytest.raises(InputError, match="gen_kwargs lack max_new_tokens"):
        ppo_config(config)


@pytest.mark.parametrize(
    ("name", "kwargs", "found", "told"),
    [
        ("cosine_annealing", {"T_max": 1e12, "eta_min": 1e-4}, ("constant_with_warmup", 0), False),
        ("cosine_annealing", {"T_max": 10000, "eta_min": 0}, ("constant_with_warmup", 0), False),
        ("cosine_annealing", {"T_max": 100}, ("cosine", 0), False),
        ("cosine_annealing", {"T_max": 150}, ("cosine", 0), True),
        ("cosine_annealing", {"T_max": 100, "eta_min": 1e-5}, ("cosine", 0), True),
        ("linear", {"start_factor": 1, "end_factor": 0, "total_iters": 100}, ("linear", 0), False),
        ("linear", {"start_factor": 1, "end_factor": 0.1, "total_iters": 100}, ("linear", 0), True),
        ("linear", {"start_factor": 1, "end_factor": 1}, ("constant_with_warmup", 0), False),
        ("linear", {}, ("constant_with_warmup", 5), True),
    ],
)
def test_schedules(name: str, kwargs: dict, found: tuple, told: bool) -> None:
    schedule = find_schedule(name, kwargs, 1e-4, 100)
    assert schedule[:2] == found
    assert bool(schedule.note) == told


def test_adapters_are_read_from_a_dict_and_from_pefts_object() -> None:
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 16, "target_modules": ["q", "k"]}
    for given in (fields, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=["q", "k"])):
        config = base()
        config.model.peft_config = given
        ours, told = ppo_config(config)
        policy = ours.policy
        assert (policy.lora_rank, policy.lora_alpha, policy.lora_target_modules) == (4, 16, "k,q")
        assert ours.method.num_layers_unfrozen == -1
        assert told == ["model.num_layers_unfrozen=2 is not used: adapters train on all layers"]
        check_settings(ours, 1)
    told = notes(model={"num_layers_unfrozen": -1, "peft_config": {"peft_type": "LORA", "lora_dropout": 0.1}})
    assert told == [
        "model.peft_config.lora_dropout=0.1 is not used",
        "model.peft_config has no target_modules: all linear layers get adapters",
    ]


def test_rewards_are_not_clipped_without_a_range() -> None:
    for given in (0, None):
        assert ppo_config(base().evolve(method={"cliprange_reward": given}))[0].reward.cliprange_reward == math.inf


def test_accelerate_launch_chooses_precision_and_engine(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    ours, _ = ppo_config(base())
    assert (ours.policy.precision, ours.run.deepspeed) == ("bf16", "zero3")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "own.json")
    assert ppo_config(base())[0].run.deepspeed == "own.json"

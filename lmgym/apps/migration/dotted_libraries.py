"""OpenRLHF and verl: their launches, defaults, and settings that are more than a flag."""

import re
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.libraries import Library, give, named, rewards, taken, whole
from lmgym.errors import InputError

METHODS_OF_VERL = {
    "gae": "ppo", "grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}  # fmt: skip
METHODS_OF_OPENRLHF = {
    "gae": "ppo", "reinforce": "reinforce_pp", "rloo": "rloo", "reinforce_baseline": "reinforce_pp_baseline",
    "group_norm": "grpo", "dr_grpo": "dr_grpo",
}  # fmt: skip
KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}


def _updates(found: Translation, epochs: Any) -> int | None:
    """The updates of an iteration; None if the file does not tell."""
    replies, batch = found.flags.get("num_rollouts"), found.flags.get("global_batch")
    if not all(type(number) is int and number > 0 for number in (replies, batch, epochs)):
        return None
    return max(1, replies // batch) * epochs  # type: ignore[operator]


def _iterations(found: Translation, left: dict[str, Any], names: dict[str, str], epochs: Any) -> None:
    """Numbers of iterations as numbers of updates."""
    updates = _updates(found, epochs)
    for name, flag in names.items():
        value = left.pop(name, None)
        if type(value) is int and value > 0 and updates:
            found.flags[flag] = value * updates
        elif value is not None and value not in (-1, 0):
            found.ask(flag, f"{name}={display(value)} counts iterations")
        elif value == -1 and flag == "save_updates":
            found.flags[flag] = -1


# --- verl


def _word_of_verl(program: str, values: dict[str, Any]) -> str:
    if "sft" in program or "model.partial_pretrain" in values:
        return "sft"
    if program or any(name.startswith(("actor_rollout_ref.", "algorithm.")) for name in values):
        return "ppo"
    raise InputError("the file has neither actor_rollout_ref nor model.partial_pretrain; needed: a config of verl")


def _verl(found: Translation, left: dict[str, Any], stage: str) -> None:
    files = left.pop("data.train_files", None)
    flag = "prompts" if stage == "ppo" else "dataset"
    if isinstance(files, list):
        files = ",".join(map(str, files))
    left["data.train_files"] = files
    if files is None:
        found.ask(flag, "none in the file")
    held_out = left.get("data.val_files")
    if isinstance(held_out, list):
        left["data.val_files"] = ",".join(map(str, held_out))
    loggers = left.pop("trainer.logger", None)
    names = [str(one) for one in (loggers if isinstance(loggers, list) else [loggers])]
    found.lines.append("verl shards the weights over all GPUs: add --deepspeed zero3 where one cannot hold them")
    if "wandb" in names or "tensorboard" in names:
        both = {"wandb", "tensorboard"} <= set(names)
        found.flags["tracking"] = "wandb,tensorboard" if both else "auto" if "wandb" in names else "tensorboard"
    elif loggers is not None:
        found.flags["tracking"] = "none"
    of_model = "model." if stage == "sft" else "actor_rollout_ref.model."
    if left.get(f"{of_model}lora_rank"):
        left.setdefault(f"{of_model}lora_alpha", 16)
    for name in [name for name in left if name.startswith(("hydra.", "config_path", "config_name"))]:
        found.lines.append(f"{name}={display(left.pop(name))}: settings in that file are not read; give it as FILE")
    if stage == "sft":
        if left.get("trainer.total_training_steps") is not None:
            left.pop("trainer.total_epochs", None)
        return
    _verl_method(found, left)
    _verl_kl(found, left)
    _verl_batches(found, left)
    _verl_overlong(found, left)
    model, used = left.pop("reward_model.model.path", None), left.pop("reward_model.enable", False) is True
    function = taken(left, "custom_reward_function.path", "reward_model.reward_manager")
    if used and isinstance(model, str):
        give(found, "scorers", f"reward={model}", f"reward_model.model.path={model}")
    else:
        rewards(found, model if used else function, "reward")
    left.pop("custom_reward_function.name", None)


def _verl_method(found: Translation, left: dict[str, Any]) -> None:
    estimator = named(left.pop("algorithm.adv_estimator", "gae"))
    mode = named(left.pop("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla"))
    if mode in ("gspo", "cispo") and estimator == "grpo":
        found.flags["method"] = mode
    elif estimator in METHODS_OF_VERL and mode == "vanilla":
        found.flags["method"] = METHODS_OF_VERL[estimator]
    else:
        found.ask("method", f"adv_estimator={display(estimator)}, loss_mode={display(mode)}: see docs/methods.md")
    if found.flags.get("method") != "ppo":
        for name in [name for name in left if name.startswith("critic.")]:
            left.pop(name)
        left.pop("trainer.critic_warmup", None)


def _verl_kl(found: Translation, left: dict[str, Any]) -> None:
    """verl has no KL at all unless one of its two switches is on."""
    actor, control = "actor_rollout_ref.actor.", "algorithm.kl_ctrl."
    in_loss, in_reward = left.pop(f"{actor}use_kl_loss", False), left.pop("algorithm.use_kl_in_reward", False)
    of_loss = left.pop(f"{actor}kl_loss_coef", 0.001), left.pop(f"{actor}kl_loss_type", "low_var_kl")
    of_reward = left.pop(f"{control}kl_coef", 0.001), left.pop("algorithm.kl_penalty", "kl")
    adaptive = left.pop(f"{control}type", "fixed") == "adaptive"
    target, horizon = left.pop(f"{control}target_kl", 0.1), left.pop(f"{control}horizon", 10000)
    if in_loss is True and in_reward is True:
        found.ask("kl_in", "use_kl_loss and use_kl_in_reward are both on: it is one of loss and reward")
    coefficient, kind = of_loss if in_loss is True else of_reward
    if in_loss is not True and in_reward is not True:
        found.flags["init_kl_coef"] = 0.0
        return
    found.flags |= {"kl_in": "loss" if in_loss is True else "reward", "init_kl_coef": coefficient}
    if named(kind) in KL:
        found.flags["kl_estimator"] = KL[kind]
    else:
        found.ask("kl_estimator", f"{display(kind)} is none of k1, k2 and k3")
    if adaptive and in_loss is not True:
        found.flags |= {"target": target, "horizon": horizon}


def _verl_overlong(found: Translation, left: dict[str, Any]) -> None:
    """verl's buffer counts tokens."""
    names = [name for name in left if "overlong_buffer_cfg." in name]
    given = {name.rpartition(".")[2]: left.pop(name) for name in names}
    longest, length = left.get("data.max_response_length"), given.get("len")
    if given.get("enable") is not True:
        return
    found.flags["overlong_penalty"] = given.get("penalty_factor", 1.0)
    if type(length) is int and type(longest) is int and longest:
        found.flags["overlong_buffer"] = length / longest
    else:
        found.ask("overlong_buffer", f"overlong_buffer_cfg.len={display(length)}, as a share of --max_new_tokens")


def _verl_batches(found: Translation, left: dict[str, Any]) -> None:
    """Prompts of an iteration and of an update, times the replies to each."""
    actor = "actor_rollout_ref.actor."
    n = left.pop("actor_rollout_ref.rollout.n", 1)
    whole(found, "num_generations", n)
    whole(found, "num_rollouts", left.pop("data.train_batch_size", 1024), n)
    whole(found, "global_batch", left.pop(f"{actor}ppo_mini_batch_size", 256), n)
    if all(f"{actor}clip_ratio_{side}" in left for side in ("low", "high")):
        left.pop(f"{actor}clip_ratio", None)
    if left.pop(f"{actor}use_dynamic_bsz", False) is not True:
        left.pop(f"{actor}ppo_max_token_len_per_gpu", None)
    steps = {
        "trainer.total_training_steps": "max_updates",
        "trainer.save_freq": "save_updates",
        "trainer.test_freq": "eval_updates",
    }
    if left.get("trainer.total_training_steps") is None:
        found.flags["max_updates"] = -1
    else:
        left.pop("trainer.total_epochs", None)
    _iterations(found, left, steps, left.get(f"{actor}ppo_epochs", 1))
    if found.flags.get("method") in ("ppo", "reinforce_pp") and n == 1:
        found.flags.pop("num_generations", None)


# --- OpenRLHF


def _word_of_openrlhf(program: str, values: dict[str, Any]) -> str:
    words = {"sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo", "ppo_ray": "ppo"}
    found = re.search(r"train_(\w+)", program)
    if not found or found[1] not in words:
        raise InputError(f"{program or 'the file'} is none of openrlhf.cli.train_{', train_'.join(words)}")
    return words[found[1]]


def _openrlhf(found: Translation, left: dict[str, Any], stage: str) -> None:
    for name in ("ds.zero_stage", "zero_stage"):
        if name in left:
            offload = left.pop("ds.adam_offload", None) or left.pop("adam_offload", None)
            zero = named(left.pop(name))
            config = {"1": "zero1", "2": "zero2", "3": "zero3"}
            if zero in config:
                found.flags["deepspeed"] = config[zero] + ("_offload" if offload and zero != "1" else "")
    data = [name for name in ("data.dataset", "dataset", "data.prompt_dataset", "prompt_data") if name in left]
    if not data:
        found.ask("prompts" if stage == "ppo" else "dataset", "none in the file")
    rank = next((left[name] for name in ("ds.lora.rank", "lora_rank") if name in left), 0)
    if not rank:
        for name in [name for name in left if "lora" in name]:
            left.pop(name)
    elif not any(name in left for name in ("ds.lora.alpha", "lora_alpha")):
        left["ds.lora.alpha"] = 16
    if taken(left, "logger.wandb.key", "use_wandb") is not None:
        found.flags["tracking"] = "auto"
    if stage == "preference" and left.pop("model.ipo_enable", left.pop("ipo", False)) is True:
        found.flags["loss"] = "ipo"
    if stage == "ppo":
        _openrlhf_on_prompts(found, left)


def _openrlhf_on_prompts(found: Translation, left: dict[str, Any]) -> None:
    estimator = named(taken(left, "algo.advantage.estimator", "advantage_estimator") or "gae")
    loss = named(taken(left, "actor.policy_loss_type", "policy_loss_type") or "ppo")
    method = METHODS_OF_OPENRLHF.get(estimator)
    if loss == "gspo" and method == "grpo":
        method = "gspo"
    if method and loss in ("ppo", "gspo"):
        found.flags["method"] = method
    else:
        found.ask("method", f"estimator={display(estimator)}, policy_loss_type={display(loss)}: see docs/methods.md")
    n = taken(left, "rollout.n_samples_per_prompt", "n_samples_per_prompt") or 1
    whole(found, "num_rollouts", taken(left, "rollout.batch_size", "rollout_batch_size") or 1024, n)
    if n != 1:
        whole(found, "num_generations", n)
    bounds = taken(left, "actor.eps_clip_low_high", "eps_clip_low_high")
    if isinstance(bounds, list) and len(bounds) == 2:
        taken(left, "actor.eps_clip", "eps_clip")
        found.flags |= {"epsilon_low": bounds[0], "epsilon_high": bounds[1]}
    if taken(left, "algo.kl.use_loss", "use_kl_loss") is True:
        found.flags["kl_in"] = "loss"
    if not any(name in left for name in ("algo.kl.target", "kl_target")):
        taken(left, "algo.kl.horizon", "kl_horizon")
    reward = taken(left, "reward.model_name_or_path", "reward_pretrain")
    remote = taken(left, "reward.remote_url", "remote_rm_url")
    scale = taken(left, "reward.normalize_enable", "normalize_reward") is True
    if isinstance(reward, str) and remote is None:
        paths = reward.split(",")
        names = ["reward"] if len(paths) == 1 else [f"reward{number}" for number in range(1, len(paths) + 1)]
        scorers = ",".join(f"{name}={path}" for name, path in zip(names, paths, strict=True))
        give(found, "scorers", scorers, f"reward={reward}")
        if (
            method == "ppo"
            and "scorers" in found.flags
            and not any(name in left for name in ("critic.model_name_or_path", "critic_pretrain"))
        ):
            found.flags["critic"] = paths[0]
    else:
        rewards(found, remote if remote is not None else reward, "reward")
    found.flags |= {"normalize": "run" if scale else "none", "max_updates": -1}
    if scale:
        found.lines.append("normalize: OpenRLHF's is by running moments, here each scorer is shifted and scaled once")
    length = taken(left, "data.max_len", "max_len") or 2048
    for flag, names in (
        ("max_prompt", ["prompt_max_len"]),
        ("max_new_tokens", ["rollout.max_new_tokens", "generate_max_len"]),
    ):
        if not any(name in left for name in names):
            found.ask(flag, f"max_len={display(length)} is of a prompt with its reply")
    _iterations(
        found, left, {"ckpt.save_steps": "save_updates", "save_steps": "save_updates", "eval.steps": "eval_updates",
                      "eval_steps": "eval_updates"}, None,
    )  # fmt: skip
    if found.flags.get("method") != "ppo":
        for name in [name for name in left if name.startswith("critic")]:
            left.pop(name)


_OPENRLHF: dict[str, Any] = {
    "train.batch_size": 128, "adam.betas": [0.9, 0.95], "lr_scheduler": "cosine_with_min_lr", "lr_warmup_ratio": 0.03,
    "train.seed": 42, "ckpt.save_steps": -1,
}  # fmt: skip
OPENRLHF = Library(
    re.compile(r"openrlhf[./]cli[./]train_\w+"),
    _word_of_openrlhf,
    {
        "sft": {**_OPENRLHF, "adam.lr": 5e-6, "data.max_len": 2048, "train.micro_batch_size": 8, "train.max_epochs": 2},
        "reward": {**_OPENRLHF, "adam.lr": 9e-6, "data.max_len": 512, "train.micro_batch_size": 1,
                   "train.max_epochs": 1},
        "preference": {**_OPENRLHF, "adam.lr": 1e-5, "data.max_len": 512, "train.micro_batch_size": 8,
                       "train.max_epochs": 1, "model.beta": 0.1},
        "ppo": {**_OPENRLHF, "actor.adam.lr": 1e-6, "critic.adam.lr": 9e-6, "train.micro_batch_size": 1,
                "train.max_epochs": 1, "train.num_episodes": 1, "algo.kl.init_coef": 0.01, "algo.kl.estimator": "k1",
                "algo.advantage.gamma": 1, "algo.advantage.lambd": 1, "actor.eps_clip": 0.2, "critic.value_clip": 0.5,
                "rollout.temperature": 1.0, "rollout.top_p": 1.0, "reward.clip_range": [-10, 10]},
    },
    _openrlhf,
    frozenset({"local_rank", "data.apply_chat_template", "apply_chat_template", "ds.packing_samples",
               "packing_samples", "ckpt.save_hf", "save_hf_ckpt"}),
)  # fmt: skip
VERL = Library(
    re.compile(r"verl[./]trainer[./](main_ppo|fsdp_sft_trainer|sft_trainer\w*)|\brecipe\.dapo\.main_dapo\b"),
    _word_of_verl,
    {
        "sft": {"optim.lr": 1e-5, "optim.betas": [0.9, 0.95], "optim.weight_decay": 0.01,
                "optim.lr_warmup_steps_ratio": 0.1, "optim.lr_scheduler": "cosine", "data.train_batch_size": 256,
                "data.micro_batch_size_per_gpu": 4, "data.max_length": 1024, "trainer.total_epochs": 4},
        "ppo": {"actor_rollout_ref.actor.optim.lr": 1e-6, "actor_rollout_ref.actor.optim.weight_decay": 0.01,
                "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
                "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant", "critic.optim.lr": 1e-5,
                "critic.cliprange_value": 0.5, "actor_rollout_ref.actor.clip_ratio": 0.2,
                "actor_rollout_ref.actor.clip_ratio_c": 3.0, "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
                "actor_rollout_ref.actor.ppo_epochs": 1, "algorithm.gamma": 1.0, "algorithm.lam": 1.0,
                "data.max_prompt_length": 512, "data.max_response_length": 512,
                "actor_rollout_ref.rollout.temperature": 1.0, "trainer.total_epochs": 30, "trainer.save_freq": -1},
    },
    _verl,
    frozenset({"data.truncation", "data.return_raw_chat", "reward_model.use_reward_loop"}),
)  # fmt: skip

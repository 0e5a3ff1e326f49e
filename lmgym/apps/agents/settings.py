"""LlamaGym's two dicts of settings as a PPOConfig, and notes on keys that mean nothing here.

Names and defaults are those of LlamaGym and of TRL 0.11's PPOConfig; any flag of `lmgym train ppo` is a name too.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from lmgym.errors import InputError, listed, nearest, shown

if TYPE_CHECKING:
    from ppo.config import PPOConfig

SAMPLING = {"max_new_tokens": 32, "do_sample": True, "top_p": 0.6, "top_k": 0, "temperature": 0.9}
"""LlamaGym's, without a generate_config_dict"""
BATCHES = {"batch_size": 16, "mini_batch_size": 16}
"""LlamaGym's, without a ppo_config_dict"""
BATCH_SIZE = 128
"""TRL's, with a ppo_config_dict that has none"""
TRL_DEFAULTS = {"learning_rate": 1.41e-5, "max_grad_norm": 1e9, "schedule": "constant_with_warmup", "warmup": 0.0}
TRL_PPO = {"init_kl_coef": 0.2, "target": 6.0, "vf_coef": 0.1}
NO_LIMITS = {"cliprange_reward": math.inf, "max_kl": 0.0, "min_length": 0.0}
UNUSED = {
    "exp_name", "log_with", "task_name", "model_name", "query_dataset", "reward_model", "remove_unused_columns",
    "tracker_kwargs", "accelerator_kwargs", "project_kwargs", "tracker_project_name", "push_to_hub_if_best_kwargs",
    "steps", "forward_batch_size", "world_size", "optimize_cuda_cache", "optimize_device_cache", "compare_steps",
    "ratio_threshold", "use_score_scaling", "use_score_norm", "whiten_rewards", "is_encoder_decoder", "is_peft_model",
    "backward_batch_size", "global_batch_size",
}  # fmt: skip
"""of TRL's PPOConfig, without an equivalent"""
OWN_NAMES = {
    "batch_size", "mini_batch_size", "gradient_accumulation_steps", "adap_kl_ctrl", "kl_penalty", "target_kl",
    "early_stopping", "score_clip", "batch_unit",
}  # fmt: skip
"""of TRL's PPOConfig, that are called otherwise here, and the unit of batch_size"""
UNITS = ("episodes", "turns")
UNIT = "batch_unit"
LOOP_GROUPS = ("reward", "method", "critic", "optimizer", "limits")
"""groups of a PPOConfig that a program with its own loop reads"""
NOT_IN_LOOP = {
    "scorers", "weights", "eval_scorer", "monitor_scorers", "best_metric", "normalize",
    "max_failed_rewards", "reward_timeout", "reference", "max_refills", "critic", "max_kl",
    "min_length", "schedule", "warmup", "epochs", "max_updates", "split_seed",
}  # fmt: skip
"""flags of those groups that only a run reads"""
GENERATE, PPO = "generate_config_dict", "ppo_config_dict"


def agent_config(
    generate: Mapping[str, Any] | None, ppo: Mapping[str, Any] | None, device_type: str = "cpu"
) -> "tuple[PPOConfig, list[str]]":
    """(the config of a program with its own loop, notes). Raises InputError for values out of range, for greedy
    sampling, and for methods that compare several episodes of one start.
    """
    from ppo.check import bias_notes, check_settings
    from ppo.config import PPOConfig

    given = _plain(BATCHES if ppo is None else ppo)
    if (unit := given.get(UNIT, UNITS[0])) not in UNITS:
        raise InputError(f"{PPO}: {UNIT}={shown(unit)}; needed: {' or '.join(UNITS)}, which batch_size counts")
    flags = _flags(PPOConfig("agent"), LOOP_GROUPS) - NOT_IN_LOOP
    config, notes = _build("agent", generate, given, flags)
    config = replace(config, policy=replace(config.policy, precision="bf16" if device_type == "cuda" else "fp32"))
    if config.algorithm.compares:
        raise InputError(
            f"method={config.method.method} compares several episodes of one start, and this loop plays one at a time; "
            "needed: ppo or reinforce_pp, or lmgym.agents.train, which plays groups"
        )
    check_settings(config, 1)
    return config, [*notes, *bias_notes(config)]


def counts_turns(ppo: Mapping[str, Any] | None) -> bool:
    """True if batch_size counts turns, as LlamaGym's does, instead of episodes."""
    return _plain(ppo or {}).get(UNIT) == UNITS[1]


def run_config(
    name: str, generate: Mapping[str, Any] | None, ppo: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> "tuple[PPOConfig, list[str]]":
    """(the config of a run, notes); `settings` are flags of `lmgym train ppo`, below what the dicts set;
    `num_rollouts`, which is among them, is the batch."""
    from ppo.config import PPOConfig

    if counts_turns(ppo):
        raise InputError(
            f"{PPO}: {UNIT}='turns' is for a loop of your own; needed: without it, num_envs episodes are an iteration"
        )
    groups = [field.name for field in fields(PPOConfig) if field.name != "name"]
    flags = _flags(PPOConfig(name), groups)
    return _build(name, generate, dict(settings) | _plain(ppo or {}) | {"batch_size": settings["num_rollouts"]}, flags)


def _build(
    name: str, generate: Mapping[str, Any] | None, ppo: Mapping[str, Any], flags: Iterable[str]
) -> "tuple[PPOConfig, list[str]]":
    from ppo.config import PPOConfig

    sampling, notes = _sampling(generate)
    known = OWN_NAMES | set(flags)
    values, batches = dict(TRL_DEFAULTS | NO_LIMITS | sampling), _batches(ppo)
    values |= TRL_PPO if ppo.get("method", "ppo") == "ppo" else {}
    values |= batches | _renamed(ppo) | {key: value for key, value in ppo.items() if key in known - OWN_NAMES}
    values["num_rollouts"] = batches["num_rollouts"]
    if ppo.get("adap_kl_ctrl") is False or values.get("init_kl_coef") == 0:
        values["target"] = None
    notes += _notes(PPO, ppo, known, UNUSED)
    if (kind := ppo.get("kl_penalty", "kl")) not in ("kl", "mse"):
        notes.append(f"{PPO}: kl_penalty={shown(kind)} has no equivalent: the KL is estimated by k1")
    config = _filled(PPOConfig(name), values)
    config.refuse_unread([key for key in ppo if key in flags])
    return config, notes


def _sampling(given: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Fields of RolloutConfig, and notes. Raises InputError for greedy and beam search."""
    from transformers import GenerationConfig

    settings = _plain(SAMPLING if given is None else given)
    if not settings.get("do_sample", True) or settings.get("num_beams", 1) != 1 or settings.get("temperature") == 0:
        raise InputError(
            f"{GENERATE} asks for greedy or beam search; needed: do_sample=True, for a policy must explore"
        )
    known = {"max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty"}
    found = {name: value for name, value in settings.items() if name in known and value is not None}
    stops = settings.get("stop_strings") or ()
    found["stop"] = (stops,) if isinstance(stops, str) else tuple(stops)
    unused = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    return {"max_new_tokens": SAMPLING["max_new_tokens"]} | found, _notes(
        GENERATE, settings, known | {"do_sample", "num_beams", "stop_strings"}, unused
    )


def _batches(ppo: Mapping[str, Any]) -> dict[str, int]:
    """Episodes of an iteration and of an update, and turns of a forward."""
    whole = int(ppo.get("batch_size", BATCH_SIZE))
    part, steps = int(ppo.get("mini_batch_size", whole)), int(ppo.get("gradient_accumulation_steps", 1))
    if part < 1 or steps < 1 or whole < 1 or whole % (part * steps):
        raise InputError(
            f"batch_size={whole} is not a multiple of mini_batch_size={part} x gradient_accumulation_steps={steps}; "
            "needed: whole minibatches, as batch_size=16 and mini_batch_size=16"
        )
    return {"num_rollouts": whole, "global_batch": part * steps, "micro_batch": part}


def _renamed(ppo: Mapping[str, Any]) -> dict[str, Any]:
    """The values of TRL's names under ours."""
    values: dict[str, Any] = {}
    if ppo.get("early_stopping"):  # TRL leaves an epoch at 1.5 times its target_kl
        values["stop_kl"] = 1.5 * ppo.get("target_kl", 1.0)
    if ppo.get("score_clip") is not None:
        values["cliprange_reward"] = ppo["score_clip"]
    if ppo.get("kl_penalty") == "mse":
        values["kl_estimator"] = "k2"
    return values


def _notes(where: str, given: Mapping[str, Any], known: Iterable[str], unused: Iterable[str]) -> list[str]:
    """A line on the keys that exist elsewhere only, and one on each that exists nowhere, with the nearest name."""
    known, unused = set(known), set(unused) - set(known)
    notes, idle = [], sorted(key for key, value in given.items() if key in unused and value is not None)
    if idle:
        notes.append(f"{where}: {listed(idle)} {'has' if len(idle) == 1 else 'have'} no meaning here")
    for key in sorted(given.keys() - known - unused):
        near = nearest(key, known)
        notes.append(f"{where}: {shown(key)} is unknown and not used{f'; did you mean {near}?' if near else ''}")
    return notes


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without prefixes such as `generate/`. Raises InputError for what is no dict."""
    if not isinstance(given, Mapping):
        raise InputError(f"settings are {shown(given)}; needed: a dict, or None for LlamaGym's own")
    return {str(key).rpartition("/")[2]: value for key, value in given.items()}


def _flags(config: Any, groups: Iterable[str]) -> set[str]:
    return {field.name for group in groups for field in fields(getattr(config, group))}


def _filled(config: "PPOConfig", values: Mapping[str, Any]) -> "PPOConfig":
    """The config with the values in the groups that have fields of their names."""
    changed: dict[str, Any] = {}
    for field in fields(config):
        group = getattr(config, field.name)
        if is_dataclass(group):
            own = {key: value for key, value in values.items() if key in vars(group)}
            changed[field.name] = replace(group, **own)  # type: ignore[type-var]
    return replace(config, **changed)

"""A trlx config as lmgym's: what each field becomes, and notes on those that have no meaning here.

trlx counts rows of one rank, lmgym those of all ranks. What trlx does not have is off: clipped gradients, a warm-up,
the limits at which a run counts as collapsed.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, NamedTuple

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.distributed.ranks import rank, world_size
from lmgym.errors import InputError, shown
from lmgym.training.reporting import show_notes
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.trlx.adapters import adapter_settings
from ppo.trlx.data.configs import TRLConfig
from ppo.trlx.data.method_configs import PPOConfig as Method

NO_CLIPPING = 1e9
ADAM_EPSILON, ADAM_BETA1 = 1e-5, 0.9
SAME_OPTIMIZER = {"adamw", "adam", "adam_8bit_bnb", "adamw_8bit_bnb"}
UNUSED = {
    "model.model_extra_configs": "the model is loaded as its own config says",
    "tokenizer.padding_side": "rows are packed, without padding",
    "tokenizer.truncation_side": "a prompt that is too long loses its beginning",
    "tokenizer.tokenizer_extra_configs": "the tokenizer is loaded as its own config says",
    "train.trainer_kwargs": "the loop is lmgym's",
    "train.project_name": "set WANDB_PROJECT",
    "train.entity_name": "set WANDB_ENTITY",
    "train.group_name": "set WANDB_RUN_GROUP",
    "train.tags": "set WANDB_TAGS",
    "train.rollout_logging_dir": "rollouts are in samples/ of checkpoint_dir",
    "train.logging_dir": "TensorBoard's files are in tensorboard/ of checkpoint_dir",
    "train.save_optimizer": "checkpoints always have the optimizer",
    "train.resume_from_checkpoint": "a run of the same settings resumes by itself from checkpoint_dir",
    "method.ref_mean": "a constant in all rewards changes no advantage",
    "method.num_value_layers_unfrozen": "the critic is a head on the policy's trunk",
}
"""fields that nothing reads, and what to do or know instead"""
TRAINERS = ("AcceleratePPOTrainer", "AccelerateSFTTrainer", "AccelerateRFTTrainer")
SAMPLING: dict[str, type] = {
    "max_new_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "repetition_penalty": float,
}


class Schedule(NamedTuple):
    """A schedule of the learning rate, and a note if it only resembles trlx's."""

    name: Literal["linear", "cosine", "constant_with_warmup"]
    warmup: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Shared:
    """The groups of settings that PPO and SFT share."""

    model: ModelConfig
    optimizer: OptimizerConfig
    run: RunConfig
    notes: list[str]
    """a line on each field that has no meaning here"""


def show(notes: Iterable[str]) -> None:
    """Prints each note once, on the main rank."""
    show_notes([f"trlx: {note}" for note in dict.fromkeys(notes)] if rank() == 0 else [])


def number(name: str, value: Any, kind: Callable[[float], Any] = float) -> Any:
    """A number; text that is one counts, because YAML reads 1e-5 as text. Raises InputError for anything else."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
        return kind(found)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {shown(value)}; needed: one number") from None


def ppo_config(config: TRLConfig, stop: Iterable[str] = ()) -> tuple[PPOConfig, list[str]]:
    """(our config, notes). Raises InputError for what PPO here cannot do."""
    method, ranks = config.method, world_size()
    assert isinstance(method, Method)
    batch = number("train.batch_size", config.train.batch_size, int)
    asked = number("method.num_rollouts", method.num_rollouts, int)
    rollouts = max(1, -(-asked // max(1, batch))) * batch
    epochs = number("method.ppo_epochs", method.ppo_epochs, int)
    shared = shared_settings(config, updates_per_epoch=epochs * rollouts // max(1, batch))
    sampling, notes = rollout_settings(config, stop, method.gen_experience_kwargs)
    if rollouts != asked:
        notes.append(f"method.num_rollouts={asked} becomes {rollouts}: whole batches of train.batch_size={batch}")
    notes += whole_iterations(shared.optimizer.max_updates, epochs * rollouts // max(1, batch))
    scale, why = _reward_scale(method)
    ours = PPOConfig(
        run_name(config),
        shared.model,
        RolloutConfig(
            num_rollouts=rollouts * ranks,
            **sampling,
            generation_batch_size=number("method.chunk_size", method.chunk_size, int),
        ),
        RewardConfig(cliprange_reward=_or_infinite("cliprange_reward", method.cliprange_reward), scale=scale),
        MethodConfig(
            ppo_epochs=epochs,
            num_layers_unfrozen=unfrozen_layers(config),
            init_kl_coef=number("method.init_kl_coef", method.init_kl_coef),
            target=None if method.target is None else number("method.target", method.target),
            horizon=number("method.horizon", method.horizon),
            cliprange=number("method.cliprange", method.cliprange),
        ),
        shared.optimizer,
        shared.run,
        CriticConfig(
            gamma=number("method.gamma", method.gamma),
            lam=number("method.lam", method.lam),
            cliprange_value=number("method.cliprange_value", method.cliprange_value),
            vf_coef=number("method.vf_coef", method.vf_coef),
        ),
        LimitConfig(max_kl=0.0, min_length=0.0),
    )
    return ours, [*shared.notes, *notes, *([why] if why else [])]


def shared_settings(config: TRLConfig, updates_per_epoch: int) -> Shared:
    """The settings that PPO and SFT share. Raises InputError for models and optimizers that are not here."""
    train, ranks = config.train, world_size()
    if config.model.model_arch_type != "causal":
        found = shown(config.model.model_arch_type)
        raise InputError(f"model.model_arch_type is {found}; needed: causal, a decoder; an encoder-decoder is not here")
    if not isinstance(config.model.model_path, str | os.PathLike):
        found = type(config.model.model_path).__name__
        raise InputError(f"model.model_path is a {found}; needed: the folder or hub id of a model, saved before")
    batch = number("train.batch_size", train.batch_size, int)
    updates = min(
        number("train.total_steps", train.total_steps, int),
        number("train.epochs", train.epochs, int) * max(1, updates_per_epoch),
    )
    optimizer, notes = _optimizer(config, updates)
    adapters, more = adapter_settings(config.model.peft_config, config.model.num_layers_unfrozen)
    precision, deepspeed = _launch_settings(os.environ)
    trackers = {"wandb": "auto", "tensorboard": "tensorboard", None: "none"}
    if train.tracker not in trackers:
        raise InputError(f"train.tracker is {shown(train.tracker)}; needed: wandb, tensorboard, or None")
    every = number("train.checkpoint_interval", train.checkpoint_interval, int)
    settings = OptimizerConfig(
        **optimizer,
        max_grad_norm=NO_CLIPPING,
        global_batch=batch * ranks,
        max_updates=updates,
        micro_batch=batch if train.minibatch_size is None else number("minibatch_size", train.minibatch_size, int),
        seed=number("train.seed", train.seed, int),
    )
    run: dict[str, Any] = {
        "output": train.checkpoint_dir,
        "deepspeed": deepspeed,
        "tracking": trackers[train.tracker],
        "eval_updates": number("train.eval_interval", train.eval_interval, int),
        "save_updates": -1 if every >= updates else every,
    }
    model: dict[str, Any] = {"precision": precision, **adapters}
    return Shared(
        ModelConfig(str(config.model.model_path), **model),
        settings,
        RunConfig(**run),
        [*_unused(config), *notes, *more],
    )


def whole_iterations(updates: int, each: int) -> list[str]:
    """A note if the run's last iteration, of `each` updates, goes on past its updates."""
    rest = updates % max(1, each)
    if not rest:
        return []
    return [f"train.total_steps: {updates} updates become {updates - rest + each}, in whole iterations of {each}"]


def run_name(config: TRLConfig) -> str:
    """The name of the run, of characters that a folder may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", config.train.run_name or "trlx")[:200]


def rollout_settings(
    config: TRLConfig, stop: Iterable[str], for_rollouts: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Sampling and prompts as fields of RolloutConfig, and notes. Raises InputError if no prompt fits."""
    sampling, notes = sampling_settings(config.method.gen_kwargs, for_rollouts)
    room = number("train.seq_length", config.train.seq_length, int) - sampling["max_new_tokens"]
    if room < 1:
        raise InputError(
            f"train.seq_length={config.train.seq_length} leaves no room for a prompt beside "
            f"max_new_tokens={sampling['max_new_tokens']}; needed: a longer seq_length or fewer new tokens"
        )
    return {**sampling, "max_prompt": room, "stop": tuple(stop)}, notes


def sampling_settings(given: Mapping[str, Any], for_rollouts: Mapping[str, Any] | None) -> tuple[dict, list[str]]:
    """Settings of the rollouts, which evaluations share, and notes. Raises InputError for what is not sampling."""
    merged = {**given, **(for_rollouts or {})}
    if not merged.get("do_sample", True) or merged.get("num_beams", 1) != 1:
        raise InputError("gen_kwargs ask for greedy or beam search; needed: do_sample=True, for a policy must explore")
    if "max_new_tokens" not in merged:
        raise InputError("gen_kwargs lack max_new_tokens; needed: the most tokens of a reply, instead of max_length")
    found = {n: number(f"gen_kwargs.{n}", merged[n], kind) for n, kind in SAMPLING.items() if n in merged}
    others = sorted(merged.keys() - SAMPLING.keys() - {"do_sample", "num_beams"})
    notes = [f"gen_kwargs.{name}={shown(merged[name])} is not used: sampling has no such setting" for name in others]
    if for_rollouts and any(given.get(name) != value for name, value in for_rollouts.items()):
        notes.append("gen_kwargs beside gen_experience_kwargs are not used: evaluations sample as rollouts do")
    return found, notes


def _optimizer(config: TRLConfig, updates: int) -> tuple[dict[str, Any], list[str]]:
    """Settings of AdamW with its schedule, and notes."""
    given, name = dict(config.optimizer.kwargs), str(config.optimizer.name).lower()
    if name not in SAME_OPTIMIZER:
        raise InputError(f"optimizer.name is {shown(name)}; needed: adamw")
    if "lr" not in given:
        raise InputError("optimizer.kwargs lack lr; needed: the learning rate")
    rate = number("optimizer.kwargs.lr", given.pop("lr"))
    beta1, beta2 = given.pop("betas", (ADAM_BETA1, 0.999))
    decay = number("optimizer.kwargs.weight_decay", given.pop("weight_decay", 0.0))
    schedule = find_schedule(config.scheduler.name, config.scheduler.kwargs, rate, updates)
    notes = [] if name == "adamw" else [f"optimizer.name={name}: the optimizer is AdamW"]
    if beta1 != ADAM_BETA1:
        notes.append(f"optimizer.kwargs.betas={beta1}, ...: the first is {ADAM_BETA1} here")
    if "eps" in given and number("optimizer.kwargs.eps", given.pop("eps")) != ADAM_EPSILON:
        notes.append(f"optimizer.kwargs.eps is not used: it is {ADAM_EPSILON:g} in PPO, and torch's own in SFT")
    notes += [f"optimizer.kwargs.{key}={shown(value)} is not used" for key, value in given.items()]
    settings = {
        "learning_rate": rate,
        "adam_beta2": number("optimizer.kwargs.betas", beta2),
        "weight_decay": decay,
        "schedule": schedule.name,
        "warmup": schedule.warmup,
    }
    return settings, [*notes, *filter(None, [schedule.note])]


def find_schedule(name: str, kwargs: Mapping[str, Any], rate: float, updates: int) -> Schedule:
    """The schedule nearest to torch's CosineAnnealingLR or LinearLR. Raises InputError for others."""
    values = {key: number(f"scheduler.kwargs.{key}", value) for key, value in kwargs.items()}
    if name == "cosine_annealing":
        span, least = values.get("T_max", float(updates)), values.get("eta_min", 0.0)
        if span <= 0:
            raise InputError(f"scheduler.kwargs.T_max={span:g}; needed: above 0, the updates of the run")
        end = least + (rate - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, updates / span)))
        if end > 0.9 * rate:
            return Schedule("constant_with_warmup")
        exact = span == updates and least == 0
        return Schedule("cosine", note="" if exact else f"the cosine falls to 0 over the run's {updates} updates")
    if name == "linear":
        start, end, span = (
            values.get("start_factor", 1 / 3),
            values.get("end_factor", 1.0),
            values.get("total_iters", 5.0),
        )
        if start < end:
            return Schedule("constant_with_warmup", span, f"the learning rate rises from 0 over {span:g} updates")
        if start == end:
            return Schedule("constant_with_warmup")
        exact = (start, end, span) == (1, 0, updates)
        return Schedule(
            "linear", note="" if exact else f"the learning rate falls to 0 over the run's {updates} updates"
        )
    raise InputError(f"scheduler.name is {shown(name)}; needed: cosine_annealing or linear")


def unfrozen_layers(config: TRLConfig) -> int:
    """Trained layers at the top; adapters train on all."""
    return -1 if config.model.peft_config else number("num_layers_unfrozen", config.model.num_layers_unfrozen, int)


def _reward_scale(method: Method) -> tuple[float, str]:
    """Factor of the rewards, and a note if they are not scaled as asked for."""
    asked = method.scale_reward
    if asked in (None, False, "ignored"):
        return 1.0, ""
    if asked not in ("ref", "running"):
        raise InputError(f"method.scale_reward is {shown(asked)}; needed: ignored, running or ref")
    if asked == "ref" and method.ref_std is not None:
        deviation = number("method.ref_std", method.ref_std)
        if deviation <= 0:
            raise InputError(f"method.ref_std={deviation:g}; needed: above 0")
        return 1 / deviation, ""
    return 1.0, f"method.scale_reward={asked} is not used; needed: scale_reward=ref with ref_std, a fixed divisor"


def _or_infinite(name: str, value: Any) -> float:
    return number(f"method.{name}", value) if value else math.inf


def _unused(config: TRLConfig) -> list[str]:
    """A line on each field in UNUSED that is not at trlx's default, and on another tokenizer than the model's."""
    notes = []
    if config.train.trainer not in TRAINERS:
        notes.append(f"train.trainer={shown(config.train.trainer)} is not used: config.method decides what runs")
    for name, why in UNUSED.items():
        section, _, key = name.partition(".")
        group = getattr(config, section)
        field = next((field for field in fields(group) if field.name == key), None)
        if field is None:  # of another method
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if (value := getattr(group, key)) != default:
            notes.append(f"{name}={shown(value)} is not used: {why}")
    if config.tokenizer.tokenizer_path != config.model.model_path:
        path = shown(config.tokenizer.tokenizer_path)
        notes.append(f"tokenizer.tokenizer_path={path} is not used: the tokenizer is that of model_path")
    return notes


def _launch_settings(environment: Mapping[str, str]) -> tuple[str, str | None]:
    """(precision, DeepSpeed config) that `accelerate launch` asks for; fp32 and none without it."""
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    deepspeed = None
    if environment.get("ACCELERATE_USE_DEEPSPEED", "false") == "true":
        file, stage = (environment.get(f"ACCELERATE_DEEPSPEED_{key}") for key in ("CONFIG_FILE", "ZERO_STAGE"))
        deepspeed = file or f"zero{stage or 2}"
    return precision if precision in ("bf16", "fp16") else "fp32", deepspeed

"""A user's DeepSpeed JSON, checked before anything is loaded.

Design decisions:
- DeepSpeed ignores a top-level key that it does not know, and a section that is absent is off: a misspelt ZeRO section
  trains without ZeRO. So unknown keys are refused, and what the run's arguments decide is "auto" where it is absent:
  the Trainer fills that from TrainingArguments, PPO by `lmgym.engine.resolve_config`.
"""

import copy
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lmgym.errors import InputError

DECIDED_BY_RUN = {  # by which argument
    "train_batch_size": "--global_batch",
    "train_micro_batch_size_per_gpu": "--micro_batch",
    "gradient_accumulation_steps": "--global_batch",
    "gradient_clipping": "--max_grad_norm",
    "bf16.enabled": "--precision",
    "fp16.enabled": "--precision",
}
SECTIONS = ("zero_optimization", "bf16", "fp16", "optimizer", "scheduler")
STAGES = (0, 1, 2, 3)
# all that deepspeed 0.19.8 reads, less what it refuses as removed, and `bfloat16`: bf16 would stand there twice
KNOWN = {
    *("activation_checkpointing", "aio", "autotuning", "bf16", "checkpoint", "comet", "comms_logger"),
    *("communication_data_type", "compile", "csv_monitor", "data_efficiency", "data_types", "dataloader_drop_last"),
    *("datastates_ckpt", "disable_allgather", "disable_python_gc", "dump_state", "expert_parallel", "flops_profiler"),
    *("fp16", "gradient_accumulation_steps", "gradient_allreduce_op", "gradient_clipping"),
    *("gradient_predivide_factor", "hybrid_engine", "log_level", "managed_gradient_accumulation", "memory_breakdown"),
    *("optimizer", "pipeline", "prescale_gradients", "scheduler", "seq_parallel_communication_data_type"),
    *("sequence_parallel_size", "steps_per_print", "tensor_parallel", "tensorboard", "timers", "torch_autocast"),
    *("train_batch_size", "train_micro_batch_size_per_gpu", "use_data_before_expert_parallelism", "vocabulary_size"),
    *("wall_clock_breakdown", "wandb", "weight_quantization", "zero_allow_untested_optimizer"),
    *("zero_force_ds_cpu_optimizer", "zero_optimization"),
}


def complete(config: Any, name: str = "DeepSpeed config") -> dict[str, Any]:
    """A copy of the config in which what the run decides is "auto" where it was absent.

    `name` stands in messages. Raises InputError for what no run can use.
    """
    if not isinstance(config, dict):
        raise InputError(f"{name} is a JSON {type(config).__name__}; needed: an object")
    if not config:
        raise InputError(f'{name} is empty; needed: at least {{"zero_optimization": {{"stage": 2}}}}')
    _refuse_unknown(config, name)
    _refuse_misshapen(config, name)
    completed = copy.deepcopy(config)
    completed.setdefault("zero_optimization", {}).setdefault("stage", 0)
    for path in DECIDED_BY_RUN:
        section, _, key = path.rpartition(".")
        (completed.setdefault(section, {}) if section else completed).setdefault(key, "auto")
    return completed


def _refuse_unknown(config: dict[str, Any], name: str) -> None:
    for key in config:
        if key not in KNOWN:
            raise InputError(f'{name}: "{key}" {_unread(key, sorted(KNOWN))}')


def _unread(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return "is nothing that DeepSpeed reads; " + (f'did you mean "{near[0]}"?' if near else "take it out")


def _refuse_misshapen(config: dict[str, Any], name: str) -> None:
    zero = config.get("zero_optimization", {})
    sections = {key: config[key] for key in SECTIONS if key in config}
    if isinstance(zero, dict):
        offloads = {key: zero.get(key) for key in ("offload_optimizer", "offload_param")}
        sections |= {f"zero_optimization.{key}": own for key, own in offloads.items() if own is not None}
    for path, section in sections.items():
        if not isinstance(section, dict):
            raise InputError(f'{name}: {path} is {json.dumps(section)}; needed: an object such as {{"...": ...}}')
    stage = zero.get("stage", 0)
    if type(stage) is not int or stage not in STAGES:  # true is an int too
        raise InputError(f"{name}: zero_optimization.stage is {json.dumps(stage)}; needed: 0, 1, 2 or 3")
    if all(config.get(key, {}).get("enabled") is True for key in ("bf16", "fp16")):
        raise InputError(f'{name}: bf16 and fp16 are both enabled; write "auto" in both, and --precision decides')


def refuse_odd_sections(config: dict[str, Any], name: str, sections: Mapping[str, Callable[..., Any]]) -> None:
    """Raises InputError for what DeepSpeed's `sections` refuse: they would, by a traceback, once models are loaded."""
    from pydantic import ValidationError  # of which they are made

    for section, model in sections.items():
        try:
            model(**config.get(section, {}))
        except ValidationError as error:
            found = error.errors()[0]
            path, key = ".".join(map(str, (section, *found["loc"]))), found["loc"][-1]
            if found["type"] != "extra_forbidden":
                value = json.dumps(found["input"], default=str)
                raise InputError(f"{name}: {path} is {value}; DeepSpeed says: {found['msg']}") from error
            known = getattr(model, "model_fields", ()) if len(found["loc"]) == 1 else ()
            raise InputError(f"{name}: {path} {_unread(str(key), known)}") from error


def run_values(micro_batch: int, accumulation: int, ranks: int, precision: str, max_grad_norm: float) -> dict[str, Any]:
    """The run's batches, what it computes in, and its clipping, in a config's words."""
    return {
        "train_batch_size": micro_batch * accumulation * ranks,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_grad_norm,
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": precision == "fp16",
    }


def refuse_disagreement(config: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises InputError where a config says otherwise than the run's arguments, which would lose silently."""
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        said = (config.get(section, {}) if section else config).get(key, "auto")
        if said not in ("auto", value):
            raise InputError(
                f"DeepSpeed config: {path} is {json.dumps(said)}, the arguments make it {json.dumps(value)}; "
                f'write "auto" there, or change {DECIDED_BY_RUN[path]}'
            )

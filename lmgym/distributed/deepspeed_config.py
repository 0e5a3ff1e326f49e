"""A user's DeepSpeed JSON, checked before anything is loaded.

Design decisions:
- DeepSpeed ignores a top-level key that it does not know, and a section that is absent is off: a misspelt ZeRO section
  trains without ZeRO. So unknown keys are refused, and what the run's arguments decide is "auto" where it is absent:
  the Trainer fills that from TrainingArguments, PPO by `resolve_config`: raw DeepSpeed knows no "auto" (it takes
  `bf16.enabled: "auto"` silently as fp32).
- On a CPU deepspeed's probe for compiled operators is skipped: its builds take minutes, and a killed one leaves a lock
  on which every later start hangs.

With deepspeed_engine.py the only module that imports deepspeed.
"""

import copy
import difflib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from lmgym.errors import InputError, one_line, shown_path

if not torch.accelerator.is_available():
    # accelerate asks deepspeed for the accelerator even where no run does: on a CPU it would warn each time
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

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


def import_deepspeed():
    """The package, quiet, and on a CPU without its probe for compiled operators."""
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not torch.cuda.is_available():
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def read_config(path: str | Path) -> dict[str, Any]:
    """A DeepSpeed config, "auto" where it left out what the run decides. Raises InputError for a file that is none."""
    path = Path(path)
    if not os.path.isfile(path):
        beside = Path(__file__).parents[2] / "configs"
        known = ", ".join(f"configs/{p.name}" for p in sorted(beside.glob("*.json")))
        raise InputError(
            f"DeepSpeed config {shown_path(path)} does not exist; needed: a JSON file such as {known or 'zero2.json'}"
        )
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"DeepSpeed config {shown_path(path)} is no JSON: {one_line(str(error))}") from error
    name = f"DeepSpeed config {path}"
    completed = complete(config, name)
    refuse_odd_sections(completed, name, _sections())
    return completed


def _sections() -> dict[str, Any]:
    """What DeepSpeed makes of a config's sections, by their names."""
    import_deepspeed()
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}


def zero_stage(config: dict[str, Any] | None) -> int:
    """The ZeRO level of a config, 0 where there is none."""
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def takes_parts(config: dict[str, Any] | None) -> bool:
    """Whether each backward of an update may reach a part of the weights alone.

    ZeRO-3 writes gradients in an update's first backward and adds to them in the others, whether or not it has
    written any; with offload those of the last backward alone reach the host (deepspeed 0.19.8).
    """
    offload = (config or {}).get("zero_optimization", {}).get("offload_optimizer") or {}
    return zero_stage(config) < 3 and offload.get("device", "none") == "none"


def resolve_config(
    config: dict[str, Any],
    micro_batch: int,
    accumulation: int,
    ranks: int,
    precision: str,
    max_grad_norm: float,
    hidden_size: int,
) -> dict[str, Any]:
    """The config with every "auto", and what is absent, filled in, as raw DeepSpeed takes it.

    Raises InputError for an "auto" that is left, and for what disagrees with the run.
    """
    decided = run_values(micro_batch, accumulation, ranks, precision, max_grad_norm)
    completed = complete(config)
    refuse_disagreement(completed, decided)
    buckets = {
        "zero_optimization.reduce_bucket_size": hidden_size * hidden_size,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
    return fill_auto(completed, decided | buckets, "")


def fill_auto(node: Any, values: dict[str, Any], path: str) -> Any:
    """The part of a config at `path`, each "auto" replaced by its value. Raises InputError for one that has none."""
    if isinstance(node, dict):
        return {key: fill_auto(item, values, f"{path}.{key}" if path else key) for key, item in node.items()}
    if node != "auto":
        return node
    if path not in values:
        raise InputError(f'DeepSpeed config: {path} is "auto", which only these may be: {", ".join(values)}')
    return values[path]

"""A user's DeepSpeed JSON, checked before anything is loaded.

Design decisions:
- DeepSpeed ignores an unknown top-level key, and an absent section is off: a misspelt ZeRO section trains without ZeRO.
  So unknown keys are refused, and absent settings that the run's arguments decide become "auto": the Trainer fills
  those from TrainingArguments, PPO by `resolve_config`, because raw DeepSpeed does not know "auto" (it silently takes
  `bf16.enabled: "auto"` as fp32).
- On a CPU we skip DeepSpeed's probe for compiled operators: its builds take minutes, and a killed build leaves a lock
  on which every later start hangs.

Only this module and deepspeed_engine.py import deepspeed.
"""

import copy
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from lmgym.console import VERBOSE
from lmgym.errors import InputError, did_you_mean, nearest, one_line, regular, shown_path

if not torch.accelerator.is_available():
    # accelerate queries deepspeed for the accelerator even without DeepSpeed: on a CPU it would warn each time
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

DECIDED_BY_RUN = {  # setting: the argument that decides it
    "train_batch_size": "--global_batch",
    "train_micro_batch_size_per_gpu": "--micro_batch",
    "gradient_accumulation_steps": "--global_batch",
    "gradient_clipping": "--max_grad_norm",
    "bf16.enabled": "--precision",
    "fp16.enabled": "--precision",
}
CONFIGS = Path(__file__).parents[1] / "configs"
"""the repository's configs/ through a link, so that the package contains it"""
MOST_LEVELS = 20
"""of lists and objects in a file: DeepSpeed's own settings have 4"""
SECTIONS = ("zero_optimization", "bf16", "fp16", "optimizer", "scheduler")
# all keys that deepspeed 0.19.8 reads, without those that it refuses as removed and `bfloat16`, a synonym of bf16
KNOWN_KEYS = {
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


def read_config(path: str | Path) -> dict[str, Any]:
    """A DeepSpeed config, with "auto" for absent settings that the run decides. Raises InputError if it is invalid.

    `path` is a file, or the name of one in configs/, with or without its suffix.
    """
    file, completed = parse_config(path)
    _refuse_invalid_sections(completed, f"DeepSpeed config {shown_path(file)}")
    return completed


def parse_config(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """The file of a config, and its content as `read_config` returns it; without importing DeepSpeed, which is slow.

    Raises InputError for a file that does not exist or cannot be read, is not JSON, or that no run can use.
    """
    file = _find_config(str(path))
    try:
        config = json.loads(regular(file).read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"DeepSpeed config {shown_path(file)} is not JSON: {one_line(str(error))}") from error
    except OSError as error:
        raise InputError(f"DeepSpeed config {shown_path(file)} cannot be read: {one_line(str(error))}") from error
    if _levels(config) > MOST_LEVELS:
        raise InputError(f"DeepSpeed config {shown_path(file)} has more than {MOST_LEVELS} levels of lists and objects")
    return file, complete(config, f"DeepSpeed config {shown_path(file)}")


def _levels(value: Any) -> int:
    """Levels of nested lists and objects; a loop, because functions that call themselves overflow at 1,000."""
    levels, items = 0, [value]
    while items:
        nested = [item for item in items if isinstance(item, dict | list)]
        items = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
        levels += bool(nested)
    return levels


def _find_config(name: str) -> Path:
    """The file of a path or of a shipped config's name. Raises InputError, with the names, if there is none."""
    if os.path.isfile(name):
        return Path(name)
    shipped = {path.stem: path for path in sorted(CONFIGS.glob("*.json"))}
    if name.removesuffix(".json") in shipped:
        return shipped[name.removesuffix(".json")]
    hint = did_you_mean(Path(name).stem, shipped)
    known = f"{', '.join(shipped)}, or the path of a JSON file"
    raise InputError(f"DeepSpeed config {shown_path(name)} does not exist; {hint}needed: {known}")


def complete(config: Any, name: str = "DeepSpeed config") -> dict[str, Any]:
    """A copy of the config with "auto" for absent settings that the run decides.

    `name` is used in messages. Raises InputError for a config that no run can use.
    """
    if not isinstance(config, dict):
        raise InputError(f"{name} is a JSON {type(config).__name__}; needed: an object")
    if not config:
        raise InputError(f'{name} is empty; needed: at least {{"zero_optimization": {{"stage": 2}}}}')
    for key in config:
        if key not in KNOWN_KEYS:
            raise InputError(f"{name}: {_as_json(key)} {_not_read(key, sorted(KNOWN_KEYS))}")
    _refuse_invalid_shape(config, name)
    completed = copy.deepcopy(config)
    completed.setdefault("zero_optimization", {}).setdefault("stage", 0)
    for path in DECIDED_BY_RUN:
        section, _, key = path.rpartition(".")
        (completed.setdefault(section, {}) if section else completed).setdefault(key, "auto")
    return completed


def _as_json(value: Any) -> str:
    """A value as the file has it, for a message."""
    return one_line(json.dumps(value, default=str), 80)


def _not_read(key: str, known: Iterable[str]) -> str:
    near = nearest(key, known, 0.6)
    return "is not read by DeepSpeed; " + (f'did you mean "{near}"?' if near else "remove it")


def _refuse_invalid_shape(config: dict[str, Any], name: str) -> None:
    zero = config.get("zero_optimization", {})
    sections = {key: config[key] for key in SECTIONS if key in config}
    if isinstance(zero, dict):
        offloads = {key: zero.get(key) for key in ("offload_optimizer", "offload_param")}
        sections |= {f"zero_optimization.{key}": offload for key, offload in offloads.items() if offload is not None}
    for path, section in sections.items():
        if not isinstance(section, dict):
            raise InputError(f'{name}: {path} is {_as_json(section)}; needed: an object such as {{"...": ...}}')
    stage = zero.get("stage", 0)
    if type(stage) is not int or stage not in (0, 1, 2, 3):  # True is an int too
        raise InputError(f"{name}: zero_optimization.stage is {_as_json(stage)}; needed: 0, 1, 2 or 3")
    if all(config.get(key, {}).get("enabled") is True for key in ("bf16", "fp16")):
        raise InputError(f'{name}: bf16 and fp16 are both enabled; write "auto" in both, and --precision decides')


def _refuse_invalid_sections(config: dict[str, Any], name: str) -> None:
    """Raises InputError for what DeepSpeed itself would refuse with a traceback, after the models are loaded."""
    import_deepspeed()
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    models = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
    for section, model in models.items():
        try:
            model(**config.get(section, {}))
        except ValidationError as error:
            first = error.errors()[0]
            path, key = ".".join(map(str, (section, *first["loc"]))), first["loc"][-1]
            if first["type"] != "extra_forbidden":
                found = f"{shown_path(path)} is {_as_json(first['input'])}"
                raise InputError(f"{name}: {found}; DeepSpeed says: {one_line(first['msg'], 80)}") from error
            known = model.model_fields if len(first["loc"]) == 1 else ()
            raise InputError(f"{name}: {shown_path(path)} {_not_read(str(key), known)}") from error


def import_deepspeed():
    """The deepspeed package, whose logs are quiet by default, and on a CPU without its probe for compiled operators.

    Its enumeration in checkpoints is pickled by value on all Pythons: 3.11.0 to 3.11.3 would write a call of getattr.
    """
    import deepspeed
    from deepspeed.runtime.zero.config import ZeroStageEnum

    ZeroStageEnum.__reduce_ex__ = lambda stage, _: (type(stage), (stage.value,))
    level, logger = logging.INFO if VERBOSE else logging.WARNING, logging.getLogger("DeepSpeed")
    logger.setLevel(level)
    for handler in logger.handlers:
        handler.setLevel(level)
    if not torch.cuda.is_available():
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def zero_stage(config: dict[str, Any] | None) -> int:
    """The ZeRO stage of a config; 0 without one."""
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def allows_partial_backward(config: dict[str, Any] | None) -> bool:
    """True if each backward of an update may reach only part of the weights.

    ZeRO-3 writes gradients in an update's first backward and adds to them in the others, even if the first wrote none;
    with offload only the gradients of the last backward reach the host (deepspeed 0.19.8).
    """
    offload = (config or {}).get("zero_optimization", {}).get("offload_optimizer") or {}
    return zero_stage(config) < 3 and offload.get("device", "none") == "none"


def match_run(
    config: dict[str, Any], micro_batch: int, accumulation: int, ranks: int, precision: str, max_grad_norm: float
) -> dict[str, Any]:
    """The values, by path, of the settings that the run's arguments decide.

    Raises InputError if the config has another value: it would silently lose.
    """
    values = {
        "train_batch_size": micro_batch * accumulation * ranks,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_grad_norm,
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": precision == "fp16",
    }
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        given = (config.get(section, {}) if section else config).get(key, "auto")
        if given not in ("auto", value):
            raise InputError(
                f"DeepSpeed config: {path} is {_as_json(given)}, the arguments make it {json.dumps(value)}; "
                f'write "auto" there, or change {DECIDED_BY_RUN[path]}'
            )
    return values


def resolve_config(
    config: dict[str, Any],
    micro_batch: int,
    accumulation: int,
    ranks: int,
    precision: str,
    max_grad_norm: float,
    hidden_size: int,
) -> dict[str, Any]:
    """The config for raw DeepSpeed: every "auto" and absent setting has its value.

    Raises InputError if an "auto" remains or a setting contradicts the run's arguments.
    """
    completed = complete(config)
    values = match_run(completed, micro_batch, accumulation, ranks, precision, max_grad_norm)
    values |= {
        "zero_optimization.reduce_bucket_size": hidden_size * hidden_size,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
    return fill_auto(completed, values, "")


def fill_auto(node: Any, values: dict[str, Any], path: str) -> Any:
    """The part of a config at `path` with the value of each "auto". Raises InputError for an "auto" without one."""
    if isinstance(node, dict):
        return {key: fill_auto(item, values, f"{path}.{key}" if path else key) for key, item in node.items()}
    if node != "auto":
        return node
    if path not in values:
        allowed = ", ".join(values)
        raise InputError(f'DeepSpeed config: {shown_path(path)} is "auto", which is allowed for {allowed} only')
    return values[path]

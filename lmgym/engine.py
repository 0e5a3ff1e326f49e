"""DeepSpeed, and how ranks find each other. The only module that imports deepspeed.

Design decisions:
- One file of configs/ serves the Trainer, which fills its "auto" fields from TrainingArguments, and raw DeepSpeed,
  which knows no "auto" (it takes `bf16.enabled: "auto"` silently as fp32): `resolve_config` fills them and refuses
  what is left.
- On a CPU deepspeed's probe for compiled operators is skipped: its builds take minutes, and a killed one leaves a lock
  on which every later start hangs.
- Plain `python` is one rank: the launcher's variables are set here where they are absent.
"""

import contextlib
import json
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist

from lmgym.deepspeed_config import complete, refuse_disagreement, refuse_odd_sections, run_values
from lmgym.errors import InputError, RunStopped, one_line, shown_path

T = TypeVar("T")
Scales = tuple[float, float]
"""how many times the rate of `set_rate` that of an optimizer's group is: as a rule, and while some rest"""

RATE_SCALE = "rate_scale"  # of an optimizer's group: how many times the rate of `set_rate` its own is; else 1
MAY_REST = "may_rest"  # of an optimizer's group: its weights stay as they are in an update for which some rest

if not torch.accelerator.is_available():
    # accelerate asks deepspeed for the accelerator even where no run does: on a CPU it would warn each time
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def rank() -> int:
    """This process among all."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start_distributed(use_deepspeed: bool) -> None:
    """Joins the ranks. Called before TrainingArguments and before the model, else ZeRO-3 cannot shard at load."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    elif "OMP_NUM_THREADS" not in os.environ:
        # more threads than cores made small matrices 5 to 200 times slower
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))))
    # neither is a user's to mend: the Trainer hands its accumulation to DeepSpeed alone, torch renames its functions
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if world_size() == 1 and not use_deepspeed:
        return
    _set_launcher_variables()
    if not use_deepspeed:
        dist.init_process_group("nccl" if on_gpu else "gloo")
        return
    deepspeed = _import_deepspeed()
    deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", auto_mpi_discovery=False)


def stop_distributed() -> None:
    """Leaves together: without the barrier a rank that exits first can abort the others."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody listens on now: launchers default to 29500, which two runs on a machine would share."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _set_launcher_variables() -> None:
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**defaults, "MASTER_PORT": str(free_port())}.items():
        os.environ.setdefault(name, value)


def _import_deepspeed():
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not torch.cuda.is_available():
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The elementwise sum of a tensor over all ranks, in place (itself where there is one)."""
    return _reduced(values, dist.ReduceOp.SUM)


def max_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum of a tensor over all ranks, in place (itself where there is one)."""
    return _reduced(values, dist.ReduceOp.MAX)


def _reduced(values: torch.Tensor, operation) -> torch.Tensor:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    if dist.get_backend() == "nccl" and not values.is_cuda:  # which reduces on GPUs alone
        shared = values.cuda()
        dist.all_reduce(shared, op=operation)
        return values.copy_(shared)
    dist.all_reduce(values, op=operation)
    return values


def first_non_finite(losses: Sequence[torch.Tensor]) -> int | None:
    """Which of an update's losses, a scalar each, is the first that is not finite on any rank; None where all are.

    The one wait for the device that an update's losses cost. Collective.
    """
    wrong = sum_over_ranks((~torch.isfinite(torch.stack(list(losses)).detach())).double()).tolist()
    return next((number for number, ranks in enumerate(wrong) if ranks), None)


def skipped_steps(model: torch.nn.Module) -> int:
    """Updates that DeepSpeed has skipped for a gradient that is not finite; 0 where it does not run."""
    return getattr(model, "skipped_steps", 0)


def share_objects(value: Any) -> list[Any]:
    """What every rank has to say, in the order of ranks; also a place where all meet. Small things only: pickled."""
    if world_size() == 1 or not dist.is_initialized():
        return [value]
    said: list[Any] = [None] * world_size()
    dist.all_gather_object(said, value)
    return said


def agreed(work: Callable[[], T]) -> T:
    """What `work` gives; an InputError or RunStopped of one rank is raised on all, so that it is told. Collective."""
    found: T | None = None
    trouble: InputError | RunStopped | None = None
    try:
        found = work()
    except (InputError, RunStopped) as error:
        trouble = error
    if refusal := next(filter(None, share_objects(trouble)), None):
        raise refusal
    return found  # type: ignore[return-value]


def read_config(path: str | Path) -> dict[str, Any]:
    """A DeepSpeed config, "auto" where it left out what the run decides. Raises InputError for a file that is none."""
    path = Path(path)
    if not os.path.isfile(path):
        beside = Path(__file__).parent.parent / "configs"
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
    _import_deepspeed()
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


def engine_name(config: dict[str, Any] | None) -> str:
    """How ranks work together, for people and for comparison: ZeRO and its level, DDP or plain."""
    return f"ZeRO {zero_stage(config)}" if config is not None else ("DDP" if world_size() > 1 else "plain")


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
    return _fill(completed, decided | buckets, "")


def _fill(node: Any, values: dict[str, Any], path: str) -> Any:
    if isinstance(node, dict):
        return {key: _fill(item, values, f"{path}.{key}" if path else key) for key, item in node.items()}
    if node != "auto":
        return node
    if path not in values:
        raise InputError(f'DeepSpeed config: {path} is "auto", which only these may be: {", ".join(values)}')
    return values[path]


def gathered_parameters(parameters: Sequence[torch.Tensor], modifier_rank: int | None = None):
    """ZeRO-3's parameters made whole for the length of a `with`; a change on `modifier_rank` reaches all."""
    deepspeed = _import_deepspeed()
    return deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=modifier_rank)


def own_part(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What this rank keeps of a parameter, flat, and where of the whole it begins: all of it but under ZeRO-3.

    No collective, unlike `gathered_parameters`, which must not meet a parameter that a forward has asked for.
    """
    shard = getattr(parameter, "ds_tensor", None)
    if shard is None:
        return parameter.detach().flatten(), 0
    begin = min(rank() * shard.ds_numel, parameter.ds_numel)  # type: ignore[attr-defined]
    return shard.detach().flatten()[: parameter.ds_numel - begin], begin  # type: ignore[attr-defined]


def whole_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights of a module under DeepSpeed, whole and on the CPU, on rank 0; elsewhere an empty dict. Collective.

    Where training in 16 bits keeps fp32 masters, these are taken: rounding them to bf16 would undo small updates.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    whole: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        rounded = parameter.requires_grad and parameter.dtype != torch.float32
        master = safe_get_full_fp32_param(parameter) if rounded else None
        sharded = master is None and hasattr(parameter, "ds_id")
        with gathered_parameters([parameter] if sharded else []):
            if rank() == 0:
                whole[name] = (parameter if master is None else master).detach().cpu().clone()
    if rank() == 0:
        kept = module.state_dict().keys() - whole.keys()
        whole |= {name: buffer.detach().cpu().clone() for name, buffer in module.named_buffers() if name in kept}
    return whole


def end_fetches(model: Any) -> None:
    """Ends what ZeRO-3 fetches ahead, to be called after forwards that no backward follows. Collective.

    The next weights are on their way for that backward, and whole weights cannot be gathered meanwhile
    (deepspeed 0.19.8: "Cannot partition a param in flight").
    """
    stage = getattr(model, "zero_optimization_stage", None)  # of DeepSpeed's engine
    if stage is not None and stage() == 3:
        model.empty_partition_cache()


def take_scales(optimizer: torch.optim.Optimizer) -> list[Scales]:
    """RATE_SCALE of each group, and what it is while some rest: of those that MAY_REST 0. Both marks go no further:
    what keeps an optimizer's state need not know of them.
    """
    scales = [float(group.pop(RATE_SCALE, 1.0)) for group in optimizer.param_groups]
    rests = [bool(group.pop(MAY_REST, False)) for group in optimizer.param_groups]
    return [(scale, 0.0 if still else scale) for scale, still in zip(scales, rests, strict=True)]


def set_rates(groups: Sequence[dict[str, Any]], scales: Sequence[Scales], learning_rate: float, resting: bool) -> None:
    """The rate of each of an optimizer's groups. At a rate of 0 weights do not decay either."""
    for group, scale in zip(groups, scales, strict=True):
        group["lr"] = learning_rate * scale[resting]


@contextlib.contextmanager
def without_sharded_load() -> Iterator[None]:
    """Models made within are whole and this rank's own, also where the Trainer's ZeRO-3 shards at load."""
    from transformers.integrations import deepspeed as integration

    kept = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = kept


@final
class Engine:
    """One trained model under raw DeepSpeed. Made by `Engine.prepare`; all methods are collective."""

    def __init__(self, engine, scales: Sequence[Scales] | None = None) -> None:
        self.engine, self.version = engine, 0
        self.scales = scales or [(1.0, 1.0)] * len(engine.optimizer.param_groups)

    @classmethod
    def prepare(cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> "Engine":
        """A model and its optimizer under a resolved config. Raises InputError where an "auto" is left."""
        _fill(config, {}, "")
        scales = take_scales(optimizer)
        engine, *_ = _import_deepspeed().initialize(model=model, optimizer=optimizer, config=config)
        return cls(engine, scales)

    def __call__(self, *args, **kwargs):
        """The wrapped module's forward."""
        return self.engine(*args, **kwargs)

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        return self.engine.module

    @property
    def takes_parts(self) -> bool:
        """Whether each backward of an update may reach a part of the weights alone."""
        return takes_parts(self.engine.config)

    def set_rate(self, learning_rate: float, resting: bool = False) -> None:
        """Of the updates to come; with `resting` what may rest stays as it is."""
        set_rates(self.engine.optimizer.param_groups, self.scales, learning_rate, resting)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the loss's gradients; `last` ends the accumulation of an update. The loss is scaled by the caller.

        Gradients are averaged over ranks, so a share of a sum over all of them is scaled by their number.
        """
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> bool:
        """Updates the weights after a last backward; False where DeepSpeed skipped it for a gradient not finite."""
        skipped = self.engine.skipped_steps
        self.engine.step()
        stepped = self.engine.skipped_steps == skipped
        self.version += stepped
        return stepped

    def gather(self) -> dict[str, torch.Tensor]:
        """`whole_weights` of the trained module."""
        return whole_weights(self.engine.module)

    def save(self, folder: str | Path) -> None:
        """DeepSpeed's own checkpoint: weights, optimizer and counters of every rank."""
        self.engine.save_checkpoint(str(folder))
        if rank() == 0:
            (Path(folder) / "zero_to_fp32.py").unlink(missing_ok=True)  # a program, and nobody's state

    def load(self, folder: str | Path) -> None:
        """What `save` wrote. DeepSpeed's shards are pickles: only of a checkpoint whose manifest verifies."""
        self.engine.load_checkpoint(str(folder))
        from lmgym.resharding import mend_sharded_load  # which imports this module

        mend_sharded_load(self.engine, Path(folder))

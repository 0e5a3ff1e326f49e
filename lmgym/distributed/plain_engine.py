"""The interface of a training engine, and an engine without DeepSpeed: one rank, or data parallel."""

from pathlib import Path
from typing import Any, Protocol, final

import torch
import torch.distributed as dist

from lmgym.distributed.deepspeed_engine import pop_scales, set_rates
from lmgym.distributed.ranks import rank, world_size
from lmgym.distributed.weights import load_weights, save_weights, untied_weights

BUCKET = 1 << 26  # numbers averaged per collective


class TrainingEngine(Protocol):
    """A model and its optimizer, sharded or not; all methods are collective."""

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        ...

    def __call__(self, *args, **kwargs) -> Any:
        """The model's forward."""
        ...

    @property
    def version(self) -> int:
        """The number of updates that have changed the weights in this process."""
        ...

    @property
    def allows_partial_backward(self) -> bool:
        """True if each backward of an update may reach only part of the weights."""
        ...

    def set_learning_rate(self, learning_rate: float, freeze: bool = False) -> None:
        """Sets the rate of the next updates; with `freeze`, FREEZABLE groups keep their weights."""
        ...

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the loss's gradients; after the `last` of an update they are averaged over ranks."""
        ...

    def step(self) -> bool:
        """Updates the weights; if a gradient is not finite, leaves them unchanged and returns False."""
        ...

    def gather(self) -> dict[str, torch.Tensor]:
        """All weights, unsharded and on the CPU, on rank 0; empty on other ranks."""
        ...

    def save(self, folder: str | Path) -> None:
        """Writes all that `load` needs for an exact resume."""
        ...

    def load(self, folder: str | Path) -> None:
        """Loads what `save` wrote."""
        ...


@final
class PlainEngine:
    """A TrainingEngine without DeepSpeed. Weights are fp32; the forward runs in bf16 (autocast) or fp32."""

    allows_partial_backward = True

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: str, max_grad_norm: float
    ) -> None:
        self.module, self.optimizer, self.scales = model, optimizer, pop_scales(optimizer)
        self.precision, self.max_grad_norm = precision, max_grad_norm
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.version = 0

    def __call__(self, *args, **kwargs) -> Any:
        device = self.trained[0].device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self.module(*args, **kwargs)

    def set_learning_rate(self, learning_rate: float, freeze: bool = False) -> None:
        set_rates(self.optimizer.param_groups, self.scales, learning_rate, freeze)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        loss.backward()
        if last and world_size() > 1:
            self._average_gradients()

    def _average_gradients(self) -> None:
        """Averages in buckets, since a collective per parameter is slow. A missing gradient counts as 0."""
        buckets: list[list[torch.Tensor]] = [[]]
        size = 0
        for p in self.trained:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if buckets[-1] and size + p.numel() > BUCKET:
                buckets.append([])
                size = 0
            buckets[-1].append(p.grad)
            size += p.numel()
        for bucket in buckets:
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            flat /= world_size()
            for grad, average in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                grad.copy_(average.view_as(grad))

    def step(self) -> bool:
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.max_grad_norm)
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
            self.version += 1
        self.optimizer.zero_grad(set_to_none=True)
        return finite

    def gather(self) -> dict[str, torch.Tensor]:
        if rank() != 0:
            return {}
        return {name: value.detach().cpu().clone() for name, value in untied_weights(self.module).items()}

    def save(self, folder: str | Path) -> None:
        """Writes rank 0's weights, with adapters the trained ones, and optimizer: those of other ranks are equal."""
        if rank() == 0:
            save_weights(self.module, Path(folder) / "model.safetensors")
            torch.save(self.optimizer.state_dict(), Path(folder) / "optimizer.pt")

    def load(self, folder: str | Path) -> None:
        load_weights(self.module, Path(folder) / "model.safetensors")
        device = self.trained[0].device
        state = torch.load(Path(folder) / "optimizer.pt", map_location=device, weights_only=True)
        self.optimizer.load_state_dict(state)

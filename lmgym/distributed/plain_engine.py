"""What `Engine` is, without DeepSpeed: one rank, or several that average their gradients."""

from pathlib import Path
from typing import Any, Protocol, final

import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_model

from lmgym.distributed.deepspeed_engine import set_rates, take_scales
from lmgym.distributed.ranks import rank, world_size
from lmgym.distributed.weights import untied

BUCKET = 1 << 26  # numbers that are averaged at once


class Trained(Protocol):
    """A model and its optimizer, however they are spread; all methods are collective."""

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        ...

    def __call__(self, *args, **kwargs) -> Any:
        """Its forward."""
        ...

    @property
    def version(self) -> int:
        """How many updates have changed the weights in this process."""
        ...

    @property
    def takes_parts(self) -> bool:
        """Whether each backward of an update may reach a part of the weights alone."""
        ...

    def set_rate(self, learning_rate: float, resting: bool = False) -> None:
        """Of the updates to come; with `resting` what may rest stays as it is."""
        ...

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the loss's gradients; `last` ends the accumulation of an update. They are averaged over ranks."""
        ...

    def step(self) -> bool:
        """Updates the weights; False, with the weights as they were, for a gradient that is not finite."""
        ...

    def gather(self) -> dict[str, torch.Tensor]:
        """All weights, whole and on the CPU, on rank 0."""
        ...

    def save(self, folder: str | Path) -> None:
        """All that `load` needs to go on exactly."""
        ...

    def load(self, folder: str | Path) -> None:
        """What `save` wrote."""
        ...


@final
class PlainEngine:
    """A model in this process, computed in bf16 by autocast or in fp32; its weights are fp32 either way."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: str, max_grad_norm: float
    ) -> None:
        self.model, self.optimizer, self.scales = model, optimizer, take_scales(optimizer)
        self.precision, self.max_grad_norm = precision, max_grad_norm
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.version = 0

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        return self.model

    def __call__(self, *args, **kwargs) -> Any:
        """The forward, under autocast where bf16 is asked for."""
        device = self.trained[0].device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self.model(*args, **kwargs)

    @property
    def takes_parts(self) -> bool:
        """Gradients are torch's own."""
        return True

    def set_rate(self, learning_rate: float, resting: bool = False) -> None:
        """Of the updates to come; with `resting` what may rest stays as it is."""
        set_rates(self.optimizer.param_groups, self.scales, learning_rate, resting)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the loss's gradients; the last time they are averaged over ranks."""
        loss.backward()
        if last and world_size() > 1:
            self._average()

    def _average(self) -> None:
        """In buckets: a collective a parameter would cost more than its numbers. One that none reached counts as 0."""
        for p in self.trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        buckets: list[list[torch.Tensor]] = [[]]
        for p in self.trained:
            assert p.grad is not None
            if buckets[-1] and sum(g.numel() for g in buckets[-1]) + p.numel() > BUCKET:
                buckets.append([])
            buckets[-1].append(p.grad)
        for bucket in buckets:
            joined = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(joined)
            joined /= world_size()
            for grad, part in zip(bucket, joined.split([g.numel() for g in bucket]), strict=True):
                grad.copy_(part.view_as(grad))

    def step(self) -> bool:
        """Updates the weights, gradients scaled down to `max_grad_norm`."""
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.max_grad_norm)
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
            self.version += 1
        self.optimizer.zero_grad(set_to_none=True)
        return finite

    def gather(self) -> dict[str, torch.Tensor]:
        """The weights on rank 0; of tied ones the first name alone, as under DeepSpeed."""
        if rank() != 0:
            return {}
        return {name: value.detach().cpu().clone() for name, value in untied(self.model).items()}

    def save(self, folder: str | Path) -> None:
        """Rank 0's weights and optimizer: those of the others are equal."""
        if rank() == 0:
            save_model(self.model, str(Path(folder) / "model.safetensors"))
            torch.save(self.optimizer.state_dict(), Path(folder) / "optimizer.pt")

    def load(self, folder: str | Path) -> None:
        """Weights and optimizer, all of them."""
        load_model(self.model, str(Path(folder) / "model.safetensors"), strict=True)
        device = self.trained[0].device
        state = torch.load(Path(folder) / "optimizer.pt", map_location=device, weights_only=True)
        self.optimizer.load_state_dict(state)

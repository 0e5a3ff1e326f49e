"""Weights by name: those of a checkpoint, and a check that all are finite after loading and before saving.

The loss does not show a non-finite weight that no row has used yet, such as the embedding of a rare token.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lmgym.distributed.ranks import raise_on_all_ranks, rank
from lmgym.errors import InputError

Weights = dict[str, torch.Tensor]
BLOCK = 1 << 22  # numbers checked one by one at a time


def own_part(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """This rank's part of a parameter, flat, and its offset in the whole: all of it, except under ZeRO-3.

    Not collective, unlike `gathered_parameters`, so it is safe while a forward is fetching the parameter.
    """
    shard = getattr(parameter, "ds_tensor", None)
    if shard is None:
        return parameter.detach().flatten(), 0
    start = min(rank() * shard.numel(), parameter.ds_numel)  # type: ignore[attr-defined]
    # beyond the last number is padding, which is uninitialised memory
    return shard.detach().flatten()[: parameter.ds_numel - start], start  # type: ignore[attr-defined]


def own_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters (this rank's part, flat) and persistent buffers by name."""
    for name, parameter in module.named_parameters():
        yield name, own_part(parameter)[0]
    saved = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in saved:
            yield name, buffer


def untied_weights(module: torch.nn.Module) -> Weights:
    """The weights of a module by name; tied weights appear under their first name only."""
    names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return {name: value for name, value in module.state_dict().items() if name in names}


def base_weights(module: torch.nn.Module) -> set[str]:
    """Names of the frozen weights of a module with peft's adapters; empty for one without.

    No checkpoint holds them: they are as they were loaded from the model's folder.
    """
    if not any(hasattr(part, "peft_config") for part in module.modules()):
        return set()
    return {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}


def save_weights(module: torch.nn.Module, path: Path) -> None:
    """Writes a checkpoint's weights as safetensors: each once, under its first name."""
    base = base_weights(module)
    save_file({n: value.contiguous() for n, value in untied_weights(module).items() if n not in base}, path)


def load_weights(module: torch.nn.Module, path: Path) -> None:
    """Loads what `save_weights` wrote. Raises RuntimeError if a weight is missing or unknown."""
    with accepting_checkpoints(module):
        module.load_state_dict(load_file(path))


@contextlib.contextmanager
def without_base(module: torch.nn.Module) -> Iterator[bool]:
    """Context manager in which the state dict of a module with adapters lacks `base_weights`; True if there are any."""
    base = base_weights(module)

    def remove(_: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        kept = {name for name, _ in (*module.named_parameters(), *module.named_buffers())} - base
        for name in state.keys() - kept:  # also the parts of quantised weights
            del state[name]

    hook = module.register_state_dict_post_hook(remove) if base else None
    try:
        yield bool(base)
    finally:
        if hook:
            hook.remove()


@contextlib.contextmanager
def accepting_checkpoints(module: torch.nn.Module) -> Iterator[None]:
    """Context manager in which a strict load needs each weight under one of its names, and not `base_weights`."""
    base, names = base_weights(module), dict(module.named_parameters(remove_duplicate=False))

    def accept(_: torch.nn.Module, keys: Any) -> None:
        missing = {*keys.missing_keys}
        loaded = {id(p) for name, p in names.items() if name not in missing}
        keys.missing_keys[:] = [n for n in keys.missing_keys if n not in base and id(names.get(n)) not in loaded]

    hook = module.register_load_state_dict_post_hook(accept)
    try:
        yield
    finally:
        hook.remove()


def non_finite_weight(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The first non-finite weight, as `nan in NAME`; empty if all are finite.

    A finite norm proves that all numbers of a tensor are finite; only the other tensors are searched. The check is
    limited by memory bandwidth, copies nothing and waits for a GPU once.
    """
    tensors = [(name, tensor.detach()) for name, tensor in weights if tensor.is_floating_point() and tensor.numel()]
    if not tensors:
        return ""
    device = tensors[0][1].device
    norms = torch.stack([_norm(tensor).to(device) for _, tensor in tensors])
    for (name, tensor), finite in zip(tensors, norms.isfinite().tolist(), strict=True):
        if not finite and (number := _first_non_finite(tensor)) is not None:
            return f"{number} in {name}"
    return ""


def refuse_non_finite_weights(module: torch.nn.Module, source: str) -> None:
    """Raises InputError if a loaded model has a non-finite weight. Collective if the model is sharded."""
    if any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
        raise_on_all_ranks(lambda: _refuse(module, source))
    else:
        _refuse(module, source)


def _refuse(module: torch.nn.Module, source: str) -> None:
    if weight := non_finite_weight(own_weights(module)):
        raise InputError(
            f"the weights of {source} are not all finite: found {weight}; needed: a number in every weight; take an "
            "earlier checkpoint of that model, or train it again"
        )


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.element_size() == 1:  # torch has no arithmetic in 8 bits: search the tensor
        return torch.tensor(math.inf)
    return torch.linalg.vector_norm(tensor).float()


def _first_non_finite(tensor: torch.Tensor) -> float | None:
    for block in tensor.reshape(-1).split(BLOCK):
        numbers = block.float()
        if not (finite := numbers.isfinite()).all():
            return numbers[~finite][0].item()
    return None

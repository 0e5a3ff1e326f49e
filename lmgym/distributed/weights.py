"""Weights by name, and a check that all are finite: when a model is loaded, and before it is saved.

A weight that no row has used yet, such as the embedding of a rare token, shows in no loss: it would stay in the model
unseen, and be saved.
"""

import math
from collections.abc import Iterable, Iterator

import torch

from lmgym.distributed.ranks import raise_on_all_ranks, rank
from lmgym.errors import InputError

BLOCK = 1 << 22  # numbers that are looked at one by one at once


def own_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and saved buffers by name; of those that ZeRO-3 has sharded, this rank's part, flat."""
    for name, parameter in module.named_parameters():
        yield name, _own_part(parameter)
    saved = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in saved:
            yield name, buffer


def non_finite_weight(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The first weight that is not finite, as `nan in NAME`; empty where all are.

    A tensor's norm is finite where all its numbers are, but for very large ones: only such a tensor is looked at again.
    A pass over the weights at the speed of memory, no copy, and one wait for a GPU.
    """
    named = [(name, tensor.detach()) for name, tensor in weights if tensor.is_floating_point() and tensor.numel()]
    if not named:
        return ""
    device = named[0][1].device
    norms = torch.stack([_norm(tensor).to(device) for _, tensor in named])
    for (name, tensor), finite in zip(named, norms.isfinite().tolist(), strict=True):
        if not finite and (found := _first_non_finite(tensor)) is not None:
            return f"{found} in {name}"
    return ""


def refuse_non_finite_weights(module: torch.nn.Module, source: str) -> None:
    """Raises InputError for a loaded model with a weight that is not finite. Collective where the model is sharded."""
    sharded = any(hasattr(parameter, "ds_id") for parameter in module.parameters())
    if sharded:
        raise_on_all_ranks(lambda: _refuse(own_weights(module), source))
    else:
        _refuse(own_weights(module), source)


def _refuse(weights: Iterable[tuple[str, torch.Tensor]], source: str) -> None:
    if found := non_finite_weight(weights):
        raise InputError(
            f"the weights of {source} are not all finite: found {found}; needed: a number in every weight; take an "
            "earlier checkpoint of that model, or train it again"
        )


def _own_part(parameter: torch.Tensor) -> torch.Tensor:
    part = getattr(parameter, "ds_tensor", None)
    if part is None or not part.numel():
        return parameter
    # also where the whole is here, which may still be on its way; behind the last number is memory that nobody has set
    numbers = min(part.numel(), max(0, parameter.ds_numel - rank() * part.numel()))  # type: ignore[attr-defined]
    return part.narrow(0, 0, numbers)


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.element_size() == 1:  # there is no arithmetic in 8 bits
        return torch.tensor(math.inf)
    return torch.linalg.vector_norm(tensor).float()


def _first_non_finite(tensor: torch.Tensor) -> float | None:
    flat = tensor.reshape(-1)
    for first in range(0, flat.numel(), BLOCK):
        numbers = flat[first : first + BLOCK].float()
        if not (finite := numbers.isfinite()).all():
            return numbers[~finite][0].item()
    return None


Weights = dict[str, torch.Tensor]


def untied(module: torch.nn.Module) -> Weights:
    """The weights of a module by name; of tied ones the first name alone."""
    names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return {name: value for name, value in module.state_dict().items() if name in names}

"""Samples of a policy's layers, which a server's layers are compared with: `compare_layers` of the vLLM plugin.

A linear layer, with its adapter if it has one, is shown by what it makes of a fixed vector; any other weight by itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from lmgym.generation.vllm_plugin.lmgym_vllm import LayerSample, probe_vector
from lmgym.models.forward.decoder import Decoder
from lmgym.models.parameters import LINEAR, gathered

RUNS, RUN = 4, 16
"""of a layer, and the numbers in each"""


@torch.no_grad()
def sample_layers(decoder: Decoder, served: torch.dtype, seed: int) -> list[LayerSample]:
    """Samples of every layer that has a trained weight, from places that the seed draws. Collective under ZeRO-3."""
    random, samples = np.random.default_rng(seed), list[LayerSample]()
    for name, layer in _trained_layers(decoder.model):
        weights = list(layer.parameters(recurse=isinstance(_base(layer), LINEAR)))
        with gathered(weights):
            if isinstance(base := _base(layer), LINEAR):
                size = base.in_features if isinstance(base, nn.Linear) else base.nx
                vector = probe_vector(size).to(base.weight)
                is_head = layer is decoder.model.get_output_embeddings()
                output = decoder.logits(vector[None])[0] if is_head else layer(vector[None])[0]
                samples.append(LayerSample(name=name, inputs=size, is_head=is_head, runs=_runs(output, random)))
                continue
            for part, weight in layer.named_parameters(recurse=False):
                if weight.requires_grad:
                    own = weight.flatten().to(served)
                    samples.append(LayerSample(name=f"{name}.{part}", inputs=0, is_head=False, runs=_runs(own, random)))
    return samples


def _trained_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with a trained weight of their own; a linear layer counts as one with its adapter."""
    inside = set[int]()
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        linear = isinstance(_base(module), LINEAR)
        if linear:
            inside |= {id(part) for part in module.modules()}
        if any(p.requires_grad for p in module.parameters(recurse=linear)):
            yield name, module


def _base(module: nn.Module) -> object:
    """The layer below an adapter, or the module itself."""
    return getattr(module, "base_layer", module)


def _runs(values: torch.Tensor, random: np.random.Generator) -> list[list[float]]:
    length = min(RUN, len(values))
    starts: Sequence[int] = random.integers(len(values) - length + 1, size=RUNS).tolist()
    return [values[start : start + length].float().tolist() for start in starts]

"""Freezing the embeddings and the lowest layers of a decoder."""

from torch import nn

from lmgym.models.forward.structure import DecoderStructure, find_blocks


def freeze_below(causal, layers: int, structure: DecoderStructure | None = None) -> None:
    """Freeze the modules before the layers, the lowest `layers` and a tied head."""
    for module in frozen_modules(causal, layers, structure):
        module.requires_grad_(False)


def frozen_modules(causal, layers: int, structure: DecoderStructure | None = None) -> list[nn.Module]:
    """Modules before the layers (without a structure: embeddings), the lowest `layers` and a tied head."""
    blocks = causal.get_submodule(find_blocks(causal))
    head, words = causal.get_output_embeddings(), causal.get_input_embeddings()
    tied = [head] if head.weight is words.weight else []
    embeddings = [words, *(m for m in causal.modules() if isinstance(m, nn.Embedding) and m is not words)]
    before = embeddings if structure is None else [causal.get_submodule(name) for name in structure.before_blocks]
    return [*before, *blocks[:layers], *tied]

"""Freezing the embeddings and the lowest layers of a decoder."""

from torch import nn

from lmgym.models.forward.anatomy import Anatomy, find_blocks


def freeze_below(causal, layers: int, anatomy: Anatomy | None = None) -> None:
    """Freezes what runs before the layers, the lowest `layers` and a tied head."""
    for module in frozen_modules(causal, layers, anatomy):
        module.requires_grad_(False)


def frozen_modules(causal, layers: int, anatomy: Anatomy | None = None) -> list[nn.Module]:
    """What `num_layers_unfrozen` leaves as it is; without an anatomy, of what runs before the layers the embeddings."""
    blocks = causal.get_submodule(find_blocks(causal))
    head, words = causal.get_output_embeddings(), causal.get_input_embeddings()
    tied = [head] if head.weight is words.weight else []
    embeddings = [words, *(m for m in causal.modules() if isinstance(m, nn.Embedding) and m is not words)]
    before = embeddings if anatomy is None else [causal.get_submodule(name) for name in anatomy.before_blocks]
    return [*before, *blocks[:layers], *tied]

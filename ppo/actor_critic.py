"""Actor and critic as one module with one forward, and the reference.

Design decisions:
- One module, one engine, one backward: under ZeRO a trunk shared by policy and values must be one forward.
- Logits are computed for the sampled tokens only, in fp32, at the sampling temperature.
- With `frozen_layers` the embeddings, the layers below and a tied head are frozen. Their states do not
  change in an iteration, so they are computed once (`trunk`), for policy, values, reference and every epoch.
- The reference of a policy with adapters is the policy without them.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import nn

from lmgym.errors import InputError
from lmgym.models.classifiers import round_weights
from lmgym.models.config_fields import layer_count, width
from lmgym.models.critics import ValueHead
from lmgym.models.embeddings import round_frozen_embeddings
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.freezing import freeze_below, frozen_modules
from lmgym.models.forward.logprobs import policy_logprobs
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.structure import DecoderStructure
from lmgym.models.parameters import LINEAR
from lmgym.models.saving import has_adapters, unwrap_adapters


@final
class ActorCritic(nn.Module):
    """A policy with a critic: a classifier with one output, or None for a head on the policy's trunk.

    Without `has_values` there is neither.
    """

    def __init__(
        self,
        policy,
        critic=None,
        frozen_layers: int = 0,
        temperature: float = 1.0,
        recompute: bool = False,
        seed=0,
        structure: DecoderStructure | None = None,
        has_values: bool = True,
    ) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic
        self.decoder = Decoder(self.causal, structure)
        self.critic_decoder = None if critic is None else Decoder(critic)
        on_trunk = has_values and critic is None
        self.value_head = ValueHead(width(self.causal.config), seed) if on_trunk else None
        self.frozen_layers, self.temperature, self.recompute = frozen_layers, temperature, recompute
        if frozen_layers:
            freeze_below(self.causal, frozen_layers, self.decoder.structure)
        self.eval()

    def train(self, mode: bool = True) -> "ActorCritic":
        """Keeps eval mode: with dropout the policy would differ from the one that sampled."""
        return super().train(False)

    @property
    def causal(self):
        """The transformers model itself, below any adapter."""
        return unwrap_adapters(self.policy)

    @property
    def has_critic(self) -> bool:
        """True with a value head or a critic of its own."""
        return self.value_head is not None or self.critic is not None

    @property
    def config(self):
        """The policy's config."""
        return self.causal.config

    def trunk(self, rows: PackedRows) -> torch.Tensor:
        """States [N, W] of all tokens below the first trained layer."""
        return self.decoder.hidden_after(rows, self.frozen_layers)

    def forward(
        self,
        rows: PackedRows,
        targets: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
        values: bool = True,
        trunk_only: bool = False,
        detach_values: bool = False,
        entropies: bool = False,
    ) -> Any:
        """(log-probabilities [M] of the targets, values [M], entropies [M]) at what `rows` read; each may be None.

        Of rows that choose among actions they are [R]: of the actions that are chosen, and at the prompts' last tokens.
        `states` are the result of `trunk`, which runs here without them; with `trunk_only` nothing else runs.
        With `detach_values`, the values' gradient does not reach the policy through a head on its trunk.
        """
        if trunk_only:
            return self.trunk(rows)
        logprobs = found = spread = None
        if targets is not None or self.value_head is not None:
            if states is None and self.frozen_layers:
                states = self.trunk(rows)
            normed = self.decoder.hidden(rows, states=states, first=self.frozen_layers, recompute=self.recompute)
            if targets is not None:
                logprobs, spread = policy_logprobs(self.decoder, normed, rows, targets, self.temperature, entropies)
            if values and self.value_head is not None:
                normed = _at_prompts(rows, normed)
                found = self.value_head(normed.detach() if detach_values else normed)
        if values and self.critic_decoder is not None:
            states = _at_prompts(rows, self.critic_decoder.hidden(rows, recompute=self.recompute))
            found = self.critic_decoder.scores(states)[:, 0].float()
        return logprobs, found, spread


def _at_prompts(rows: PackedRows, read: torch.Tensor) -> torch.Tensor:
    """The states [M, W] that are read, or [R, W] at the prompts' last tokens of rows that choose among actions."""
    return read if rows.choices is None else read.index_select(0, rows.choices.prompts)


@final
class Reference:
    """The policy as it was before step 1, created with `of` before an engine wraps it; or another model."""

    def __init__(self, decoder: Decoder, frozen_layers: int, temperature: float) -> None:
        self.decoder, self.frozen_layers, self.temperature = decoder, frozen_layers, temperature
        self.model = decoder.model

    @classmethod
    def of(cls, actor: ActorCritic) -> "Reference | None":
        """A frozen copy that shares the policy's frozen modules; None for a policy with adapters."""
        if has_adapters(actor.policy):
            return None
        frozen = frozen_modules(actor.causal, actor.frozen_layers, actor.decoder.structure)
        shared = [module for module in frozen if not any(p.requires_grad for p in module.parameters())]
        model = copy.deepcopy(actor.causal, {id(module): module for module in shared})
        model.requires_grad_(False)
        return cls(Decoder(model.eval(), actor.decoder.structure), actor.frozen_layers, actor.temperature)

    def round(self, everything: bool) -> None:
        """Convert to bf16 all weights, as under DeepSpeed, or those of linear layers, which autocast rounds each time,
        and embeddings that this does not change.

        Weights that are shared with the policy stay as they are.
        """
        if everything:
            round_weights(self.model, torch.bfloat16)
            return
        for module in own_linear_layers(self.decoder, self.frozen_layers):
            module.to(torch.bfloat16)
        round_frozen_embeddings(self.model)

    @torch.no_grad()
    def logprobs(self, rows: PackedRows, targets: torch.Tensor, states: torch.Tensor | None) -> torch.Tensor:
        """Log-probabilities as the policy's; `states` are the result of `ActorCritic.trunk`, which it may share."""
        if not self.frozen_layers:
            states = None
        elif states is None:
            states = self.decoder.hidden_after(rows, self.frozen_layers)
        normed = self.decoder.hidden(rows, states=states, first=self.frozen_layers)
        return policy_logprobs(self.decoder, normed, rows, targets, self.temperature)[0]


def own_linear_layers(decoder: Decoder, frozen_layers: int) -> Iterator[nn.Module]:
    """A reference's linear layers that the policy does not share, without a head that is tied to the embeddings."""
    frozen = frozen_modules(decoder.model, frozen_layers, decoder.structure) if frozen_layers else []
    shared = {id(module) for top in frozen for module in top.modules()}
    words = decoder.model.get_input_embeddings().weight
    for module in decoder.model.modules():
        if isinstance(module, LINEAR) and id(module) not in shared and module.weight is not words:
            yield module


@contextlib.contextmanager
def without_adapters(actor: ActorCritic) -> Iterator[None]:
    """Disable the policy's adapters for the duration of a `with`: it is its own reference."""
    with actor.policy.disable_adapter():
        yield


def count_layers(model: str, model_config, num_layers_unfrozen: int) -> int:
    """Number of the policy's layers. Raises InputError if more are to be trained."""
    layers = layer_count(model_config)
    if num_layers_unfrozen > layers:
        raise InputError(f"num_layers_unfrozen={num_layers_unfrozen}; {model} has {layers} layers")
    return layers

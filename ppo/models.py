"""The policy with its critic as one module with one forward, and the reference that it is held to.

Design decisions:
- One module, one engine, one backward: under ZeRO a trunk shared by policy and values must be one forward.
- Logits exist for the policy's own tokens only, in fp32, at the sampling temperature.
- With `frozen_layers` the embeddings, the layers below and a tied head are frozen. Their states are the same all
  through an iteration, so they are computed once (`trunk`), and serve policy, values, reference and every epoch.
- The reference of a policy with adapters is the policy without them.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import nn

from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.errors import InputError
from lmgym.models.classifiers import round_weights
from lmgym.models.config_fields import layer_count, width
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.policies import load_policy
from lmgym.models.forward.structure import DecoderStructure, find_blocks, inspect_decoder
from lmgym.models.lora import add_lora
from lmgym.models.parameters import LINEAR
from lmgym.models.quantized import bits_of
from lmgym.models.saving import has_adapters, unwrap_adapters
from lmgym.random_state import seeded
from ppo.config import PPOConfig
from ppo.critics import ValueHead, is_on_trunk, load_critic, load_value_head


@final
class ActorCritic(nn.Module):
    """A policy and its values. `critic` is a classifier with one output, or None for a head on the policy's trunk."""

    def __init__(
        self, policy, critic=None, frozen_layers: int = 0, temperature: float = 1.0, recompute: bool = False, seed=0,
        structure: DecoderStructure | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.policy, self.critic = policy, critic
        self.decoder = Decoder(self.causal, structure)
        self.critic_decoder = None if critic is None else Decoder(critic)
        self.value_head = ValueHead(width(self.causal.config), seed) if critic is None else None
        self.frozen_layers, self.temperature, self.recompute = frozen_layers, temperature, recompute
        if frozen_layers:
            freeze_below(self.causal, frozen_layers, self.decoder.structure)
        self.eval()

    def train(self, mode: bool = True) -> "ActorCritic":
        """Stays as it is: with dropout the policy would be another than the one that sampled."""
        return super().train(False)

    @property
    def causal(self):
        """The transformers model itself, below any adapter."""
        return unwrap_adapters(self.policy)

    @property
    def config(self):
        """The policy's."""
        return self.causal.config

    def trunk(self, rows: PackedRows) -> torch.Tensor:
        """States [N, W] of all tokens below the first layer that is trained."""
        return self.decoder.hidden_after(rows, self.frozen_layers)

    def forward(
        self,
        rows: PackedRows,
        targets: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
        values: bool = True,
        trunk_only: bool = False,
        apart: bool = False,
    ) -> Any:
        """(log-probabilities [M] of the targets, or None; values [M], or None) at what `rows` read.

        `states` are those of `trunk`; without them it runs here. With `trunk_only` it is all that runs.
        `apart`: no gradient of the values reaches the policy, also not from a head on its trunk.
        """
        if trunk_only:
            return self.trunk(rows)
        logprobs = found = None
        if targets is not None or self.value_head is not None:
            if states is None and self.frozen_layers:
                states = self.trunk(rows)
            normed = self.decoder.hidden(rows, states=states, first=self.frozen_layers, recompute=self.recompute)
            if targets is not None:
                logprobs = token_logprobs(self.decoder, normed, targets, self.temperature)
            if values and self.value_head is not None:
                found = self.value_head(normed.detach() if apart else normed)
        if values and self.critic_decoder is not None:
            states = self.critic_decoder.hidden(rows, recompute=self.recompute)
            found = self.critic_decoder.scores(states)[:, 0].float()
        return logprobs, found


def freeze_below(causal, layers: int, structure: DecoderStructure | None = None) -> None:
    """Freezes what runs before the layers, the lowest `layers` and a tied head."""
    for module in frozen_modules(causal, layers, structure):
        module.requires_grad_(False)


def frozen_modules(causal, layers: int, structure: DecoderStructure | None = None) -> list[nn.Module]:
    """Modules that `num_layers_unfrozen` freezes; without a structure, of those before the layers the embeddings."""
    blocks = causal.get_submodule(find_blocks(causal))
    head, words = causal.get_output_embeddings(), causal.get_input_embeddings()
    tied = [head] if head.weight is words.weight else []
    embeddings = [words, *(m for m in causal.modules() if isinstance(m, nn.Embedding) and m is not words)]
    before = embeddings if structure is None else [causal.get_submodule(name) for name in structure.before_blocks]
    return [*before, *blocks[:layers], *tied]


@final
class Reference:
    """The policy as it was before step 1. Made by `of`, before the policy is wrapped."""

    def __init__(self, decoder: Decoder, frozen_layers: int, temperature: float) -> None:
        self.decoder, self.frozen_layers, self.temperature = decoder, frozen_layers, temperature
        self.model = decoder.model

    @classmethod
    def of(cls, actor: ActorCritic) -> "Reference | None":
        """A frozen copy, which shares what is frozen anyway; None for a policy with adapters, which is its own."""
        if has_adapters(actor.policy):
            return None
        frozen = frozen_modules(actor.causal, actor.frozen_layers, actor.decoder.structure)
        shared = [module for module in frozen if not any(p.requires_grad for p in module.parameters())]
        model = copy.deepcopy(actor.causal, {id(module): module for module in shared})
        model.requires_grad_(False)
        return cls(Decoder(model.eval(), actor.decoder.structure), actor.frozen_layers, actor.temperature)

    def round(self, everything: bool) -> None:
        """bf16 weights: of all modules as under DeepSpeed, or of linear layers, which autocast would round each time.

        What the policy shares stays as it is.
        """
        if everything:
            round_weights(self.model, torch.bfloat16)
            return
        for module in own_linear_layers(self.decoder, self.frozen_layers):
            module.to(torch.bfloat16)

    @torch.no_grad()
    def logprobs(self, rows: PackedRows, targets: torch.Tensor, states: torch.Tensor | None) -> torch.Tensor:
        """[M] of the targets; `states` as `ActorCritic.trunk` gives them."""
        if states is None and self.frozen_layers:
            states = self.decoder.hidden_after(rows, self.frozen_layers)
        normed = self.decoder.hidden(rows, states=states, first=self.frozen_layers)
        return token_logprobs(self.decoder, normed, targets, self.temperature)


def own_linear_layers(decoder: Decoder, frozen_layers: int) -> Iterator[nn.Module]:
    """A reference's linear layers that are not the policy's too, but for a head that is tied to the embeddings."""
    frozen = frozen_modules(decoder.model, frozen_layers, decoder.structure) if frozen_layers else []
    shared = {id(module) for top in frozen for module in top.modules()}
    words = decoder.model.get_input_embeddings().weight
    for module in decoder.model.modules():
        if isinstance(module, LINEAR) and id(module) not in shared and module.weight is not words:
            yield module


@contextlib.contextmanager
def without_adapters(actor: ActorCritic) -> Iterator[None]:
    """The policy as its own reference, for the length of a `with`."""
    with actor.policy.disable_adapter():
        yield


def count_layers(config: PPOConfig, model_config) -> int:
    """The policy's layers. Raises InputError where more are to be trained than there are."""
    layers = layer_count(model_config)
    if config.method.num_layers_unfrozen > layers:
        raise InputError(
            f"num_layers_unfrozen={config.method.num_layers_unfrozen}; {config.policy.model} has {layers} layers"
        )
    return layers


def build(config: PPOConfig, tokenizer) -> tuple[ActorCritic, Reference | None]:
    """The policy with its critic, in fp32, and its reference. Raises InputError for models that cannot be had.

    Call it once the ranks are joined: under ZeRO-3 models are loaded whole, and sharded by the engine.
    """
    settings, method = config.policy, config.method
    with without_sharded_load():
        policy: Any = load_policy(settings.model, tokenizer, settings.trust_remote_code, bits_of(settings))
        critic = None if is_on_trunk(method.critic) else load_critic(method.critic, tokenizer)
    return adapted(config, policy, critic)


def adapted(config: PPOConfig, policy, critic=None) -> tuple[ActorCritic, Reference | None]:
    """A loaded policy as the settings train it, with its critic, and its reference. Raises InputError for layers that
    there are not.
    """
    settings, method = config.policy, config.method
    layers = count_layers(config, policy.config)
    frozen = layers - method.num_layers_unfrozen if method.num_layers_unfrozen > 0 else 0
    structure = inspect_decoder(policy)
    if method.num_layers_unfrozen > 0:  # also where they are all: the embeddings and a tied head are frozen then
        freeze_below(policy, frozen, structure)
    if settings.freeze_embeddings:
        policy.get_input_embeddings().requires_grad_(False)
    if settings.lora_rank:
        with seeded(config.optimizer.seed):  # every rank draws the same adapters
            given = (0.0, settings.lora_target_modules, settings.modules_to_save)
            policy = add_lora(policy, settings.lora_rank, settings.lora_alpha, *given)
    actor = ActorCritic(
        policy,
        critic,
        frozen,
        config.rollout.temperature,
        settings.gradient_checkpointing,
        config.optimizer.seed,
        structure,
    )
    if actor.value_head is not None and method.critic != "head":
        load_value_head(actor.value_head, method.critic)
    return actor, Reference.of(actor)

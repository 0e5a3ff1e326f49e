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
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.weights import Weights, refuse_non_finite_weights
from lmgym.errors import InputError
from lmgym.models.config_fields import layer_count, width
from lmgym.models.forward.anatomy import Anatomy, examine
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.policies import load_policy
from lmgym.models.freezing import freeze_below, frozen_modules
from lmgym.models.heads import head_name
from lmgym.models.loading import load_classifier, load_config, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.parameters import LINEAR, gathered, round_weights
from lmgym.models.quantized import bits_of
from lmgym.models.saving import below, below_adapters, is_adapted, replaced, save_plain
from lmgym.random_state import seeded
from ppo.config import PPOConfig


@final
class ActorCritic(nn.Module):
    """A policy and its values. `critic` is a classifier with one output, or None for a head on the policy's trunk."""

    def __init__(
        self, policy, critic=None, frozen_layers: int = 0, temperature: float = 1.0, recompute: bool = False, seed=0,
        anatomy: Anatomy | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.policy, self.critic = policy, critic
        self.decoder = Decoder(self.causal, anatomy)
        self.critic_decoder = None if critic is None else Decoder(critic)
        self.value_head = ValueHead(width(self.causal.config), seed) if critic is None else None
        self.frozen_layers, self.temperature, self.recompute = frozen_layers, temperature, recompute
        if frozen_layers:
            freeze_below(self.causal, frozen_layers, self.decoder.anatomy)
        self.eval()

    def train(self, mode: bool = True) -> "ActorCritic":
        """Stays as it is: with dropout the policy would be another than the one that sampled."""
        return super().train(False)

    @property
    def causal(self):
        """The transformers model itself, below any adapter."""
        return below_adapters(self.policy)

    @property
    def config(self):
        """The policy's."""
        return self.causal.config

    def trunk(self, rows: PackedRows) -> torch.Tensor:
        """States [N, W] of all tokens below the first layer that is trained."""
        return self.decoder.below(rows, self.frozen_layers)

    def forward(
        self,
        rows: PackedRows,
        targets: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
        values: bool = True,
        trunk_only: bool = False,
        detach_values: bool = False,
    ) -> Any:
        """(log-probabilities [M] of the targets, or None; values [M], or None) at what `rows` read.

        `states` are those of `trunk`; without them it runs here. With `trunk_only` it is all that runs.
        `detach_values`: no gradient of the values reaches the policy, also not from a head on its trunk.
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
                found = self.value_head(normed.detach() if detach_values else normed)
        if values and self.critic_decoder is not None:
            states = self.critic_decoder.hidden(rows, recompute=self.recompute)
            found = self.critic_decoder.scores(states)[:, 0].float()
        return logprobs, found


@final
class Reference:
    """The policy as it was before step 1. Made by `of`, before the policy is wrapped."""

    def __init__(self, decoder: Decoder, frozen_layers: int, temperature: float) -> None:
        self.decoder, self.frozen_layers, self.temperature = decoder, frozen_layers, temperature
        self.model = decoder.model

    @classmethod
    def of(cls, actor: ActorCritic) -> "Reference | None":
        """A frozen copy, which shares what is frozen anyway; None for a policy with adapters, which is its own."""
        if is_adapted(actor.policy):
            return None
        frozen = frozen_modules(actor.causal, actor.frozen_layers, actor.decoder.anatomy)
        shared = [module for module in frozen if not any(p.requires_grad for p in module.parameters())]
        model = copy.deepcopy(actor.causal, {id(module): module for module in shared})
        model.requires_grad_(False)
        return cls(Decoder(model.eval(), actor.decoder.anatomy), actor.frozen_layers, actor.temperature)

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
            states = self.decoder.below(rows, self.frozen_layers)
        normed = self.decoder.hidden(rows, states=states, first=self.frozen_layers)
        return token_logprobs(self.decoder, normed, targets, self.temperature)


def own_linear_layers(decoder: Decoder, frozen_layers: int) -> Iterator[nn.Module]:
    """A reference's linear layers that are not the policy's too, but for a head that is tied to the embeddings."""
    frozen = frozen_modules(decoder.model, frozen_layers, decoder.anatomy) if frozen_layers else []
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
    anatomy = examine(policy)
    if method.num_layers_unfrozen > 0:  # also where they are all: the embeddings and a tied head are frozen then
        freeze_below(policy, frozen, anatomy)
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
        anatomy,
    )
    if actor.value_head is not None and method.critic != "head":
        load_value_head(actor.value_head, method.critic)
    return actor, Reference.of(actor)


VALUE_HEAD = "value_head.safetensors"


class ValueHead(nn.Module):
    """Linear(d, 2d), ReLU, Linear(2d, 1), as in trlx, in fp32; it says 0 until it has learned."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, 1)
        generator = torch.Generator().manual_seed(seed)
        with gathered([*self.parameters()], modifier_rank=0), torch.no_grad():
            if self.inner.weight.numel():
                drawn = torch.randn(self.inner.weight.shape, generator=generator) / width**0.5
                self.inner.weight.copy_(drawn.to(self.inner.weight))
                for zero in (self.inner.bias, self.outer.weight, self.outer.bias):
                    zero.zero_()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[M] of [M, W]."""
        with torch.autocast(states.device.type, enabled=False):
            inner = self.inner(states.to(self.inner.weight.dtype)).relu()
            return self.outer(inner)[:, 0].float()


def is_on_trunk(name: str) -> bool:
    """Whether a critic that settings name is a head on the policy's trunk: a new one, or that of a former run."""
    return name == "head" or os.path.isfile(Path(name) / VALUE_HEAD)


def load_value_head(head: ValueHead, folder: str) -> None:
    """What `save_critic` wrote of a head. Raises InputError where it is of a policy of another width."""
    found = load_file(Path(folder) / VALUE_HEAD)
    width, needed = found["inner.weight"].shape[1], head.inner.in_features
    if width != needed:
        raise InputError(
            f"critic {folder} is a value head for states of {width} numbers, and the policy's have {needed}; needed: "
            "the policy that it was trained with, or critic=head"
        )
    head.load_state_dict(found)
    refuse_non_finite_weights(head, f"critic {folder}")


def load_critic(name: str, tokenizer):
    """A reward model to start a critic from, its score at every token. Raises InputError where the policy's ids mean
    other words to it.
    """
    own = refuse_unfit_critic(name, tokenizer)
    model, _ = load_classifier(name, own, num_labels=1, fresh_head=False)
    head = getattr(model, head_name(model))
    if head.out_features != 1:
        raise InputError(f"critic {name} has {head.out_features} outputs; needed: a reward model with one")
    return model


def refuse_unfit_critic(name: str, tokenizer):
    """A critic's tokenizer. Raises InputError, before weights are read, for a causal model, and where the policy's ids
    mean other words to it.
    """
    own, kinds = load_tokenizer(name), load_config(name).architectures or []
    if kinds and all("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        raise InputError(
            f"critic {name} is no scorer: it is a {', '.join(kinds)}; needed: a reward model's folder, or critic=head"
        )
    if own.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"critic {name} has another tokenizer ({len(own)} tokens) than the policy ({len(tokenizer)}): a critic "
            "reads the policy's token ids; needed: a reward model trained from the same family, or critic=head"
        )
    return own


def save_critic(critic, state: Weights, folder: Path, tokenizer) -> None:
    """A folder for another run's `--critic`, from the whole weights of policy and critic by name.

    A critic of its own is an ordinary folder of a classifier with one label.
    """
    with replaced(folder) as partial:
        if critic is not None:
            save_plain(critic, below(state, "critic."), partial, tokenizer)
        else:
            partial.mkdir(parents=True)
            save_file(below(state, "value_head."), partial / VALUE_HEAD)

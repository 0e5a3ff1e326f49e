"""A stand-in for TRL's `AutoModelForCausalLMWithValueHead`: a policy whose actor and critic are ppo's."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from lmgym.config import ModelConfig
from lmgym.distributed.random_state import seeded
from lmgym.errors import InputError, listed, shown
from lmgym.models.critics import load_value_head, save_critic
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import fit_to_tokenizer, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.quantized import is_quantized
from lmgym.models.saving import has_adapters, save_model, unwrap_adapters
from lmgym.training.plan import refuse_unfit_quantization
from lmgym.training.reporting import show_notes

if TYPE_CHECKING:
    from ppo.actor_critic import ActorCritic, Reference
    from ppo.config import PPOConfig

CRITIC = "critic"


@final
class AutoModelForCausalLMWithValueHead(nn.Module):
    """`pretrained_model`, of transformers or peft, in fp32; its `actor`, with the value head, is made by an `Agent`."""

    def __init__(self, pretrained_model: Any, critic: str = "head") -> None:
        super().__init__()
        if isinstance(pretrained_model, type(self)):
            raise InputError("a model with a value head was given another one; needed: a causal model")
        self.pretrained_model = pretrained_model
        self.actor: ActorCritic | None = None
        self.updates = 0
        """of all agents that learn with it"""
        self._critic = critic
        self._reference: Reference | None = None

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        peft_config: Any = None,
        load_in_8bit: bool = False,
        load_in_4bit: bool = False,
        quantization_config: Any = None,
        trust_remote_code: bool = False,
        **others: Any,
    ) -> "AutoModelForCausalLMWithValueHead":
        """From a folder, a hub id or a causal model. `peft_config` is peft's LoraConfig, or its fields in a dict.

        `quantization_config` is transformers' BitsAndBytesConfig, or its fields in a dict, of which 8 or 4 bits are
        read. `others` are reported as not used. Raises InputError for what does not load, and for 8 or 4 bits of a
        model that is loaded, without LoRA or without bitsandbytes.
        """
        from ppo.trlx.adapters import adapter_settings

        model = pretrained_model_name_or_path
        lora, notes = adapter_settings(peft_config, unfrozen=-1)
        in_8bit, in_4bit = _bits_of(quantization_config)
        settings = ModelConfig(load_in_8bit=load_in_8bit or in_8bit, load_in_4bit=load_in_4bit or in_4bit, **lora)
        others = {name: value for name, value in others.items() if value is not None}
        if others.pop("token", None):
            notes.append("from_pretrained: token not used: the hub's token is HF_TOKEN of the environment")
        if others:
            notes.append(f"from_pretrained: {listed(sorted(others))} not used: weights load in fp32, then move by .to")
        show_notes([f"lmgym.agents: {note.removeprefix('model.')}" for note in notes])
        critic = "head"
        _refuse_unfit_bits(settings, isinstance(model, nn.Module))
        if not isinstance(model, nn.Module):
            name = str(model)
            model = load_policy(name, load_tokenizer(name, trust_remote_code), trust_remote_code, settings.bits)
            critic = str(Path(name) / CRITIC) if (Path(name) / CRITIC).is_dir() else critic
        if settings.lora_rank:
            with seeded(0):  # as a run of seed 0 draws them
                model = add_lora(
                    model,
                    settings.lora_rank,
                    settings.lora_alpha,
                    0.0,
                    settings.lora_target_modules,
                    settings.modules_to_save,
                )
        return cls(model, critic)

    @property
    def causal(self) -> Any:
        """The transformers model itself, below any adapter."""
        return unwrap_adapters(self.pretrained_model)

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.causal.config

    def make_actor(self, config: "PPOConfig", tokenizer: Any) -> "tuple[ActorCritic, Reference | None]":
        """The policy with its value head, and its reference: None for adapters. Made once, and then shared by agents.

        Weights become fp32, unless they are quantised: in 16 bits an update at a rate of 1e-5 changes nothing.
        """
        from ppo.actor_critic import ActorCritic
        from ppo.setup import adapted

        if self.actor is None:
            if not is_quantized(self.causal):
                self.pretrained_model.float()
            fit_to_tokenizer(self.causal, tokenizer)
            if has_adapters(self.pretrained_model):
                self.actor = ActorCritic(
                    self.pretrained_model,
                    temperature=config.rollout.temperature,
                    seed=config.optimizer.seed,
                    has_values=config.algorithm.has_critic,
                )
                if self.actor.value_head is not None and self._critic != "head":
                    load_value_head(self.actor.value_head, self._critic)
                return self.actor, None
            own = replace(config, critic=replace(config.critic, critic=self._critic))
            self.actor, self._reference = adapted(own, self.pretrained_model)
        self.actor.temperature = config.rollout.temperature
        return self.actor, self._reference

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The causal model's own forward."""
        return self.pretrained_model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """transformers' `generate`; agents sample by lmgym's own generator."""
        return self.pretrained_model.generate(*args, **kwargs)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the policy, or its adapters, as transformers and peft do, and the value head beside it in critic/."""
        if has_adapters(self.pretrained_model):
            self.pretrained_model.save_pretrained(folder)
        else:
            save_model(self.pretrained_model, self.pretrained_model.state_dict(), Path(folder))
        if self.actor is not None and self.actor.value_head is not None:
            head = {f"value_head.{name}": w.detach().cpu() for name, w in self.actor.value_head.state_dict().items()}
            save_critic(None, head, Path(folder) / CRITIC, None)


def _bits_of(given: Any) -> tuple[bool, bool]:
    """(8 bits, 4 bits) of a BitsAndBytesConfig. Raises InputError for another quantisation."""
    if given is None:
        return False, False
    names = "load_in_8bit", "load_in_4bit"
    in_8bit, in_4bit = (
        bool(given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)) for name in names
    )
    if not (in_8bit or in_4bit):
        raise InputError(
            f"quantization_config={shown(given)}; needed: BitsAndBytesConfig with load_in_8bit or load_in_4bit"
        )
    return in_8bit, in_4bit


def _refuse_unfit_bits(settings: ModelConfig, is_loaded: bool) -> None:
    """Raises InputError if quantised weights are requested and not possible, in the words of a program."""
    asked = f"load_in_{settings.bits}bit=True"
    if settings.bits and is_loaded:
        raise InputError(f"{asked} of a model that is loaded already; needed: its folder or hub id")
    if settings.bits and not settings.lora_rank:
        raise InputError(f"{asked}: quantised weights cannot be trained; needed: peft_config=LoraConfig(...)")
    refuse_unfit_quantization(settings, None)

"""Dropout in training: off in every family unless it is asked for, with the weights' folder as it was."""

import copy
from typing import Any

import pytest
import torch
from families import FAMILIES, LAYERS, Family
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.models.dropout import set_training
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.lora import add_lora
from lmgym.training.setup import CHECKPOINTING

IDS = [[5, 6, 7, 8, 9, 10, 11, 12]]
KINDS = [family for family in FAMILIES if family.name != "mamba"]  # which has none
[GPT2] = [family for family in FAMILIES if family.name == "gpt2"]


def dropping(family: Family) -> Any:
    """A model of the family, which drops half of everything that it can."""
    config = AutoConfig.for_model(family.name, **{"vocab_size": 64, "pad_token_id": 0, **family.settings})
    rates = {key for key, value in config.to_dict().items() if "drop" in key and isinstance(value, int | float)}
    assert rates - {"classifier_dropout"}, family.name
    for key in rates:
        setattr(config, key, 0.5)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def twice(policy: PolicyModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Two forwards in training mode."""
    policy.train()
    assert policy.training
    first, second = (policy(**policy.collate(IDS, [[3, 7]])) for _ in range(2))
    return first, second


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", KINDS, ids=lambda one: one.name)
def test_every_family_trains_without_dropout_and_checkpoints_still_compute_again(family: Family, checkpointing) -> None:
    model = dropping(family)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    policy = PolicyModel(model)
    first, second = twice(policy)
    assert torch.equal(first, second)
    assert torch.equal(policy.eval()(**policy.collate(IDS, [[3, 7]])), first)
    if checkpointing:
        policy.train()
        again: set[torch.nn.Module] = set()
        for module in policy.modules():
            module.register_forward_hook(lambda module, *_: again.add(module))
        first.sum().backward()
        assert len(again) > LAYERS


def test_a_copy_of_a_model_with_checkpoints_trains_without_dropout_too() -> None:
    model = dropping(GPT2)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    first, second = twice(copy.deepcopy(PolicyModel(model).train()))
    assert torch.equal(first, second)


def test_dropout_is_the_models_own_where_it_is_asked_for() -> None:
    first, second = twice(PolicyModel(dropping(GPT2), dropout=True))
    assert not torch.equal(first, second)


def test_dropout_in_front_of_adapters_is_on_and_the_config_is_saved_as_it_was() -> None:
    model = dropping(GPT2)
    policy = PolicyModel(add_lora(model, 4, 8, 0.5))
    with torch.no_grad():
        for name, weights in policy.named_parameters():
            if "lora_B" in name:
                weights.fill_(0.1)
    first, second = twice(policy)
    assert not torch.equal(first, second)
    assert model.config.resid_pdrop == 0.5
    set_training(policy, False)
    assert not any(module.training for module in policy.modules())

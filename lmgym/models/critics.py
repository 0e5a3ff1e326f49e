"""Critics: a value head on the policy's trunk, or a classifier that reads the policy's ids; loading and saving."""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lmgym.distributed.weights import Weights, refuse_non_finite_weights
from lmgym.errors import InputError
from lmgym.models.classifiers import head_name
from lmgym.models.damage import readable
from lmgym.models.loading import load_classifier, load_config, load_tokenizer
from lmgym.models.parameters import gathered
from lmgym.models.saving import replace_folder, save_plain, submodule_weights

VALUE_HEAD = "value_head.safetensors"


class ValueHead(nn.Module):
    """Linear(d, 2d), ReLU, Linear(2d, 1), as in trlx, in fp32; the last layer starts at 0."""

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
        """Values [M] of states [M, W]."""
        with torch.autocast(states.device.type, enabled=False):
            inner = self.inner(states.to(self.inner.weight.dtype)).relu()
            return self.outer(inner)[:, 0].float()


def is_on_trunk(name: str) -> bool:
    """True for a head on the policy's trunk: a new one, or that of an earlier run."""
    return name == "head" or os.path.isfile(Path(name) / VALUE_HEAD)


def load_value_head(head: ValueHead, folder: str) -> None:
    """Load a head that `save_critic` wrote. Raises InputError if its policy had another width."""
    with readable("critic", folder):
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
    """A reward model to start a critic from. Raises InputError if its tokenizer is not the policy's."""
    own = refuse_unfit_critic(name, tokenizer)
    model, _ = load_classifier(name, own, num_labels=1, fresh_head=False)
    head = getattr(model, head_name(model))
    if head.out_features != 1:
        raise InputError(f"critic {name} has {head.out_features} outputs; needed: a reward model with one")
    return model


def refuse_unfit_critic(name: str, tokenizer):
    """A critic's tokenizer. Raises InputError, before weights are read, for a causal model, and for another tokenizer
    than the policy's.
    """
    own, kinds = load_tokenizer(name), load_config(name).architectures or []
    if kinds and all("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        raise InputError(
            f"critic {name} is not a scorer but a {', '.join(kinds)}; needed: a reward model's folder, or critic=head"
        )
    if own.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"critic {name} has another tokenizer ({len(own)} tokens) than the policy ({len(tokenizer)}): a critic "
            "reads the policy's token ids; needed: a reward model trained from the same family, or critic=head"
        )
    return own


def save_critic(critic, state: Weights, folder: Path, tokenizer) -> None:
    """Save a folder for another run's `--critic`, from the whole weights of policy and critic by name.

    A separate critic is an ordinary folder of a classifier with one label.
    """
    with replace_folder(folder) as partial:
        if critic is not None:
            save_plain(critic, submodule_weights(state, "critic."), partial, tokenizer)
        else:
            partial.mkdir(parents=True)
            save_file(submodule_weights(state, "value_head."), partial / VALUE_HEAD)

"""Causal models that are trained to talk: loading, saving, and the one forward with logits where tokens have loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from lmgym.distributed.weights import Weights, refuse_non_finite_weights
from lmgym.errors import InputError
from lmgym.models.architectures import refuse_encoder
from lmgym.models.forward.decoder import decoder_of
from lmgym.models.forward.packed_rows import PackedRows, pack_places
from lmgym.models.loading import SCORER_HEADS, fit_to_tokenizer, load_config, read_weights
from lmgym.models.quantized import loading_arguments
from lmgym.models.saving import below_adapters, empty_copy, is_adapted, merged, replaced, save_adapter, save_plain
from lmgym.models.sources import refuse_pickles

CANNOT_TALK = (
    "a scorer, which cannot talk; needed: a causal model, as sft and ppo save theirs, or the one that the scorer was "
    "trained from"
)


def load_policy(name: str, tokenizer, trust_remote_code: bool = False, bits: int = 0):
    """A causal model in fp32 that ends its replies with the tokenizer's eos.

    With `bits` 4 or 8 its linear layers are quantised, but for the head: to be trained by adapters.

    Raises InputError where none loads, where the folder holds another kind of model, and where there is no eos.
    """
    config = load_config(name, trust_remote_code)
    refuse_encoder(name, config)
    refuse_no_eos(name, tokenizer)
    model = read_causal(name, config, trust_remote_code, **loading_arguments(bits))
    fit_to_tokenizer(model, tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = _with_eos(model.generation_config.eos_token_id, tokenizer.eos_token_id)
    return model


def read_causal(
    name: str, config, trust_remote_code: bool = False, dtype: torch.dtype = torch.float32, **settings: Any
):
    """A causal model of this config as its folder has it; `settings` as in `read_weights`.

    Raises InputError where none loads, and where the folder holds another kind of model.
    """
    refuse_pickles(name)
    model, info = read_weights(AutoModelForCausalLM, "causal model", name, trust_remote_code, dtype, **settings)
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{name} is no causal model: it lacks {missing[0]} ({len(missing)} such); a scorer cannot talk"
        )
    # a tied head is missed by nobody: what tells a scorer then is the head that it has instead
    if other := sorted(key for key in info["unexpected_keys"] if key.startswith(SCORER_HEADS)):
        kind = ", ".join(config.architectures or ["no architecture"])
        raise InputError(f"{name} is no causal model: it holds {other[0]} ({kind}), the head of {CANNOT_TALK}")
    refuse_non_finite_weights(model, name)
    return model


def refuse_no_eos(name: str, tokenizer) -> None:
    """Raises InputError for a tokenizer without an eos token: no reply would ever end."""
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"{name} has no eos token: found eos_token null in its tokenizer; needed: a token that ends a reply, or "
            'none ever ends; name one in tokenizer_config.json, as "eos_token": "<|endoftext|>"'
        )


def refuse_unfit_policy(name: str, config) -> None:
    """Raises InputError for a config of an encoder or of classifiers alone, before weights are read."""
    refuse_encoder(name, config)
    kinds = config.architectures or []
    if kinds and all("Classification" in kind for kind in kinds):
        raise InputError(f"{name} is no causal model: it is a {', '.join(kinds)}, {CANNOT_TALK}")


def _with_eos(known: int | list[int] | None, eos: int) -> int | list[int]:
    """What ends a reply: what the folder says, and the token that training ends replies with."""
    ids = [known] if isinstance(known, int) else list(known or [])
    ids = ids if eos in ids else [*ids, eos]
    return ids[0] if len(ids) == 1 else ids


class PolicyModel(nn.Module):
    """A causal model whose one forward gives logits at chosen places of a batch of rows, and at no others.

    Rows run packed where the model can (lmgym/models/forward/decoder.py); `packed` as in `decoder_of`.
    """

    def __init__(self, model, packed: bool | None = None) -> None:
        super().__init__()
        self.model = model
        self.decoder = decoder_of(self.causal, packed)

    @property
    def causal(self):
        """The transformers model itself, below any adapter."""
        return below_adapters(self.model)

    @property
    def config(self):
        """The model's config: the Trainer reads the hidden size for ZeRO-3's buckets from it."""
        return self.causal.config

    @property
    def packed(self) -> bool:
        """Rows run without padding."""
        return self.decoder.packed

    def collate(self, rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Keyword arguments of `forward` for rows of ids, each with the places whose logits are wanted."""
        return {"rows": pack_places(rows, places)}

    def forward(self, rows: PackedRows) -> torch.Tensor:
        """Logits [places, vocabulary] in fp32, row after row."""
        return self.decoder.logits(self.decoder.hidden(rows)).float()


def save_policy(model, state_dict: Weights, folder: Path, tokenizer, merge: bool) -> Path:
    """The trained model as folders under `folder`; the one to use.

    `model/` is an ordinary Hugging Face folder with fp32 safetensors. Of a model with LoRA `adapter/` holds the
    adapter and the tokenizer, and `model/` the merged weights where `merge` asks for them. Called on the main rank.
    """
    if is_adapted(model):
        with replaced(folder / "adapter") as partial:
            save_adapter(model, state_dict, partial)
            tokenizer.save_pretrained(partial)
        if not merge:
            return folder / "adapter"
        settings = model.get_base_model().generation_config
        model, state_dict = merged(model, state_dict)
        model.generation_config = settings
    with replaced(folder / "model") as partial:
        save_plain(model, state_dict, partial, tokenizer)
    return folder / "model"


def plain_copy(model, state_dict: Weights):
    """A model of its own with these whole weights, adapters merged in: to generate where the live one is sharded."""
    if is_adapted(model):
        return merged(model, state_dict)[0].eval()
    copy = empty_copy(model)
    # of tied weights only one is listed
    copy.load_state_dict({name: value.float() for name, value in state_dict.items()}, strict=False)
    copy.tie_weights()
    return copy.eval()

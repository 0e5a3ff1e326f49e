"""Causal models as policies: loading, saving, and the one forward with logits where tokens have loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from lmgym.distributed.weights import Weights, refuse_non_finite_weights
from lmgym.errors import InputError, shown_path
from lmgym.models.config_fields import refuse_encoder
from lmgym.models.damage import readable
from lmgym.models.dropout import set_training
from lmgym.models.forward.decoder import decoder_of
from lmgym.models.forward.logprobs import logprobs_and_hits, token_logprobs
from lmgym.models.forward.packed_rows import PackedRows, pack_places, pack_replies
from lmgym.models.loading import SCORER_HEADS, fit_to_tokenizer, load_config, load_tokenizer, read_weights
from lmgym.models.quantized import loading_arguments
from lmgym.models.saving import (
    has_adapters,
    merge_adapters,
    new_like,
    replace_folder,
    save_adapter,
    save_plain,
    save_tokenizer,
    unwrap_adapters,
    write_card,
)
from lmgym.models.sources import refuse_pickles
from lmgym.text import Replies
from lmgym.turn_ends import turn_ends

CANNOT_TALK = (
    "a scorer, which cannot generate text; needed: a causal model, as sft and ppo save theirs, or the one that the "
    "scorer was trained from"
)


def load_policy(name: str, tokenizer, trust_remote_code: bool = False, bits: int = 0):
    """A causal model in fp32 that ends its replies where its chat template ends a turn.

    With `bits` 4 or 8 its linear layers, except the head, are quantised, for training with adapters. Raises InputError
    if none loads, for another kind of model, and for a tokenizer without an eos token.
    """
    config = load_config(name, trust_remote_code)
    refuse_encoder(name, config)
    refuse_no_eos(name, tokenizer)
    model = read_causal(name, config, trust_remote_code, **loading_arguments(bits))
    fit_to_tokenizer(model, tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = _with_ends(model.generation_config.eos_token_id, turn_ends(tokenizer).ids)
    return model


def read_causal(
    name: str, config, trust_remote_code: bool = False, dtype: torch.dtype = torch.float32, **settings: Any
):
    """A causal model of this config, unchanged; `settings` as in `read_weights`.

    Raises InputError if none loads, and for another kind of model.
    """
    refuse_pickles(name)
    model, info = read_weights(AutoModelForCausalLM, "causal model", name, trust_remote_code, dtype, **settings)
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{name} is not a causal model: it lacks {missing[0]} ({len(missing)} such); a scorer cannot generate text"
        )
    # a tied head is never missing: a scorer is then recognised by its own head
    if other := sorted(key for key in info["unexpected_keys"] if key.startswith(SCORER_HEADS)):
        kind = ", ".join(config.architectures or ["no architecture"])
        raise InputError(f"{name} is not a causal model: it holds {other[0]} ({kind}), the head of {CANNOT_TALK}")
    refuse_non_finite_weights(model, name)
    return model


def with_adapter(model, tokenizer, folder: str):
    """The model with the adapter of a folder merged in. Raises InputError for one that does not fit."""
    from peft import PeftModel

    refuse_pickles(folder)
    fit_to_tokenizer(model, tokenizer)
    fit = f"; needed: an adapter that was trained on {shown_path(model.config.name_or_path)}"
    with readable("adapter", folder, fit):
        return PeftModel.from_pretrained(model, folder).merge_and_unload()


def refuse_unfit_reference(name: str, tokenizer, trust_remote_code: bool = False) -> None:
    """Raises InputError for a reference that cannot generate text, or whose tokens have other ids than the policy's."""
    refuse_unfit_policy(name, load_config(name, trust_remote_code))
    own, others = tokenizer.get_vocab(), load_tokenizer(name, trust_remote_code).get_vocab()
    for token, id_ in others.items():
        if own.get(token) != id_:
            found = f"id {own[token]}" if token in own else "none"
            raise InputError(
                f"the reference {name} has {len(others):,} tokens, the policy {len(own):,}: {token!r} is id {id_} "
                f"there and {found} here; needed: a reference with the policy's vocabulary, such as the model it was "
                "trained from, or leave --reference out"
            )


def refuse_no_eos(name: str, tokenizer) -> None:
    """Raises InputError for a tokenizer without an eos token: replies would never end."""
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"{name} has no eos token: found eos_token null in its tokenizer; needed: a token that ends a reply, or "
            'none ever ends; name one in tokenizer_config.json, as "eos_token": "<|endoftext|>"'
        )


def refuse_unfit_policy(name: str, config) -> None:
    """Raises InputError, before weights are read, for the config of an encoder or a classifier."""
    refuse_encoder(name, config)
    kinds = config.architectures or []
    if kinds and all("Classification" in kind for kind in kinds):
        raise InputError(f"{name} is not a causal model: it is a {', '.join(kinds)}, {CANNOT_TALK}")


def _with_ends(known: int | list[int] | None, ends: Sequence[int]) -> int | list[int]:
    """The folder's ids that end a reply, and those that end a turn by the chat template."""
    ids = list(dict.fromkeys([*([known] if isinstance(known, int) else known or []), *ends]))
    return ids[0] if len(ids) == 1 else ids


class PolicyModel(nn.Module):
    """A causal model whose one forward gives log-probabilities of tokens at chosen places of rows, or the logits there.

    `packed` as in `decoder_of`. With `dropout` the model's own is on in training.
    """

    def __init__(self, model, packed: bool | None = None, dropout: bool = False) -> None:
        super().__init__()
        self.model, self.dropout = model, dropout
        self.decoder = decoder_of(self.causal, packed)

    def train(self, mode: bool = True) -> "PolicyModel":
        """Training mode, without the model's own dropout unless it was asked for."""
        if self.dropout:
            return super().train(mode)
        set_training(self, mode)
        return self

    @property
    def causal(self):
        """The transformers model itself, below any adapter."""
        return unwrap_adapters(self.model)

    @property
    def config(self):
        """The model's config, from which the Trainer takes the hidden size for ZeRO-3's buckets."""
        return self.causal.config

    @property
    def packed(self) -> bool:
        """True if rows run without padding."""
        return self.decoder.packed

    def collate(self, rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Keyword arguments of `forward` for rows of ids, each with the places whose logits are wanted."""
        return {"rows": pack_places(rows, places)}

    def collate_replies(self, rows: Sequence[Replies], end: int) -> dict[str, Any]:
        """Keyword arguments of `forward` for log-probabilities of each suffix's tokens but the first, and of its end.

        The rows are those of `tokenize_apart`: a suffix begins with the prompt's last token. A prompt runs once,
        however many replies it has. The end is `end`, that of a turn, unless the row has `ends` of its own.
        """
        targets = [
            token
            for row in rows
            for suffix, last in zip(row.suffixes, row.ends or [end] * len(row.suffixes), strict=True)
            for token in (*suffix[1:], last)
        ]
        return {"rows": pack_replies(rows, whole=True), "targets": torch.tensor(targets)}

    def forward(
        self, rows: PackedRows, targets: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """In fp32, row after row: logits [places, vocabulary], or log-probabilities [places] of `targets` there.

        Of `labels`, [2, places]: log-probabilities, and 1 where no token is likelier, else 0.
        """
        states = self.decoder.hidden(rows)
        if labels is not None:
            return logprobs_and_hits(self.decoder, states, labels)
        if targets is None:
            return self.decoder.logits(states).float()
        return token_logprobs(self.decoder, states, targets)


def save_policy(
    model, state_dict: Weights, folder: Path, tokenizer, merge: bool, card: str = "", last: bool = False
) -> Path:
    """Save a trained model under `folder`, and return the folder to use. Called on the main rank.

    `model/` is an ordinary Hugging Face folder with fp32 safetensors, frozen weights in the dtype that the run held
    them in. With LoRA, `adapter/` holds the adapter and the tokenizer, and `model/`, only with `merge`, the merged
    weights. `last`: the folder to use is called `last/`, and is all that is saved.
    """
    if has_adapters(model):
        if not (merge and last):
            adapter = folder / ("last" if last else "adapter")
            with replace_folder(adapter) as partial:
                save_adapter(model, state_dict, partial)
                save_tokenizer(tokenizer, partial)
                write_card(partial, "" if merge else card)
        if not merge:
            return adapter
        settings = model.get_base_model().generation_config
        model, state_dict = merge_adapters(model, state_dict)
        model.generation_config = settings
    whole = folder / ("last" if last else "model")
    with replace_folder(whole) as partial:
        save_plain(model, state_dict, partial, tokenizer)
        write_card(partial, card)
    return whole


def merged_copy(model, state_dict: Weights):
    """A copy of the model with these whole weights, adapters merged: for generation while the live one is sharded."""
    if has_adapters(model):
        return merge_adapters(model, state_dict)[0].eval()
    copy = new_like(model)
    # not strict: tied weights are listed under one name
    copy.load_state_dict({name: value.float() for name, value in state_dict.items()}, strict=False)
    copy.tie_weights()
    return copy.eval()

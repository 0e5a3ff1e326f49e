"""Loading tokenizers, configs and classifiers.

Traps that this module exists for: a pad token that is the eos token pools the wrong place; a bf16 folder loads as
bf16 weights, which plain AdamW at 1e-5 hardly moves.
"""

import os
import re
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, set_seed
from transformers.utils import logging as transformers_logging

from lmgym.distributed.weights import refuse_non_finite_weights
from lmgym.errors import InputError, one_line, shown_path
from lmgym.models.architectures import refuse_other_than_text
from lmgym.models.classifiers import Float32Head, classifier_class, head_name, init_head
from lmgym.models.config_fields import most_positions, refuse_absent_fields
from lmgym.models.parameters import gathered
from lmgym.models.quantized import loading_arguments
from lmgym.models.sources import no_folder, refuse_pickles, source_arguments
from lmgym.text import ensure_template

# what its reports of missing and unexpected keys mean for a scorer is said, or refused, here
transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

SCORER_HEADS = ("score.", "classifier.")  # what keys of weights begin with that no causal model has
PAD_TOKEN = "<|pad|>"
UNUSED = re.compile(r"(^|[^a-z])(pad|padding|unused|reserved)([^a-z]|$)")
ODD_TEXT = "\u2603\u6f22\U0001f9ff\u0378\x07"  # characters that few vocabularies hold


def load_tokenizer(name: str, trust_remote_code: bool = False):
    """A tokenizer with a pad token of its own, right padding and a chat template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source_arguments(name, trust_remote_code))
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"no tokenizer loads from {shown_path(name)}: {first_line(error)}{no_folder(name)}{_tokenizer_files(name)}"
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes of a folder without its files
        raise InputError(f"the tokenizer of {name} knows no word{_tokenizer_files(name)}")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        tokenizer.add_special_tokens({"pad_token": _unused_special(tokenizer) or PAD_TOKEN})
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = "left"
    ensure_template(tokenizer)
    return tokenizer


def _unused_special(tokenizer) -> str | None:
    """A special token that can be padding without a new row of the embeddings: one that is called so, or unk.

    Not one that has a meaning besides, or that a text or the chat template gives.
    """
    roles = {getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "cls", "sep", "mask")}
    specials = [token.content for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    named = [token for token in specials if UNUSED.search(token.lower())]
    # any text is made of bytes in most tokenizers, and no text gives unk
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id not in tokenizer(ODD_TEXT).input_ids:
        named.append(tokenizer.unk_token)
    written = str(tokenizer.chat_template or "")
    return next((token for token in named if token not in roles and token not in written), None)


def _tokenizer_files(name: str) -> str:
    """What to do about a folder that has no tokenizer's files; nothing for one that has, and for hub ids."""
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder) or any(folder.glob("*token*")):
        return ""
    return (
        "; found no tokenizer's files in that folder; needed: tokenizer.json and tokenizer_config.json, as "
        f"tokenizer.save_pretrained({str(folder)!r}) writes them"
    )


def load_config(name: str, trust_remote_code: bool = False):
    """A model's config alone. Raises InputError where there is none, and for a kind of model that no stage can use."""
    try:
        given = source_arguments(name, trust_remote_code)
        config = AutoConfig.from_pretrained(**given)
        stated, _ = PretrainedConfig.get_config_dict(**given)
    except InputError:
        raise
    except StrictDataclassError as error:  # which names the field in its second line
        raise InputError(f"the config of {shown_path(name)} cannot be read: {one_line(str(error), 400)}") from error
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"no model config loads from {shown_path(name)}: {first_line(error)}{no_folder(name)}"
        ) from error
    refuse_other_than_text(name, config)
    refuse_absent_fields(name, config, stated)
    return config


def context_length(config) -> int:
    """Most tokens that a model of this config reads; 2^30 where it names no limit."""
    return most_positions(config) or 1 << 30


def load_classifier(
    name: str,
    tokenizer,
    num_labels: int = 1,
    seed: int = 0,
    fresh_head: bool = True,
    trust_remote_code: bool = False,
    bits: int = 0,
):
    """A sequence classifier in fp32, its head new where the folder has none; returns (model, head_is_new).

    With `bits` 4 or 8 its linear layers are quantised, but for the head: to be trained by adapters.

    A new head is normal with std 1/sqrt(hidden + 1) (Stiennon et al. 2020). With `fresh_head=False` a folder
    without a trained head raises InputError.
    """
    config = load_config(name, trust_remote_code)
    refuse_pickles(name)
    set_seed(seed)  # a new pooler is drawn within from_pretrained
    settings: dict[str, Any] = {"ignore_mismatched_sizes": True, **loading_arguments(bits)}
    if config.num_labels != num_labels:
        settings["num_labels"] = num_labels
    model, info = read_weights(classifier_class(config), "classifier", name, trust_remote_code, **settings)
    absent = set(info["missing_keys"]) | {key[0] for key in info.get("mismatched_keys", ())}
    # some encoders' heads are several layers (RoBERTa, DeBERTa): all that is not the trunk, and the trunk's pooler
    head_keys = {key for key in absent if not key.startswith(f"{model.base_model_prefix}.")}
    head_is_new = bool(head_keys)
    if head_is_new:
        head_keys |= {key for key in absent if ".pooler." in key}
    if head_is_new and not fresh_head:
        raise InputError(f"{name} is no scorer: it has no trained {head_name(model)}; train one, or name its folder")
    if lost := sorted(absent - head_keys):
        raise InputError(f"the weights in {name} are not whole: missing {', '.join(lost[:3])} ({len(lost)} in all)")
    refuse_non_finite_weights(model, name)
    fit_to_tokenizer(model, tokenizer)
    if head_is_new:
        init_head(model, seed)
    head = getattr(model, head_name(model))
    if type(head) is nn.Linear:
        head.__class__ = Float32Head  # in place: ZeRO-3 and the optimizer know this module and its weight
    return model, head_is_new


def read_weights(
    kind: Any, role: str, name: str, trust_remote_code: bool, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """(a model of the class `kind`, what its weights lack and hold besides) from a folder or hub id, whole or not.

    `settings` are those of transformers' from_pretrained. Raises InputError where no such `role` loads.
    """
    try:
        return kind.from_pretrained(
            **source_arguments(name, trust_remote_code),
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            **settings,
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"no {role} loads from {shown_path(name)}: {first_line(error)}") from error


def fit_to_tokenizer(model, tokenizer) -> None:
    """An embedding for every token, and its pad token.

    A new token's is the mean of the others: the same on every rank, where random ones would differ, and among a
    model's logits, which need not lie about 0, no more likely than most.
    """
    if any(hasattr(p, "ds_id") for p in model.parameters()):
        # under ZeRO-3 transformers keeps every renaming it knows, used or not, and undoes them all when it saves: to
        # names such as LayerNorm.gamma; where none is kept it takes the family's own
        vars(model).pop("_weight_conversions", None)
    known = model.get_input_embeddings().num_embeddings
    needed = max(tokenizer.get_vocab().values()) + 1  # an id may be missing among them: more than len(tokenizer)
    if needed > known:
        model.resize_token_embeddings(needed, mean_resizing=False)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                _set_to_mean(layer, known)
    model.config.pad_token_id = tokenizer.pad_token_id


def _set_to_mean(layer, known: int) -> None:
    """Rows behind the first `known` ones become the mean of these, the biases too."""
    parameters = [p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None]
    with gathered(parameters, modifier_rank=0), torch.no_grad():
        for parameter in parameters:
            if len(parameter) > known:
                parameter[known:] = parameter[:known].float().mean(0).to(parameter.dtype)


def first_line(error: Exception) -> str:
    """What an error says, or its kind; more may follow behind it."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."), 400)

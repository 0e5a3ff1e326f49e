"""Loading tokenizers, configs and classifiers.

Two traps are avoided here: with a pad token that is the eos token, classifiers of transformers read the wrong token;
and a bf16 folder loads as bf16 weights, which plain AdamW at 1e-5 hardly moves.
"""

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.utils import logging as transformers_logging

from lmgym.console import VERBOSE
from lmgym.distributed.random_state import set_seed
from lmgym.distributed.weights import refuse_non_finite_weights
from lmgym.errors import InputError
from lmgym.models.classifiers import Float32Head, classifier_class, head_name, init_head
from lmgym.models.config_fields import refuse_absent_fields, refuse_kernels, refuse_other_than_text
from lmgym.models.damage import readable, refuse_damaged_tokens, refuse_failing_patterns
from lmgym.models.parameters import gathered
from lmgym.models.quantized import is_quantized, keep_exact, loading_arguments
from lmgym.models.sources import no_folder_hint, refuse_pickles, source_arguments
from lmgym.models.weight_files import HEADS
from lmgym.templates import check_template
from lmgym.text import ensure_template

if not VERBOSE:  # missing and unexpected keys are checked here
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()

SCORER_HEADS = tuple(f"{name}." for name in HEADS)  # prefixes of weights that no causal model has
PAD_TOKEN = "<|pad|>"  # of tokenizers that are made here
UNUSED = re.compile(r"(^|[^a-z])(pad|padding|unused|reserved)([^a-z]|$)")
ODD_TEXT = "\u2603\u6f22\U0001f9ff\u0378\x07"  # characters that few vocabularies hold


def load_tokenizer(name: str, trust_remote_code: bool = False, role: str = "model"):
    """A tokenizer with right padding and a chat template; all of it works on a probe. `role` as in resolve_source.

    Its pad token is one that it has: its own, an unused special token, or eos, which only rows without padding allow.
    Raises InputError for one that does not load or that fails, naming the file.
    """
    files_hint = _tokenizer_files_hint(name)
    refuse_damaged_tokens(name)
    with readable("tokenizer", name, no_folder_hint(name) + files_hint):
        tokenizer = AutoTokenizer.from_pretrained(**source_arguments(name, trust_remote_code, role))
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers' tokenizer of a folder without its files
            raise InputError(f"the tokenizer of {name} knows no word{files_hint}")
        refuse_failing_patterns(tokenizer)
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
            tokenizer.pad_token = _unused_special(tokenizer) or tokenizer.eos_token or tokenizer.sep_token
        tokenizer.padding_side = "right"
        tokenizer.truncation_side = "left"
        ensure_template(tokenizer)
    check_template(tokenizer, name)
    return tokenizer


def _unused_special(tokenizer) -> str | None:
    """A special token that can serve as padding without a new embedding: one that is called so, or unk.

    Not one with another role, nor one that a text or the chat template can produce.
    """
    roles = {getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "cls", "sep", "mask")}
    specials = [token.content for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    named = [token for token in specials if UNUSED.search(token.lower())]
    # most tokenizers encode any text as bytes, and never give unk
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id not in tokenizer(ODD_TEXT).input_ids:
        named.append(tokenizer.unk_token)
    written = str(tokenizer.chat_template or "")
    return next((token for token in named if token not in roles and token not in written), None)


def _tokenizer_files_hint(name: str) -> str:
    """A hint for a folder without a tokenizer's files; empty for others and for hub ids."""
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder) or any(folder.glob("*token*")):
        return ""
    return (
        "; found no tokenizer's files in that folder; needed: tokenizer.json and tokenizer_config.json, as "
        f"tokenizer.save_pretrained({str(folder)!r}) writes them"
    )


def load_config(name: str, trust_remote_code: bool = False):
    """A model's config alone. Raises InputError if there is none, and for a kind of model that no stage supports."""
    with readable("model config", name, no_folder_hint(name)):
        arguments = source_arguments(name, trust_remote_code)
        config = AutoConfig.from_pretrained(**arguments)
        stated, _ = PretrainedConfig.get_config_dict(**arguments)
    refuse_kernels(name, stated)
    refuse_other_than_text(name, config)
    refuse_absent_fields(name, config, stated)
    return config


def load_classifier(
    name: str,
    tokenizer,
    num_labels: int = 1,
    seed: int = 0,
    fresh_head: bool = True,
    trust_remote_code: bool = False,
    bits: int = 0,
):
    """(model, head_is_new): a sequence classifier in fp32, with a new head if the folder has none.

    With `bits` 4 or 8 its linear layers, except the head, are quantised, for training with adapters. A new head is
    normal with std 1/sqrt(hidden + 1) (Stiennon et al. 2020). Raises InputError for weights that do not load or are
    incomplete, and with `fresh_head=False` for a folder without a trained head.
    """
    model, new_keys = load_with_new_keys(name, tokenizer, num_labels, seed, fresh_head, trust_remote_code, bits)
    return model, bool(new_keys)


def load_with_new_keys(
    name: str,
    tokenizer,
    num_labels: int,
    seed: int = 0,
    fresh_head: bool = True,
    trust_remote_code: bool = False,
    bits: int = 0,
) -> tuple[Any, set[str]]:
    """`load_classifier` with the names of the weights that are new, of the head and an encoder's pooler."""
    config = load_config(name, trust_remote_code)
    refuse_pickles(name)
    set_seed(seed)  # from_pretrained initialises a new pooler
    settings: dict[str, Any] = {"ignore_mismatched_sizes": True, **loading_arguments(bits)}
    if config.num_labels != num_labels:
        settings["num_labels"] = num_labels
    model, info = read_weights(classifier_class(config), "classifier", name, trust_remote_code, **settings)
    absent = set(info["missing_keys"]) | {key[0] for key in info.get("mismatched_keys", ())}
    new_keys = _head_keys(model, absent)
    if new_keys and not fresh_head:
        raise InputError(f"{name} is not a scorer: it has no trained {head_name(model)}; train one, or name its folder")
    if lost := sorted(absent - new_keys):
        raise InputError(f"the weights in {name} are incomplete: missing {', '.join(lost[:3])} ({len(lost)} in all)")
    refuse_non_finite_weights(model, name)
    fit_to_tokenizer(model, tokenizer)
    if new_keys:
        init_head(model, seed)
    head = getattr(model, head_name(model))
    if type(head) is nn.Linear:
        head.__class__ = Float32Head  # in place: ZeRO-3 and the optimizer know this module and its weight
    return model, new_keys


def _head_keys(model, absent: set[str]) -> set[str]:
    """The absent weights that belong to a new head: those outside the trunk, and then also the trunk's pooler.

    Some encoders' heads are several layers (RoBERTa, DeBERTa).
    """
    head = {key for key in absent if not key.startswith(f"{model.base_model_prefix}.")}
    return head | {key for key in absent if ".pooler." in key} if head else set()


def read_weights(
    kind: Any, role: str, name: str, trust_remote_code: bool, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """(model of class `kind`, loading info on missing and unexpected weights) from a folder or hub id.

    `settings` are those of transformers' from_pretrained. Raises InputError if no such `role` loads.
    """
    with readable(role, name):
        arguments = source_arguments(name, trust_remote_code)
        if arguments.get("local_files_only"):  # the auto classes ask the hub for an adapter all the same
            settings["adapter_kwargs"] = {"local_files_only": True}
        model, info = kind.from_pretrained(
            **arguments,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            **settings,
        )
    if is_quantized(model):
        keep_exact(model)
    return model, info


def fit_to_tokenizer(model, tokenizer) -> None:
    """Give the model an embedding for every token, and the tokenizer's pad token unless it is eos.

    A new token's embedding is the mean of the others: equal on every rank, and no more likely than most tokens. With
    eos as pad token, classifiers of transformers would read the token before it; with none they refuse to pad.
    """
    if any(hasattr(p, "ds_id") for p in model.parameters()):
        # under ZeRO-3 transformers keeps every renaming of weights, used or not, and undoes them all when it saves (to
        # LayerNorm.gamma and the like); if none is kept it uses the family's own
        vars(model).pop("_weight_conversions", None)
    known = model.get_input_embeddings().num_embeddings
    needed = max(tokenizer.get_vocab().values()) + 1  # more than len(tokenizer) if ids are skipped
    if needed > known:
        model.resize_token_embeddings(needed, mean_resizing=False)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                _set_to_mean(layer, known)
    pad = tokenizer.pad_token_id
    model.config.pad_token_id = None if pad == tokenizer.eos_token_id else pad


def _set_to_mean(layer, known: int) -> None:
    """Set rows after the first `known` ones to the mean of those, biases too."""
    parameters = [p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None]
    with gathered(parameters, modifier_rank=0), torch.no_grad():
        for parameter in parameters:
            if len(parameter) > known:
                parameter[known:] = parameter[:known].float().mean(0).to(parameter.dtype)

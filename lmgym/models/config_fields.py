"""A model's config: sizes, whatever its family calls them, and its kind, to refuse what no stage can use unread.

transformers' own lists of classes decide the kind: a decoder is a model that it has a causal class for.
"""

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.origin import origin_of, refuse

OTHER_INPUTS = re.compile(r"(^|_)(vision|image|vq|vlm|audio|speech|protein)_")  # in field names
DECODERS = "llama, qwen3, gpt2, ..."

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
VOCABULARY = ("vocab_size", "padded_vocab_size")
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


def layer_count(config) -> int:
    """Number of layers. Raises InputError if the config does not give it, as the other functions do."""
    return _number(config, LAYERS)


def width(config) -> int:
    """Size of a token's hidden state."""
    return _number(config, WIDTH)


def head_count(config) -> int | None:
    """Number of (query) heads; None for a model without attention."""
    return _first(config, HEADS)


def vocabulary_size(config) -> int:
    """Number of embeddings."""
    return _number(config, VOCABULARY)


def context_length(config) -> int:
    """Most tokens that a model of this config reads; 2^30 if it gives no limit."""
    return _first(config, CONTEXT) or 1 << 30


def refuse_kernels(name: str, stated: Any) -> None:
    """Raises InputError if config.json takes attention, or another part, from a repository: transformers would run it.

    So it is with `attn_implementation` and its like, as text or by part, in the config and those inside it.
    """
    for field, value in stated.items() if isinstance(stated, dict) else ():
        found = [one for one in (value.values() if isinstance(value, dict) else [value]) if isinstance(one, str)]
        if field.endswith("_implementation") and (code := next((one for one in found if "/" in one), "")):
            named = f"{one_line(code, 80)} as its {field}, code of a repository"
            refuse(origin_of(Path(name) / "config.json"), named, "to load the model: the file without that field")
        refuse_kernels(name, value)


def refuse_absent_fields(name: str, config, stated: Collection[str]) -> None:
    """Raises InputError if config.json, whose fields are `stated`, does not give a model's layers and width.

    transformers would use the family's default, and load a model of another size.
    """
    for names in (LAYERS, WIDTH):
        family_name = (config.attribute_map or {}).get(names[0], names[0])
        if {*names, family_name}.isdisjoint(stated):
            raise _no_number(name, config, f"has no {family_name}")
        _number(config, names)


def refuse_other_than_text(name: str, config) -> None:
    """Raises InputError for a config of an encoder-decoder, a multimodal model, or a model that does not read text."""
    family = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{shown_path(name)} is an encoder-decoder ({family}), which no stage supports; needed: a decoder "
            f"({DECODERS}), or for a scorer also an encoder (bert, deberta, ...)"
        )
    parts = {key for key, value in vars(config).items() if key.endswith("_config") and value is not None}
    parts |= set(config.sub_configs)
    others = sorted(part for part in parts if OTHER_INPUTS.search(part))
    text = getattr(config, "text_config", None)
    if others or "text_config" in parts:
        inside = f"its text model ({text.model_type}) in a folder of its own" if text is not None else "a text model"
        raise InputError(
            f"{shown_path(name)} is a multimodal model ({family}), which no stage supports: found "
            f"{others[0] if others else 'text_config'} in its config; needed: {inside}"
        )
    if not _has_class(config, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification):
        raise InputError(
            f"{shown_path(name)} is not a model of text: transformers has neither a causal model nor an encoder of the "
            f"family {family}; needed: a decoder ({DECODERS}), or for a scorer also an encoder (bert, deberta, ...)"
        )


def refuse_encoder(name: str, config) -> None:
    """Raises InputError for a config of an encoder, which cannot continue a text."""
    # transformers has causal classes of BERT and its like, for the few that were trained as decoders
    encodes = _has_class(config, AutoModelForMaskedLM) and not getattr(config, "is_decoder", False)
    if encodes or not _has_class(config, AutoModelForCausalLM):
        raise InputError(
            f"{shown_path(name)} is not a causal model: it is an encoder ({config.model_type}), which can be a scorer "
            f"but cannot generate text; needed: a decoder ({DECODERS})"
        )


def _number(config, names: tuple[str, ...]) -> int:
    found = _first(config, names)
    if found is None:
        value = getattr(config, names[0], None)
        fault = "has no" if value is None else f"says {shown(value)} for"
        raise _no_number(config.name_or_path or f"this {config.model_type}", config, f"{fault} {names[0]}")
    return found


def _no_number(source: str, config, fault: str) -> InputError:
    return InputError(f"the config of {shown_path(source)} ({config.model_type}) {fault}; needed: a number above 0")


def _first(config, names: tuple[str, ...]) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _has_class(config, *kinds) -> bool:
    """True if transformers, or code of a hub id, has a model of this config for one of the auto classes."""
    remote = getattr(config, "auto_map", None) or {}
    return any(type(config) in kind._model_mapping or kind.__name__ in remote for kind in kinds)


@contextlib.contextmanager
def attn_implementation(config, name: str) -> Iterator[None]:
    """Within a `with`, the model with this config uses another attention implementation of transformers."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before

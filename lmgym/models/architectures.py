"""Kinds of models by their configs, so that models that no stage can use are refused before weights are read.

transformers' own lists of classes decide: a decoder is a model that it has a causal class for.
"""

import re

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from lmgym.errors import InputError, shown_path

OTHER_INPUTS = re.compile(r"(^|_)(vision|image|vq|vlm|audio|speech|protein)_")  # in field names
DECODERS = "llama, qwen3, gpt2, ..."


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


def _has_class(config, *kinds) -> bool:
    """True if transformers, or code of a hub id, has a model of this config for one of the auto classes."""
    remote = getattr(config, "auto_map", None) or {}
    return any(type(config) in kind._model_mapping or kind.__name__ in remote for kind in kinds)

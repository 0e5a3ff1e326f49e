"""Sizes in a model's config, whatever its family calls them."""

from collections.abc import Collection

from lmgym.errors import InputError, shown, shown_path

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


def refuse_absent_fields(name: str, config, stated: Collection[str]) -> None:
    """Raises InputError if config.json, whose fields are `stated`, does not give a model's layers and width.

    transformers would use the family's default, and load a model of another size.
    """
    for names in (LAYERS, WIDTH):
        family_name = (config.attribute_map or {}).get(names[0], names[0])
        if {*names, family_name}.isdisjoint(stated):
            raise _no_number(name, config, f"has no {family_name}")
        _number(config, names)


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

"""Numbers of a model's config, whatever its family calls them: one accessor a number."""

from collections.abc import Collection

from lmgym.errors import InputError, shown, shown_path

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
VOCABULARY = ("vocab_size", "padded_vocab_size")
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


def layer_count(config) -> int:
    """Layers of the trunk. Raises InputError where the config does not say, as the other accessors do."""
    return _number(config, LAYERS)


def width(config) -> int:
    """Numbers of a token's state."""
    return _number(config, WIDTH)


def head_count(config) -> int | None:
    """Heads of attention, those of queries; None of a model without attention."""
    return _first(config, HEADS)


def vocabulary_size(config) -> int:
    """Rows of the embeddings."""
    return _number(config, VOCABULARY)


def most_positions(config) -> int | None:
    """Most tokens that a model of this config reads; None where it names no limit."""
    return _first(config, CONTEXT)


def refuse_absent_fields(name: str, config, stated: Collection[str]) -> None:
    """Raises InputError where config.json, whose fields are `stated`, does not give a model's size.

    transformers would take its own default for the family, and a model of another size would be loaded, or asked for.
    """
    for names in (LAYERS, WIDTH):
        own = (config.attribute_map or {}).get(names[0], names[0])
        if {*names, own}.isdisjoint(stated):
            raise InputError(
                f"the config of {shown_path(name)} ({config.model_type}) has no {own}; needed: a number above 0"
            )
        _number(config, names)


def _number(config, names: tuple[str, ...]) -> int:
    found = _first(config, names)
    if found is None:
        value = getattr(config, names[0], None)
        says = "has no" if value is None else f"says {shown(value)} for"
        source = config.name_or_path or f"this {config.model_type}"
        raise InputError(
            f"the config of {shown_path(source)} ({config.model_type}) {says} {names[0]}; needed: a number above 0"
        )
    return found


def _first(config, names: tuple[str, ...]) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)

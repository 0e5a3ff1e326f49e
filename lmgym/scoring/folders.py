"""What a folder says of the scorer in it before torch is imported: an ensemble, or a model without a trained head."""

import json
import os
from pathlib import Path

from lmgym.errors import InputError, shown_path
from lmgym.models.sources import refuse_pickles, resolve_source
from lmgym.models.weight_files import HEADS, holds_head, weight_names

ENSEMBLE = "ensemble.json"


def is_ensemble(path: str) -> bool:
    """True for the folder of an ensemble."""
    return os.path.isfile(os.path.join(os.path.expanduser(path), ENSEMBLE))


def refuse_untrained(path: str) -> None:
    """Raises InputError for a folder that is no model, and for one whose weights are absent or lack a head.

    Loading refuses all of them too, and hub ids, adapters and what is damaged, seconds later.
    """
    source = resolve_source(path, role="scorer")
    folder = Path(source)
    if not _holds_text_model(folder):
        return
    refuse_pickles(source)
    names = weight_names(folder)
    if names is None or holds_head(names):
        return
    if not names:
        raise InputError(f"no scorer loads from {shown_path(source)}: it has no weights; needed: model.safetensors")
    raise InputError(
        f"{shown_path(source)} is not a scorer: it has no trained {' or '.join(HEADS)}; train one, or name its folder"
    )


def _holds_text_model(folder: Path) -> bool:
    """True for a folder with the config of a decoder or an encoder: others are refused for what they are."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(config, dict) or config.get("is_encoder_decoder"):
        return False
    inside = {name for name, value in config.items() if name.endswith("_config") and isinstance(value, dict)}
    return inside <= {"quantization_config"}

"""Names of the weights in a model's folder, from the headers of its safetensors files, without torch.

A file begins with the length N of its header, 8 bytes, little endian, and N bytes of JSON, an object with an entry for
each tensor (https://huggingface.co/docs/safetensors, "Format").
"""

import json
from pathlib import Path

from lmgym.errors import regular

HEADS = ("score", "classifier")
"""what classifiers of transformers call their heads; no causal model has such weights"""
VALUE_HEADS = ("v_head", "value_head")
"""the same of TRL, LLaMA-Factory and OpenRLHF"""
LENGTH_BYTES, LONGEST_HEADER = 8, 100_000_000  # the format's own


def weight_names(folder: Path) -> set[str] | None:
    """Names in all of a folder's safetensors files, sharded or not; None if one of them cannot be read.

    Weights in other formats count for nothing: a folder without safetensors gives the empty set.
    """
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        try:
            with regular(path).open("rb") as file:
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                header = json.loads(file.read(length)) if length <= LONGEST_HEADER else None
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(header, dict):
            return None
        names |= header.keys() - {"__metadata__"}
    return names


def holds_head(names: set[str]) -> bool:
    """True if weights of these names may be those of a scorer's head, whatever modules it is inside of."""
    return any(not {*HEADS, *VALUE_HEADS}.isdisjoint(name.split(".")) for name in names)

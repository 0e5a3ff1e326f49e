"""Scorers named on the command line: `--scorers name=PATH,name=PATH`. Errors of form are found before torch loads.

A PATH is a folder or hub id; `PATH#softmax[1]` says how a model's outputs become one score (lmgym/scoring/scorers.py).
A PATH such as world:0 is loaded by the function `world` of the entry points `lmgym.scorers`, which any package may add.
"""

import math
import os
import re
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from lmgym.errors import MOST_SCORE, InputError, one_line, shown, shown_path

if TYPE_CHECKING:
    import torch

    from lmgym.scoring.protocol import Scorer

Precision = Literal["auto", "bf16", "fp32"]
SCHEMES = "lmgym.scorers"
"""the group of entry points, each a function that loads the scorer of a path such as NAME:REST"""
SCHEME = re.compile("([a-z][a-z0-9_]+):.*")


def read_names(words: str, flag: str = "--scorers") -> dict[str, str]:
    """Paths or hub ids by name. Raises InputError, naming `flag`, for anything but `a=PATH,b=PATH`."""
    pairs = [part.partition("=") for part in words.split(",") if part.strip()]
    if not pairs or not all(name.strip() and path.strip() for name, _, path in pairs):
        raise InputError(f"{flag} {shown(words)}: needed name=PATH,name=PATH; a PATH may be a hub id")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{flag} names {one_line(', '.join(sorted(twice)))} twice; needed: distinct names")
    return {name.strip(): path.strip() for name, _, path in pairs}


def load_scorers(words: str, precision: Precision = "auto") -> dict[str, "Scorer"]:
    """Scorers by name, on the GPU if there is one. Raises InputError for one that does not load."""
    return {name: load_scorer(path, precision) for name, path in read_names(words).items()}


def load_scorer(path: str, precision: Precision = "auto") -> "Scorer":
    """The scorer in a folder or hub id, on the GPU if there is one, or what an entry point loads."""
    import torch

    from lmgym.scoring.scorers import REDUCTIONS, HFScorer

    if (match := SCHEME.fullmatch(path)) and (found := entry_points(group=SCHEMES, name=match[1])):
        load: Any = next(iter(found)).load()
        return load(path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder, sign, reduce = (path, "", "") if os.path.exists(path) else path.partition("#")
    if sign and reduce not in REDUCTIONS:
        raise InputError(f"{shown(reduce)} behind the scorer {shown_path(folder)}#; needed: {', '.join(REDUCTIONS)}")
    chosen: Any = reduce or None
    return HFScorer.load(folder, chosen, device=device, dtype=weights_dtype(precision, device))


def weights_dtype(precision: Precision, device: str) -> "torch.dtype":
    """The dtype of a scorer's weights: with auto bf16 on a GPU, for half of the memory, and fp32 on a CPU."""
    import torch

    in_bf16 = precision == "bf16" or (precision == "auto" and device == "cuda")
    return torch.bfloat16 if in_bf16 else torch.float32


def load_on_main_rank(words: str | None, precision: Precision = "auto") -> dict[str, "Scorer"]:
    """The scorers on rank 0, none on other ranks; not sharded, even under ZeRO-3. Collective."""
    from lmgym.distributed.deepspeed_engine import without_sharded_load
    from lmgym.distributed.ranks import raise_on_all_ranks, rank

    with without_sharded_load():
        return raise_on_all_ranks(lambda: load_scorers(words, precision) if rank() == 0 and words is not None else {})


def read_weights(weights: str | None, scorers: str) -> dict[str, float]:
    """Weights by scorer, 1 by default. Raises InputError for anything but `name=NUMBER`."""
    names = [part.partition("=")[0].strip() for part in scorers.split(",") if part.strip()]
    given: dict[str, float] = {}
    for part in filter(str.strip, (weights or "").split(",")):
        name, _, number = part.partition("=")
        try:
            given[name.strip()] = weight = float(number)
        except ValueError:
            weight = math.nan
        if not abs(weight) <= MOST_SCORE:
            needed = f"name=NUMBER, comma-separated, each at most {MOST_SCORE:,.0f} in size"
            raise InputError(f"--weights {shown(weights)}: found {shown(number)}; needed: {needed}")
    if unknown := given.keys() - set(names):
        raise InputError(f"--weights names {one_line(', '.join(sorted(unknown)))}; the scorers are {', '.join(names)}")
    return {name: given.get(name, 1.0) for name in names}

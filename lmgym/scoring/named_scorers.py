"""Scorers by the names a command gives them: `--scorers name=PATH,name=PATH`. A slip is told before torch is loaded.

`world:SEED` in the place of a path is the hidden utility of that simulated world, for users of average taste.
"""

import math
import re
from typing import TYPE_CHECKING, Literal

from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.ranks import raise_on_all_ranks
from lmgym.errors import MOST_SCORE, MOST_SEED, InputError, one_line, shown
from lmgym.scoring.scorers import Scorer
from lmgym.world.world import World

if TYPE_CHECKING:
    import torch

    from lmgym.scoring.scorers import Scorer  # imports torch and transformers
    from lmgym.world.world import World


Precision = Literal["auto", "bf16", "fp32"]
WORLD = re.compile("world:([0-9]{1,10})")


def read_names(words: str, flag: str = "--scorers") -> dict[str, str]:
    """Paths or hub ids by name. Raises InputError, by the `flag` that gave them, for anything but `a=PATH,b=PATH`."""
    pairs = [part.partition("=") for part in words.split(",") if part.strip()]
    if not pairs or not all(name.strip() and path.strip() for name, _, path in pairs):
        raise InputError(f"{flag} {shown(words)}: needed name=PATH, more of them behind commas; a PATH may be a hub id")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{flag} names {one_line(', '.join(sorted(twice)))} twice; needed: a name each")
    return {name.strip(): path.strip() for name, _, path in pairs}


def load_scorers(words: str, precision: Precision = "auto") -> dict[str, "Scorer"]:
    """Scorers out of such words, on the GPU where there is one. Raises InputError for one that does not load."""
    return {name: load_scorer(path, precision) for name, path in read_names(words).items()}


def load_scorer(path: str, precision: Precision = "auto") -> "Scorer":
    """The scorer of a folder or hub id, on the GPU where there is one, or a world's hidden utility."""
    import torch

    from lmgym.scoring.scorers import HFScorer

    if path.startswith("world:"):
        from lmgym.world.world import World

        return hidden_utility(World(read_world(path)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return HFScorer.load(path, device=device, dtype=weights_dtype(precision, device))


def weights_dtype(precision: Precision, device: str) -> "torch.dtype":
    """What a scorer's weights are loaded as: with auto bf16 on a GPU, half of the memory, and fp32 on a CPU."""
    import torch

    in_bf16 = precision == "bf16" or (precision == "auto" and device == "cuda")
    return torch.bfloat16 if in_bf16 else torch.float32


def read_world(words: str) -> int:
    """The seed of a world named `world:SEED`. Raises InputError for other words."""
    if not (found := WORLD.fullmatch(words)) or int(found[1]) > MOST_SEED:
        raise InputError(
            f"{shown(words)} names no world; needed: world:SEED with the seed of `lmgym world`, as world:0"
        )
    return int(found[1])


def hidden_utility(world: "World") -> "Scorer":
    """What replies are worth to users of average taste: to judge by, where nobody else knows it."""
    from lmgym.scoring.scorers import FunctionScorer
    from lmgym.world.app import one_line

    # the app shows and logs replies on one line
    return FunctionScorer(
        lambda conversations, replies: world.utility(conversations, [one_line(reply) for reply in replies]).tolist()
    )


def load_on_main_rank(words: str | None, precision: Precision = "auto") -> dict[str, "Scorer"]:
    """The scorers on rank 0, none elsewhere; whole also where ZeRO-3 shards what is loaded. Collective."""
    from lmgym.distributed.ranks import rank

    with without_sharded_load():
        return raise_on_all_ranks(lambda: load_scorers(words, precision) if rank() == 0 and words is not None else {})


def read_weights(weights: str | None, scorers: str) -> dict[str, float]:
    """A weight per scorer. Raises InputError for anything but `name=NUMBER`."""
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

"""Scorers by the names a command gives them: `--scorers name=PATH,name=PATH`. A slip is told before torch is loaded."""

from typing import TYPE_CHECKING

from lmgym.errors import InputError

if TYPE_CHECKING:
    from lmgym.scorers import Scorer  # imports torch and transformers


def read_names(words: str) -> dict[str, str]:
    """Paths or hub ids by name. Raises InputError for anything but `a=PATH,b=PATH`."""
    pairs = [part.partition("=") for part in words.split(",") if part.strip()]
    if not pairs or not all(name.strip() and path.strip() for name, _, path in pairs):
        raise InputError(f"--scorers {words!r}: needed name=PATH, more of them behind commas; a PATH may be a hub id")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"--scorers names {', '.join(sorted(twice))} twice; needed: a name each")
    return {name.strip(): path.strip() for name, _, path in pairs}


def load_scorers(words: str) -> dict[str, "Scorer"]:
    """Scorers out of such words, on the GPU where there is one. Raises InputError for one that does not load."""
    paths = read_names(words)
    import torch

    from lmgym.scorers import HFScorer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {name: HFScorer.load(path, device=device) for name, path in paths.items()}


def load_on_main_rank(words: str | None) -> dict[str, "Scorer"]:
    """The scorers on rank 0, none elsewhere; whole also where ZeRO-3 shards what is loaded. Collective."""
    from lmgym.engine import rank, share_objects, without_sharded_load

    found: dict[str, Scorer] = {}
    trouble = None
    if rank() == 0 and words is not None:
        try:
            with without_sharded_load():
                found = load_scorers(words)
        except InputError as error:
            trouble = error
    if refusal := share_objects(trouble)[0]:
        raise refusal
    return found

"""Scorers out of the words `a=PATH,b=PATH`. A slip in them is told before torch is loaded, which takes seconds."""

from lmgym.errors import InputError
from reward_models.evaluation.judging import Judge


def load_scorers(words: str) -> dict[str, Judge]:
    """Scorers by name, on a GPU where there is one. Raises InputError for words that do not name a path each."""
    paths = scorer_paths(words)
    import torch

    from lmgym.scorers import HFScorer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {name: HFScorer.load(path, device=device) for name, path in paths.items()}


def scorer_paths(words: str) -> dict[str, str]:
    """A folder or hub id by name. Raises InputError for anything else."""
    pairs = [part.partition("=") for part in words.split(",") if part.strip()]
    if not pairs or not all(name.strip() and path.strip() for name, _, path in pairs):
        raise InputError(f"--scorers {words!r}: needed name=PATH, more of them behind commas; a PATH may be a hub id")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"--scorers names {', '.join(sorted(twice))} twice; needed: a name each")
    return {name.strip(): path.strip() for name, _, path in pairs}

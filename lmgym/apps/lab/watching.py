"""The part of a run that alarms may read: at each look, the optimised score, and scorers that are not optimised.

The held-out prompts are halved: alarms read the first half, and the second, with the gold, judges the run. As a
program, for the steps of a plan:

    python -m lmgym.apps.lab.watching RUN other=SCORER spread=SCORER
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.lab.curves import read_looks, run_points
from lmgym.apps.lab.pool import Array
from lmgym.apps.lab.steps import WATCHED
from lmgym.messages import from_transcript

SPREAD = "spread"
"""the role of a scorer of several heads or members, whose spread is meant"""


@dataclass(frozen=True)
class Watched:
    """A run's looks; arrays [looks, prompts] are of the half that alarms read, but for the gold of both."""

    at: Array
    """[looks] updates"""
    kl: Array
    """[looks] nats; that of the last look is unknown, and so that of the one before it"""
    prompts: list[str]
    reward: Array
    words: Array
    distinct: Array
    """[looks] share of replies that are different"""
    gold: Array
    gold_fresh: Array
    """of the other half of the prompts"""
    by: Mapping[str, Array]
    """of watchers by role"""

    @classmethod
    def read(cls, path: Path) -> "Watched":
        """That of a file."""
        with np.load(path) as file:
            found: dict[str, Any] = {name: file[name] for name in file.files}
        by = {name.removeprefix("by_"): found.pop(name) for name in [*found] if name.startswith("by_")}
        return cls(**{**found, "prompts": found["prompts"].tolist()}, by=by)

    def write(self, path: Path) -> None:
        """Writes a file, in 16 bits where that is plenty."""
        arrays = {name: value for name, value in vars(self).items() if name not in ("by", "prompts")}
        arrays |= {f"by_{name}": value for name, value in self.by.items()}
        small = {name: value.astype(np.float16 if value.ndim == 2 else np.float32) for name, value in arrays.items()}
        np.savez_compressed(path, prompts=np.array(self.prompts), **small)


def watch(folder: Path, scorers: Mapping[str, str]) -> Watched:
    """Scores a run's looks by watchers."""
    from lmgym.scoring.combinations import spread
    from lmgym.scoring.named_scorers import load_scorer

    by_update = read_looks(folder)
    points, looks = run_points(folder, by_update), [*by_update.values()]
    half = len(looks[0]) // 2
    first = [rows[:half] for rows in looks]
    prompts = [row["prompt"] for row in first[0]]
    asked = [from_transcript(prompt.removesuffix("\nBot:")) for prompt in prompts] * len(first)
    replies = [row["reply"].strip() for rows in first for row in rows]
    by = {}
    for role, spec in scorers.items():
        scorer: Any = load_scorer(spec)
        found = spread(scorer.score_members(asked, replies)) if role == SPREAD else scorer.score(asked, replies)
        by[role] = np.asarray(found, dtype=np.float64).reshape(len(first), half)
    kl = [np.nan if point.kl is None else point.kl for point in points]
    if len(kl) > 1 and np.isnan(kl[-1]):
        kl[-1] = kl[-2]
    return Watched(
        np.array([point.at for point in points]),
        np.array(kl),
        prompts,
        _values(first, "reward"),
        _values(first, "words"),
        np.array([len({row["reply"] for row in rows}) / half for rows in first]),
        _values(first, "gold"),
        _values([rows[half:] for rows in looks], "gold"),
        by,
    )


def _values(looks: list[list[dict[str, Any]]], name: str) -> Array:
    return np.array([[row[name] for row in rows] for rows in looks], dtype=np.float64)


if __name__ == "__main__":
    from lmgym.runs.launch import launch

    run = Path(sys.argv[1])
    launch(lambda: watch(run, dict(word.split("=", 1) for word in sys.argv[2:])).write(run / WATCHED))

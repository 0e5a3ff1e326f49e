"""The journal of rollouts: a file with each rank's episodes of an iteration, for a resumed run not to sample again.

    journal/iteration-00000012-rank-00000.pt     of iteration 12, the first being 0

Design decisions:
- A file is written, atomically and synced, once its rank has sampled, so before the iteration trains on it.
- It holds the random state from after the rewards, which may draw random numbers: a run that reads it goes on with the
  numbers of one that was not interrupted.
- Files are read with `weights_only`: nothing in them is executed. They are of one run, on its number of ranks.
- Files from before the oldest checkpoint that is kept are deleted.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, final

import torch

from lmgym.distributed.random_state import random_state, restore_random_state
from lmgym.distributed.ranks import all_gather_objects, rank, world_size
from lmgym.environments.episodes import Episode, Step
from lmgym.environments.groups import Share
from lmgym.generation.protocol import Candidates, Choice, Completion, LikelyTokens
from lmgym.runs.checkpoint_files import NAME as CHECKPOINT
from lmgym.runs.checkpoint_files import in_a_line
from lmgym.runs.files import sync, write_bytes
from lmgym.runs.resuming import FOLDER as CHECKPOINTS
from lmgym.runs.run import Run
from lmgym.text import Conversation, Turn
from ppo.rollouts import Played

FOLDER = "journal"
FILE = re.compile(r"iteration-(\d{8})-rank-(\d{5})\.pt")
CLASSES: list[Any] = [Episode, Step, Completion, Choice, Candidates, LikelyTokens, Conversation, Turn]


@final
class Journal:
    """The rollouts of a run, by iteration."""

    def __init__(self, run: Run, run_id: str, updates_per_iteration: int) -> None:
        self.run, self.folder, self.updates = run, run.folder / FOLDER, updates_per_iteration
        self.header = {"run": run_id, "ranks": world_size()}

    def write(self, iteration: int, played: Played, keeps_random_state: bool) -> None:
        """Write this rank's episodes; a full disk ends the run as it does elsewhere."""
        content = {**self.header, "updates": played.updates, "texts": played.texts}
        content["random"] = random_state() if keeps_random_state else None
        content["episodes"] = _plain(played.episodes)
        held = io.BytesIO()
        torch.save(content, held)
        with self.run.writing(FOLDER):
            self.folder.mkdir(exist_ok=True)
            write_bytes(self._path(iteration), held.getvalue())
            sync(self.folder)
            self._remove_before(iteration)

    def read(self, iteration: int, share: Share, restores_random_state: bool) -> tuple[Played | None, str]:
        """This rank's episodes of its share of an iteration if all ranks have theirs, of the same weights; else None,
        and why. Collective.
        """
        found, why = self._load(iteration)
        ranks = all_gather_objects((found.get("updates"), why))
        if found and len(ranks) == len([one for one in ranks if one[0] == found["updates"]]):
            if restores_random_state and found["random"] is not None:
                restore_random_state(found["random"])
            return Played(found["episodes"], share, updates=found["updates"], texts=found["texts"]), ""
        return None, next(filter(None, (why for _, why in ranks)), "ranks have them of different weights")

    def _load(self, iteration: int) -> tuple[dict[str, Any], str]:
        path = self._path(iteration)
        if not path.is_file():
            return {}, f"{path.name} is missing"
        try:
            with torch.serialization.safe_globals(CLASSES):
                found = torch.load(path, map_location="cpu", weights_only=True)
            different = [name for name, value in self.header.items() if found[name] != value]
        except Exception as error:  # torch has various errors for a file that it cannot read
            return {}, f"{path.name} cannot be read ({in_a_line(error)[:100]})"
        if not different:
            return found, ""
        if "run" in different:
            return {}, f"{path.name} is of another run"
        return {}, f"{path.name} was written by {found['ranks']} rank(s), this run has {world_size()}"

    def _path(self, iteration: int) -> Path:
        return self.folder / f"iteration-{iteration:08d}-rank-{rank():05d}.pt"

    def _remove_before(self, iteration: int) -> None:
        """Remove this rank's files that no checkpoint can need; of other numbers of ranks too, which ranks share."""
        names = [path.name for path in (self.run.folder / CHECKPOINTS).glob("step-*")]
        steps = [int(match[1]) for name in names if (match := CHECKPOINT.fullmatch(name))]
        oldest = min([step // self.updates for step in steps], default=iteration)
        for path in self.folder.iterdir():
            match = FILE.fullmatch(path.name)
            if match and int(match[1]) < oldest and int(match[2]) % world_size() == rank():
                path.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """Episodes of Python's own numbers and texts, whatever subclasses of these an environment returned."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: _plain(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    return int(value) if isinstance(value, int) else float(value)

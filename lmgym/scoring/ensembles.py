"""Several scorers as one: an ensemble of any scorers, and the folder that names an ensemble's members.

An ensemble's folder holds `ensemble.json`, {"members": [PATH, ...], "combine": "mean"}: the PATHs are folders, relative
to it, or hub ids. Where all members are adapters of one base (`adapter/` in their folders), the base's weights are held
once and the adapters are switched.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lmgym.errors import InputError, one_line, regular, shown, shown_path
from lmgym.models.adapter_sets import load_adapter_set, shared_base, switch_on
from lmgym.models.sources import ADAPTER, resolve_source
from lmgym.scoring.combinations import NEEDED, combine, is_combination
from lmgym.scoring.folders import ENSEMBLE
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.scorers import HFScorer, read_settings
from lmgym.text import Conversation


class Ensemble:
    """Several scorers as one, by `mean`, `min` or `mean-2std` (lmgym/scoring/combinations.py).

    `means` are subtracted from the members' scores: a Bradley-Terry model's level is arbitrary, and would count as
    disagreement.
    """

    def __init__(self, scorers: Sequence[Scorer], combine: str = "mean", means: Sequence[float] | None = None) -> None:
        if not scorers:
            raise InputError("an ensemble of 0 scorers; needed: at least 1")
        if not is_combination(combine):
            raise InputError(f"combine={combine!r} is unknown; needed: {NEEDED}")
        self.scorers, self.combine = list(scorers), combine
        self.means = torch.zeros(len(scorers)) if means is None else torch.tensor(means)

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies]."""
        return combine(self.score_members(conversations, replies), self.combine)

    def score_members(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [members, replies]."""
        scores = torch.stack([torch.as_tensor(scorer.score(conversations, replies)) for scorer in self.scorers])
        return scores - self.means[:, None]


class AdapterMember:
    """A scorer whose adapter is one of several on a shared base."""

    def __init__(self, scorer: HFScorer, number: int) -> None:
        self.scorer, self.number = scorer, number

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies]."""
        switch_on(self.scorer.model.model, self.number)
        return self.scorer.score(conversations, replies)


def load_ensemble(
    path: str, how: str | None = None, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Ensemble:
    """The ensemble in a folder; `how` overrides its combination. Raises InputError for a file that is damaged."""
    members, combination = read_ensemble(path)
    settings = [read_settings(member) for member in members]
    means = [float(of_member["moments"][0]) if of_member.get("moments") else 0.0 for of_member in settings]
    adapters = [_adapter_of(member) for member in members]
    if len(members) > 1 and all(adapters) and (base := shared_base(adapters)) and _is_there(base):
        found = load_adapter_set(adapters, base)
        scorers: list[Scorer] = [
            AdapterMember(HFScorer.of(found, member, device=device, dtype=dtype), number)
            for number, member in enumerate(members)
        ]
    else:
        scorers = [HFScorer.load(member, device=device, dtype=dtype) for member in members]
    return Ensemble(scorers, how or combination, means)


def read_ensemble(path: str) -> tuple[list[str], str]:
    """(paths or hub ids of the members, how they are combined). Raises InputError for a file that is damaged."""
    folder = Path(os.path.abspath(os.path.expanduser(path)))
    needed = '{"members": [PATH, ...], "combine": "mean"}; write it again with lmgym ensemble'
    try:
        found = json.loads(regular(folder / ENSEMBLE).read_text(encoding="utf-8"))
        members, combination = found["members"], found.get("combine", "mean")
        is_right = bool(members) and all(isinstance(member, str) and member for member in members)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{shown_path(folder / ENSEMBLE)}: {one_line(repr(error), 100)}; needed: {needed}") from error
    if not is_right or not isinstance(combination, str) or not is_combination(combination):
        raise InputError(f"{shown_path(folder / ENSEMBLE)} holds {shown(str(found))}; needed: {needed}")
    there = {member: os.path.normpath(folder / member) for member in members}
    return [there[member] if os.path.exists(there[member]) else member for member in members], combination


def write_ensemble(members: Sequence[str], output: str, how: str = "mean") -> Path:
    """Writes an ensemble's folder. A member is a scorer's folder, a run that holds one as `model`, or a hub id.

    Raises InputError for fewer than 2 members, one that does not exist, members whose scores differ in kind, and an
    output that holds something else.
    """
    if len(members) < 2:
        raise InputError(f"an ensemble of {len(members)} scorer(s); needed: at least 2")
    if not is_combination(how):
        raise InputError(f"--combine {shown(how)}; needed: {NEEDED}")
    folder = Path(os.path.abspath(os.path.expanduser(output)))
    if folder.exists() and (not folder.is_dir() or any(path.name != ENSEMBLE for path in folder.iterdir())):
        raise InputError(f"--output {shown_path(folder)} holds something else; needed: another folder")
    found = [_member(member) for member in members]
    kinds = [(saved.get("reduce", "logit"), saved.get("loss")) for saved in map(read_settings, found)]
    if other := next((i for i, kind in enumerate(kinds) if kind != kinds[0]), 0):
        words = [f"{shown_path(found[i])} ({kinds[i][1] or kinds[i][0]})" for i in (0, other)]
        raise InputError(f"scores of {words[0]} and {words[1]} differ in kind; needed: scorers trained with one loss")
    folder.mkdir(parents=True, exist_ok=True)
    relative = [os.path.relpath(member, folder) if os.path.exists(member) else member for member in found]
    content: dict[str, Any] = {"members": relative, "combine": how}
    (folder / ENSEMBLE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder


def _member(path: str) -> str:
    """The scorer's folder or hub id. Raises InputError if nothing is there."""
    given = Path(os.path.expanduser(path))
    if (given / "model/config.json").is_file():  # a run
        return resolve_source(str(given / "model"), role="scorer")
    if given.name == "adapter" and (given.parent / "scorer.json").is_file():  # which has the adapter's settings
        return resolve_source(str(given.parent), role="scorer")
    return resolve_source(path, role="scorer")


def _adapter_of(member: str) -> str:
    """The folder of a member's adapter, which is the member or lies in it; empty if it has none."""
    for folder in (Path(member) / "adapter", Path(member)):
        if (folder / ADAPTER).is_file() and not (folder / "config.json").is_file():
            return str(folder)
    return ""


def _is_there(base: str) -> bool:
    """False for a base that is a path to nothing: members with merged weights need none."""
    return os.path.exists(base) or not (base.startswith((".", "/", "~")) or base.count("/") > 1)

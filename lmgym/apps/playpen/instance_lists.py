"""Lists of instances to evaluate on: rows of game, experiment and task_id, as playpen-data has them.

Playpen's clemscore and statscore are of the validation split of that data set, whose configs are `instances` and
`instances-static`; task_id is the game_id of a game's instance.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue.suites import EpisodeScore
from lmgym.apps.playpen.playing import Game, GameTask
from lmgym.data.records import Record, read_records
from lmgym.errors import InputError, listed, one_line, shown, shown_path

VALIDATION = "validation"
HUB_SET = "colab-potsdam/playpen-data"
"""whose validation split is played by default"""
CONFIGS = {"clem": "instances", "static": "instances-static"}
"""of playpen-data, by suite"""
COLUMNS = ("game", "experiment", "task_id")

ALL_OF_THEM = "all"
"""in place of a list"""

Key = tuple[str, str]
"""an experiment, and the game_id of an instance"""


@dataclass(frozen=True)
class InstanceList:
    """The instances of a list by game."""

    source: str
    games: Mapping[str, frozenset[Key]]
    is_default: bool = False
    """True for playpen-data without the user's word: games that -g names and it does not are played whole"""

    def choose(self, game: Game, tasks: Sequence[GameTask]) -> list[GameTask]:
        """The tasks that the list names. Raises InputError for one that it names and the game does not have."""
        name, wanted = game.spec.name, self.games.get(game.spec.name, frozenset())
        keys = [(str(task.experiment.get("name")), normal_id(task.instance.get("game_id"))) for task in tasks]
        if missing := sorted(wanted - set(keys)):
            first, number = " ".join(missing[0]), len(missing)
            place = shown_path(game.spec.get("game_path") or game.spec.source)
            raise InputError(
                f"{shown_path(self.source)} names {number} task{'s' * (number > 1)} that {name} ({place}) does not "
                f"have, such as {shown(first)}; it has {len(keys)} of {listed(dict.fromkeys(e for e, _ in keys), 5)}; "
                "needed: the list of this version"
            )
        return [task for task, key in zip(tasks, keys, strict=True) if key in wanted]

    def keep(self, scores: Sequence[EpisodeScore]) -> list[EpisodeScore]:
        """The scores of instances that the list names."""
        # a folder's name, of scores without meta, has the experiment's number before its name
        names = [{score.experiment, re.sub(r"\A\d+_", "", score.experiment)} for score in scores]
        return [
            score
            for score, experiments in zip(scores, names, strict=True)
            if any((name, normal_id(score.game_id)) in self.games.get(score.game, ()) for name in experiments)
        ]


def read_instances(source: str, suites: Collection[str]) -> InstanceList:
    """The list in a file, a folder or a data set of the hub, whose split may be named: SOURCE:train.

    Raises InputError for a list without rows, and for a row without game, experiment or task_id.
    """
    if not source.strip():
        raise InputError(f"--instances is empty; needed: a file, a folder or a hub id, or {ALL_OF_THEM} to play all")
    name, _, split = source.rpartition(":")
    if not name or Path(source).expanduser().exists():
        name, split = source, VALIDATION
    games: dict[str, set[Key]] = {}
    several = not Path(name).expanduser().is_file()
    for config in [CONFIGS[suite] for suite in suites] if several else [""]:
        for record in read_records(name, split, config):
            game, *key = _fields(record)
            games.setdefault(game, set()).add((key[0], key[1]))
    if not games:
        raise InputError(f"{shown_path(source)} names no instance; needed: rows of {', '.join(COLUMNS)}")
    return InstanceList(source, {name: frozenset(keys) for name, keys in games.items()})


def read_default(suites: Collection[str]) -> InstanceList:
    """The validation split of playpen-data. Raises InputError if the hub cannot be reached, with what to do instead."""
    try:
        return replace(read_instances(HUB_SET, suites), is_default=True)
    except InputError as error:
        why = one_line(str(error).partition("; needed:")[0], 200)
        raise InputError(
            f"clembench's games are evaluated on the validation split of {HUB_SET}, which cannot be read ({why}); "
            f"needed: the hub, --instances FILE with its rows of {', '.join(COLUMNS)}, or --instances {ALL_OF_THEM} to "
            "play all instances, whose score is not comparable"
        ) from error


def refuse_unknown_games(chosen: InstanceList, known: Collection[str], places: Sequence[str]) -> None:
    """Raises InputError for games of the list that are in none of the places."""
    if unknown := [name for name in chosen.games if name not in known]:
        raise InputError(
            f"{shown_path(chosen.source)} names games that are not here: {listed(unknown, 5)}; looked in "
            f"{listed(places, 4)}; needed: --games CHECKOUT, or a list of these games"
        )


def _fields(record: Record) -> tuple[str, str, str]:
    """Game, experiment and id of a row."""
    values = {name: record.fields.get(name) for name in COLUMNS}
    where = f"{shown_path(record.file)}, line {record.line}"
    if record.fault:
        raise InputError(f"{where}: {record.fault}; needed: rows of {', '.join(COLUMNS)}")
    missing = [name for name, value in values.items() if value in (None, "") or isinstance(value, bool | list | dict)]
    if missing:
        raise InputError(
            f"{where} has no {missing[0]}; found {listed(record.fields, 5)}; needed: {', '.join(COLUMNS)}, "
            "where task_id is the game_id of an instance"
        )
    return str(values["game"]), str(values["experiment"]), normal_id(values["task_id"])


def normal_id(value: Any) -> str:
    """An id as text: 3, 3.0 and "3" are one."""
    return re.sub(r"\.0+\Z", "", str(value).strip())

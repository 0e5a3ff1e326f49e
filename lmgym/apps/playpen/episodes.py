"""The results of players on disk: clembench's records of each episode, below a folder of the players.

    RESULTS/PAIR/player_models.json
    RESULTS/PAIR/GAME/NUMBER_EXPERIMENT/..., as lmgym/apps/games/dialogue/records.py writes it

PAIR is llama3-8b-t0.0, or NAME-tT--NAME-tT for two players. That is the layout of clemcore 2. The one of clemcore 3,
RESULTS/NAME/GAME/EXPERIMENT/instance_00000 with RESULTS/NAME/run.json, is read and scored, and nothing is played into.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue import records
from lmgym.apps.games.dialogue.records import FAILURE, INSTANCE, SCORES
from lmgym.apps.playpen.players import Model
from lmgym.errors import InputError, listed, shown, shown_path
from lmgym.runs.files import read_json, write_json

PLAYERS = "player_models.json"
RUN = "run.json"
"""of clemcore 3, in place of PLAYERS"""
LONGEST_NAME = 200
"""characters of a game's"""


def players_folder(results: Path, player: Model) -> Path:
    """The folder of a player's results in either layout; that of clemcore 2 if there is none."""
    folders = results / Model.to_identifier([player]), results / player.name
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def write_players(folder: Path, players: Sequence[Model]) -> None:
    """Writes player_models.json, without keys."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAYERS, Model.to_infos(players))


def write_experiment(folder: Path, game: str, experiment: Mapping[str, Any], players: Sequence[Model]) -> None:
    """Writes experiment.json: the parameters that an experiment's instances share, and the players."""
    names = {"game_name": game, "experiment_name": experiment["name"], "player_models": Model.to_infos(players)}
    records.write_experiment(folder, {**experiment, **names})


def read_failures(folder: Path) -> Iterator[str]:
    """The reasons of the episodes below a folder that failed."""
    for path in sorted(folder.rglob(FAILURE)):
        try:
            yield str(read_json(path)["failure"])
        except (OSError, ValueError, KeyError, TypeError):
            yield f"{FAILURE} cannot be read"


def clear_game(results: Path, pair: str, game: str, kept: Collection[str] = ()) -> None:
    """Removes one game's episodes of these players, but those in the folders `kept`, before they are played anew.

    Raises InputError if the folder holds other players' results alone: they are another model's; and for a game whose
    name, of a file that anybody may have written, would lead to another folder.
    """
    if game in ("", ".", "..") or not game.isprintable() or len(game) > LONGEST_NAME or {*"/\\"} & {*game}:
        raise InputError(f"a game or task is called {shown(game)}; needed: a name for a folder, without slashes")
    folders = list(results.iterdir()) if results.is_dir() else []
    if others := [folder.name for folder in folders if (folder / RUN).is_file()]:
        raise InputError(
            f"{shown_path(results)} holds results of clemcore 3 ({listed(others, 3)}); needed: --skip_gameplay, to "
            "score them, or a new folder (-r)"
        )
    pairs = [folder.name for folder in folders if (folder / PLAYERS).is_file()]
    if pairs and pair not in pairs:
        raise InputError(
            f"{shown_path(results)} holds the results of {', '.join(sorted(pairs)[:3])}, and not of {pair}; needed: "
            "the folder of this model and temperature, or a new one (-r)"
        )
    for folder in (results / pair / game).glob("*/episode_*"):
        if f"{folder.parent.name}/{folder.name}" not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def is_played(folder: Path, instance: Mapping[str, Any]) -> bool:
    """True if an episode of this instance is there with its scores."""
    try:
        return (folder / SCORES).is_file() and read_json(folder / INSTANCE) == json.loads(json.dumps(instance))
    except (OSError, ValueError):
        return False

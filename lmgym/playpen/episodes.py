"""Episodes on disk, in clembench's layout and JSON.

    RESULTS/PAIR/player_models.json
    RESULTS/PAIR/GAME/NUMBER_EXPERIMENT/experiment.json
    RESULTS/PAIR/GAME/NUMBER_EXPERIMENT/episode_N/{instance,interactions,requests,scores}.json

PAIR is llama3-8b-t0.0, or NAME-tT--NAME-tT for two players. `scores.json` is written last, so that an episode with it
is whole; one that failed has `failure.json` with the reason instead, and counts as not played.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.console import say
from lmgym.errors import InputError, one_line, shown_path
from lmgym.playpen.players import Player
from lmgym.playpen.registries.keys import masked
from lmgym.runs.files import read_json, write_text

SCORES, FAILURE = "scores.json", "failure.json"
ABORTED, MAIN_SCORE = "Aborted", "Main Score"


@dataclass(frozen=True)
class Records:
    """What an episode leaves: clembench's records, and the scores, or why there are none."""

    interactions: Mapping[str, Any] | None = None
    requests: Sequence[Any] = ()
    scores: Mapping[str, Any] | None = None
    failure: str = ""

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The episode's scores by name; empty if it failed."""
        return (self.scores or {}).get("episode scores", {})


@dataclass(frozen=True)
class EpisodeScore:
    """The scores of an episode that suites are made of."""

    game: str
    experiment: str
    aborted: bool
    main_score: float
    """0 to 100; nan if there is none"""


def pair_name(players: Sequence[Player]) -> str:
    """The name of the players' folder, as clemcore has it."""
    name = "--".join(player.descriptor for player in players)
    if len(players) <= 2:
        return name
    return f"group-{len(players)}p-{hashlib.sha1(name.encode()).hexdigest()[:8]}"


def write_players(folder: Path, players: Sequence[Player]) -> None:
    """Writes player_models.json."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "player_models.json", {str(i): dict(p.spec.fields) for i, p in enumerate(players)})


def write_experiment(folder: Path, game: str, experiment: Mapping[str, Any], players: Sequence[Player]) -> None:
    """Writes experiment.json: the parameters that an experiment's instances share."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {str(i): dict(p.spec.fields) for i, p in enumerate(players)}
    names = {"game_name": game, "experiment_name": experiment["name"], "player_models": models}
    _write(folder / "experiment.json", {**experiment, **names})


def write_episode(folder: Path, instance: Mapping[str, Any], records: Records) -> None:
    """Writes an episode's files, scores.json or failure.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (SCORES, FAILURE):
        (folder / name).unlink(missing_ok=True)
    _write(folder / "instance.json", instance)
    if records.interactions is not None:
        _write(folder / "interactions.json", records.interactions)
        _write(folder / "requests.json", list(records.requests))
    if records.failure:
        _write(folder / FAILURE, {"failure": records.failure})
    elif records.scores is not None:
        _write(folder / SCORES, records.scores)


def _write(path: Path, content: Any) -> None:
    """Python's JSON, whose NaN is what clembench writes for an aborted game's scores; without keys."""
    write_text(path, masked(json.dumps(content, indent=2, ensure_ascii=False)) + "\n")


def read_scores(folder: Path) -> list[EpisodeScore]:
    """The scores of all episodes below a folder; those that cannot be read are reported and left out."""
    found = []
    for path in sorted(folder.rglob(SCORES)):
        try:
            found.append(_read_score(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = one_line(f"{type(error).__name__}: {error}", 120)
            say(f"{shown_path(path)} is left out: {reason}; needed: whole scores, so play it again", error=True)
    return found


def _read_score(path: Path) -> EpisodeScore:
    content = read_json(path)
    scores = content["episode scores"]
    aborted, main = scores[ABORTED], scores.get(MAIN_SCORE, math.nan)
    if aborted not in (0, 1) or isinstance(main, str):
        raise ValueError(f"{ABORTED} is {aborted!r} and {MAIN_SCORE} {main!r}")
    # clembench's folders: GAME/EXPERIMENT/EPISODE/scores.json
    meta = content.get("meta") or {}
    game = str(meta.get("game_name") or path.parents[2].name)
    experiment = str(meta.get("experiment_name") or path.parents[1].name)
    return EpisodeScore(game, experiment, bool(aborted), math.nan if main is None else float(main))


def read_failures(folder: Path) -> Iterator[str]:
    """The reasons of the episodes below a folder that failed."""
    for path in sorted(folder.rglob(FAILURE)):
        try:
            yield str(read_json(path)["failure"])
        except (OSError, ValueError, KeyError, TypeError):
            yield f"{FAILURE} cannot be read"


def clear_game(results: Path, pair: str, game: str) -> None:
    """Removes one game's episodes of these players, before they are played anew.

    Raises InputError if the folder holds other players' results alone: they are another model's.
    """
    pairs = (
        [path.name for path in results.iterdir() if (path / "player_models.json").is_file()] if results.is_dir() else []
    )
    if pairs and pair not in pairs:
        raise InputError(
            f"{shown_path(results)} holds the results of {', '.join(sorted(pairs)[:3])}, and not of {pair}; needed: "
            "the folder of this model and temperature, or a new one (-r)"
        )
    shutil.rmtree(results / pair / game, ignore_errors=True)

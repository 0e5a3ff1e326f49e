"""Records of episodes in clembench's JSON, and their folders.

    RESULTS/PAIR/GAME/NUMBER_EXPERIMENT/experiment.json
    RESULTS/PAIR/GAME/NUMBER_EXPERIMENT/episode_N/{instance,interactions,requests,scores}.json

PAIR names the players, such as mock-t0.0--mock-t0.0. `scores.json` is written last: an episode with it is whole. One
that failed has failure.json with the reason instead.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from lmgym.apps.games.dialogue.suites import EpisodeScore, episode_score
from lmgym.console import say
from lmgym.environments.protocol import Environment
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.runs.files import read_json, write_text

GAME_MASTER = "GM"
PROGRAMMATIC = "programmatic"
"""model of the game master"""
INSTANCE, INTERACTIONS, REQUESTS = "instance.json", "interactions.json", "requests.json"
SCORES, FAILURE, EXPERIMENT = "scores.json", "failure.json", "experiment.json"

Event = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """The record of an episode: clembench's files, and the scores, or why there are none."""

    interactions: Mapping[str, Any] | None = None
    requests: Sequence[Any] = ()
    scores: Mapping[str, Any] | None = None
    failure: str = ""

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The episode's scores by name; empty if it failed."""
        return (self.scores or {}).get("episode scores", {})


class RecordedEnvironment(Environment, Protocol):
    """An environment that keeps the records of its episode.

    `task` is {"experiment": {"name", ...}, "instance", "players": models by agent}; an episode that ends without a turn
    of a player begins without an observation.
    """

    def records(self) -> Records:
        """The records of the episode, once it has ended."""
        ...


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode that was read back."""

    folder: Path
    instance: Mapping[str, Any]
    records: Records


@dataclass
class Recorder:
    """The record of an episode while it is played. Players are named Player 1, Player 2, ... in the order of roles."""

    meta: Mapping[str, Any]
    """game_name, experiment_name, game_id"""
    roles: Sequence[str]
    models: Mapping[str, str] = field(default_factory=dict)
    """names of models by role"""
    turns: list[list[Event]] = field(default_factory=lambda: [[]])
    requests: list[Mapping[str, Any]] = field(default_factory=list)

    def log(self, sender: str, receiver: str, kind: str, content: str, label: str = "") -> None:
        """Add an event to the turn; sender and receiver are roles or GAME_MASTER."""
        action = {"type": kind, "content": content} | ({"label": label} if label else {})
        event = {"from": self._name(sender), "to": self._name(receiver), "timestamp": _now(), "action": action}
        self.turns[-1].append(event)

    def log_request(self, messages: Sequence[Mapping[str, Any]], reply: str) -> None:
        """Add what a player was given and its reply."""
        given = {"timestamp": _now(), "manipulated_prompt_obj": {"messages": list(messages)}}
        self.requests.append({**given, "raw_response_obj": {"response": reply}})

    def next_turn(self) -> None:
        """Begin a turn; one without events goes on."""
        if self.turns[-1]:
            self.turns.append([])

    @property
    def interactions(self) -> dict[str, Any]:
        """interactions.json."""
        models = [self.models.get(role, "unknown") for role in self.roles]
        players = {GAME_MASTER: {"player_name": GAME_MASTER, "game_role": "Game Master", "model_name": PROGRAMMATIC}}
        for role, model in zip(self.roles, models, strict=True):
            name = self._name(role)
            players[name] = {"player_name": name, "game_role": role, "model_name": model}
        player_models = {str(i): {"model_name": model} for i, model in enumerate(models)}
        turns = [list(turn) for turn in self.turns if turn]
        return {"meta": dict(self.meta), "player_models": player_models, "players": players, "turns": turns}

    def _name(self, role: str) -> str:
        return role if role == GAME_MASTER else f"Player {list(self.roles).index(role) + 1}"


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat()


def write_experiment(folder: Path, experiment: Mapping[str, Any]) -> None:
    """Writes experiment.json: a name and the parameters that its instances share."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / EXPERIMENT, {name: value for name, value in experiment.items() if name != "game_instances"})


def write_episode(folder: Path, instance: Mapping[str, Any], records: Records) -> None:
    """Writes an episode's files, in place of earlier ones; scores.json or failure.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (SCORES, FAILURE, INTERACTIONS, REQUESTS):
        (folder / name).unlink(missing_ok=True)
    _write(folder / INSTANCE, instance)
    if records.interactions is not None:
        _write(folder / INTERACTIONS, records.interactions)
        _write(folder / REQUESTS, list(records.requests))
    if records.failure:
        _write(folder / FAILURE, {"failure": records.failure})
    elif records.scores is not None:
        write_scores(folder, records.scores)


def write_scores(folder: Path, scores: Mapping[str, Any]) -> None:
    """Writes the scores of an episode, in place of earlier ones."""
    _write(folder / SCORES, scores)


def _write(path: Path, content: Any) -> None:
    """Python's JSON, whose NaN is what clembench writes for the Main Score of an aborted game."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_episodes(results: Path) -> Iterator[RecordedEpisode]:
    """The episodes below a folder that have interactions, in order; broken ones are reported and left out.

    Raises InputError for a folder that does not exist.
    """
    if not results.is_dir():
        raise InputError(f"{shown_path(results)} is not a folder; needed: a folder of clembench's records")
    for path in sorted(results.rglob(INTERACTIONS), key=_in_order):
        try:
            yield _read_episode(path.parent)
        except (OSError, ValueError) as error:
            _say_left_out(path.parent, error)


def _read_episode(folder: Path) -> RecordedEpisode:
    """Requests and instance may be absent, as in published records."""
    found: dict[str, Any] = {}
    for name in (INTERACTIONS, REQUESTS, SCORES, FAILURE, INSTANCE):
        if (folder / name).exists():
            found[name] = read_json(folder / name)
            if not isinstance(found[name], list if name == REQUESTS else dict):
                raise ValueError(f"{name} holds a {type(found[name]).__name__}")
    scores = found.get(SCORES, {}).get("episode scores", {})
    if not isinstance(scores, dict):
        raise ValueError(f'the "episode scores" of {SCORES} are {shown(scores)}')
    failure = str(found.get(FAILURE, {}).get("failure", ""))
    records = Records(found[INTERACTIONS], found.get(REQUESTS, []), found.get(SCORES), failure)
    return RecordedEpisode(folder, found.get(INSTANCE, {}), records)


def read_scores(results: Path) -> list[EpisodeScore]:
    """The scores of all episodes below a folder; those that cannot be read are reported and left out."""
    scores = []
    for path in sorted(results.rglob(SCORES), key=_in_order):
        try:
            # clembench's folders: GAME/EXPERIMENT/EPISODE/scores.json
            names = path.parents[2].name, path.parents[1].name
            scores.append(episode_score(read_json(path), *names, _game_id(path.parent / INSTANCE)))
        except (OSError, ValueError) as error:
            _say_left_out(path.parent, error)
    return scores


def _game_id(path: Path) -> Any:
    """The id in an instance.json; empty without one, as in published records."""
    try:
        return read_json(path)["game_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _say_left_out(folder: Path, error: Exception) -> None:
    why = one_line(str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}", 120)
    say(f"{shown_path(folder)} is left out: {why}; needed: whole records, so play it again", error=True)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Numbers in names by value: episode_2 before episode_10."""
    parts = []
    for name in path.parts:
        words = name.replace("_", " ").split()
        number = next((int(word) for word in words if word.isdecimal()), -1)
        parts.append((number, name))
    return parts

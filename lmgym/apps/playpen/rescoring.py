"""`clem score`: recorded episodes scored anew, by the scorer of their game.

A game of clembench scores interactions in its own process; one of ours is played again by the recorded replies. Both
layouts of clemcore are read: what counts is the interactions.json, with the instance beside it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue.records import (
    EXPERIMENT,
    GAME_MASTER,
    RecordedEpisode,
    Records,
    read_episodes,
    write_scores,
)
from lmgym.apps.playpen.clembench.clembench_game import ClembenchGame, open_game
from lmgym.apps.playpen.playing import Game, close_games
from lmgym.apps.playpen.registries.games import ALL, GameRegistry
from lmgym.console import say
from lmgym.errors import InputError, listed, one_line, shown_path
from lmgym.runs.files import read_json


def episodes_by_game(
    results: str, registry: GameRegistry, selectors: Sequence[str], model: str | None = None
) -> dict[str, list[RecordedEpisode]]:
    """The recorded episodes below a folder of the games that the selectors match, and of players called like `model`.

    Raises InputError for a folder that does not exist, for an unknown game, and if there are none.
    """
    names = {name for selector in selectors for name in _names(registry, selector)}
    found: dict[str, list[RecordedEpisode]] = defaultdict(list)
    others: dict[str, int] = defaultdict(int)
    for episode in read_episodes(Path(results).expanduser()):
        game = game_of(episode)
        if model and not any(model in part for part in episode.folder.parts):
            continue
        if names and game not in names:
            others[game] += 1
        else:
            found[game].append(episode)
    if not found:
        there = f"; it holds episodes of {listed(others, 5)}" if others else ""
        of = f" of {listed(names, 5)}" if names else ""
        raise InputError(f"{shown_path(results)} holds no recorded episode{of}{there}; needed: another -r, -g or -m")
    return found


def _names(registry: GameRegistry, selector: str) -> list[str]:
    """The games that a selector matches: none for all. A name need not be registered: it may be in the records."""
    if selector.lstrip().startswith("{"):
        return [spec.name for spec in registry.select(selector)]
    return [] if selector == ALL else [selector]


def game_of(episode: RecordedEpisode) -> str:
    """The game of an episode, of its meta or of its folder."""
    meta = (episode.records.interactions or {}).get("meta")
    name = meta.get("game_name") if isinstance(meta, Mapping) else None
    return str(name or episode.folder.parents[1].name)


def score_results(results: str, registry: GameRegistry, selectors: Sequence[str], model: str | None = None) -> None:
    """Writes scores.json of each episode anew; an episode that cannot be scored keeps its own, and is counted."""
    for name, episodes in sorted(episodes_by_game(results, registry, selectors, model).items()):
        specs = [spec for spec in registry.specs if spec.name == name]
        try:
            if not specs:
                raise InputError(f"no game here has that name; needed: --games CHECKOUT, with {name} in it")
            game = open_game(specs[0])
            try:
                failures = [failure for episode in episodes if (failure := _score(game, episode))]
            finally:
                close_games([game])
        except InputError as error:
            say(f"{name}: {len(episodes)} episodes are left out: {error}", error=True)
            continue
        failed = f", {len(failures)} failed ({one_line(failures[0], 100)})" if failures else ""
        say(f"{name}: {len(episodes) - len(failures)} episodes scored{failed}")


def _score(game: Game, episode: RecordedEpisode) -> str:
    """Scores an episode and writes the scores; why there are none, or nothing."""
    interactions = episode.records.interactions or {}
    try:
        experiment = read_json(episode.folder.parent / EXPERIMENT)
    except (OSError, ValueError):
        experiment = {"name": (interactions.get("meta") or {}).get("experiment_name", "")}
    if not episode.instance:
        return f"{shown_path(episode.folder)} has no instance.json"
    if isinstance(game, ClembenchGame):
        over = game.bridge.score(experiment, episode.instance, interactions)
        scores, failure = over.scores, over.error or over.scorer_error
    else:
        try:
            scores, failure = _replayed(game, experiment, episode.instance, interactions).scores, ""
        except Exception as error:  # of a game that others' records do not fit
            scores, failure = None, f"{type(error).__name__}: {error}"
    if scores is None:
        return failure or "the game gave no scores"
    write_scores(episode.folder, scores)
    return ""


def _replayed(
    game: Game, experiment: Mapping[str, Any], instance: Mapping[str, Any], interactions: Mapping[str, Any]
) -> Records:
    """The records of a game in this process, played by the recorded replies of each seat."""
    players = [name for name in interactions["players"] if name != GAME_MASTER]
    events = [event for turn in interactions["turns"] for event in turn]
    said = {
        seat: iter([e["action"]["content"] for e in events if (e["from"], e["to"]) == (name, GAME_MASTER)])
        for seat, name in zip(game.seats, players, strict=True)
    }
    models = [interactions["players"][name].get("model_name", "") for name in players]
    task = {"experiment": experiment, "instance": instance, "players": dict(zip(game.seats, models, strict=True))}
    environment = game.environment()
    observations = environment.reset(task, 0)
    while observations:
        result = environment.step({seat: next(said[seat]) for seat in observations})
        observations = {} if result.terminated or result.truncated else result.observations
    return environment.records()

"""`playpen eval`: the suites of games and of questions, played and scored.

DIR is playpen-eval/TIMESTAMP. DIR/clem and DIR/static hold the episodes, DIR/MODEL.val.json the scores on one line as
Playpen writes them (null where a suite was not played), DIR/MODEL.coverage.json how much of each was played, and
DIR/report.html the table. Of a list of instances (instance_lists.py) only those are played and scored.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue.records import INSTANCE, SCORES, Records, read_scores, write_episode
from lmgym.apps.games.dialogue.suites import SuiteScore, suite_score
from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.episodes import (
    clear_game,
    is_played,
    players_folder,
    read_failures,
    write_experiment,
    write_players,
)
from lmgym.apps.playpen.instance_lists import (
    ALL_OF_THEM,
    HUB_SET,
    InstanceList,
    read_default,
    read_instances,
    refuse_unknown_games,
)
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, ServerGone, close_games, play, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry, is_of_a_suite, is_own, is_static, refuse_unnamed
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.static_rows import read_static_games
from lmgym.apps.playpen.suite_report import suite_table, write_report
from lmgym.console import say
from lmgym.errors import InputError, listed, one_line, shown_path
from lmgym.runs.files import read_json, write_json, write_text

TOP = "playpen-eval"
CLEM, STATIC, ALL = "clem", "static", "all"
SUITES = (CLEM, STATIC)
SCORE_NAMES = {CLEM: "clemscore", STATIC: "statscore"}
ALL_INSTANCES = (
    "all instances were played: the score is not comparable with Playpen's, which is of the validation split of "
    f"{HUB_SET} (--instances)"
)


@dataclass(frozen=True)
class EvalSettings:
    """The games to evaluate on, and how they are played."""

    suite: str = ALL
    game: Sequence[str] = ()
    """the only games to play; empty: all"""
    folder: str | None = None
    """of earlier results, which are completed or, for `game`, replaced; an episode that failed is played again"""
    skip_gameplay: bool = False
    static: str | None = None
    """rows of the static suite: a file or a data set of the hub"""
    instances: str | None = None
    """the instances to play, those of `static` apart: a file, a folder, a data set of the hub, or "all"; None: the
    validation split of playpen-data, if games of a checkout are played"""
    seed: int = 0
    at_once: int = 64


def evaluate(player: Model, registry: GameRegistry, settings: EvalSettings) -> Mapping[str, SuiteScore]:
    """Plays, scores, writes and prints; the scores by suite.

    Raises InputError for a game in none of the suites, a list that names what there is not, a folder of another model,
    and nothing to play or to score.
    """
    if settings.skip_gameplay and not settings.folder:
        raise InputError("--skip_gameplay without -r; needed: the folder of the results to score")
    folder = Path(settings.folder or f"{TOP}/{time.strftime('%Y-%m-%dT%H-%M-%S')}").expanduser()
    suites = SUITES if settings.suite == ALL else (settings.suite,)
    chosen = _chosen_instances(suites, registry, settings)
    expected: dict[str, dict[str, int]] = {suite: {} for suite in SUITES}
    gone: ServerGone | None = None
    to_play = [] if settings.skip_gameplay else _all_games(suites, registry, settings, chosen)
    tasks = [_tasks(game, chosen) for _, game in to_play]  # before anything is played
    for (suite, game), own in zip(to_play, tasks, strict=True):
        if gone:
            break
        try:
            expected[suite][game.spec.name] = len(own)
            play_game(game, [player], folder / suite, settings, own, goes_on=not settings.game)
        except ServerGone as error:
            gone = error
        finally:
            close_games([game])
    scores = {suite: _score(players_folder(folder / suite, player), expected[suite], chosen) for suite in SUITES}
    if gone and all(score.score is None for score in scores.values()):
        raise gone
    if all(score.score is None for score in scores.values()):
        raise InputError(_nothing(folder, player, settings))
    whole = [
        game for _, game in to_play if game.spec.get("benchmark") and not (chosen and game.spec.name in chosen.games)
    ]
    _write(folder, player, scores, chosen.source if chosen else ALL_OF_THEM, [ALL_INSTANCES] if whole else [])
    if gone:
        rest = f"the rest: the same command with -r {shown_path(folder)}"
        raise InputError(f"{one_line(str(gone), 200)}; {rest}") from gone
    return scores


def _chosen_instances(suites: Sequence[str], registry: GameRegistry, settings: EvalSettings) -> InstanceList | None:
    """The list that is played; None for all instances: by default of games that are in no suite, as ours."""
    if settings.instances is not None:
        return None if settings.instances == ALL_OF_THEM else read_instances(settings.instances, suites)
    specs = _specs_to_play(registry) if not settings.game else [s for g in settings.game for s in _found(registry, g)]
    asked = {_suite_of(spec) for spec in specs if is_of_a_suite(spec)}
    if settings.skip_gameplay or not asked & set(suites):
        return None
    for spec in specs:
        refuse_unnamed(spec)
    found = read_default([suite for suite in suites if suite in asked])
    if not settings.game:
        return found
    own = {spec.name for spec in specs if is_own(spec)}  # of a name that playpen-data has too
    return replace(found, games={name: keys for name, keys in found.games.items() if name not in own})


def _found(registry: GameRegistry, selector: str) -> list[Spec]:
    """The games of -g; none of a name of --static's rows."""
    try:
        return registry.select(selector)
    except InputError:
        return []


def _specs_to_play(registry: GameRegistry) -> list[Spec]:
    return [*registry.to_play(), *(spec for spec in registry.specs if is_static(spec))]


def _suite_of(spec: Spec) -> str:
    return STATIC if is_static(spec) else CLEM


def _nothing(folder: Path, player: Model, settings: EvalSettings) -> str:
    """Why nothing was scored."""
    found = sorted({path.name for suite in SUITES for path in (folder / suite).glob("*") if path.is_dir()})
    needed = (
        "a folder with clem/ or static/ and this model's scores.json in it (clem score writes them)"
        if settings.skip_gameplay
        else "games to play (game_registry.json or --games), --static ROWS, or -r with a folder of results"
    )
    there = f", which holds {listed(found, 3)}" if found else ""
    return f"no episode of {player.descriptor} is in {shown_path(folder)}{there}; needed: {needed}"


def _all_games(
    suites: Sequence[str], registry: GameRegistry, settings: EvalSettings, chosen: InstanceList | None
) -> list[tuple[str, Game]]:
    """The games of each suite that are to be played: those of -g, else those of the list, else all."""
    rows = read_static_games(settings.static) if settings.static and STATIC in suites else []
    if chosen and chosen.is_default and settings.game:
        specs = [spec for selector in settings.game for spec in _found(registry, selector)]
    elif chosen:
        places = ["our own games" if is_own(s) else str(Path(str(s.get("game_path"))).parent) for s in registry.specs]
        refuse_unknown_games(chosen, registry.names, list(dict.fromkeys(places)))
        specs = [spec for name in chosen.games for spec in registry.select(name)]
    else:
        specs = _specs_to_play(registry)
    if settings.game:
        names = {spec.name for spec in specs} | {game.spec.name for game in rows}
        wanted = [name for selector in settings.game for name in _named(registry, selector, names, chosen)]
        specs += [spec for name in wanted if name not in names for spec in registry.select(name)]
        specs = [spec for spec in specs if spec.name in wanted]
        rows = [game for game in rows if game.spec.name in wanted]
    own: dict[str, Spec] = {}
    for spec in specs:
        own.setdefault(spec.name, spec)
    games = [(_suite_of(spec), spec) for spec in own.values()]
    opened: list[tuple[str, Game]] = [(suite, open_game(spec)) for suite, spec in games if suite in suites]
    return [*opened, *((STATIC, game) for game in rows)]


def _named(registry: GameRegistry, selector: str, played: Collection[str], chosen: InstanceList | None) -> list[str]:
    """The games of -g: a name, or a part of a spec. Raises InputError for none, and for one that the list lacks."""
    if selector in played:
        return [selector]
    names = [spec.name for spec in registry.select(selector)]
    if chosen and not set(names) & set(played):
        raise InputError(
            f"{shown_path(chosen.source)} names no instance of {listed(names, 3)}; it names {listed(chosen.games, 8)}"
        )
    return [name for name in names if not chosen or name in played]


def _tasks(game: Game, chosen: InstanceList | None) -> list[GameTask]:
    """The tasks of a game that the list names, or all. Rows of --static are a list of their own."""
    return chosen.choose(game, tasks_of(game)) if chosen and game.spec.name in chosen.games else tasks_of(game)


def play_game(
    game: Game,
    players: Sequence[Model],
    folder: Path,
    settings: EvalSettings,
    tasks: Sequence[GameTask],
    goes_on: bool = False,
) -> None:
    """Plays tasks of a game, in place of earlier results, and writes them; with `goes_on` what they lack.

    Raises InputError for players that cannot be used, before anything is removed, and ServerGone.
    """
    pair, name = Model.to_identifier(players), game.spec.name
    others = {task.folder for task in tasks_of(game)} - {task.folder for task in tasks}
    for player in players:
        player.refuse_unusable()
    done_before = {
        i for i, task in enumerate(tasks) if goes_on and is_played(folder / pair / name / task.folder, task.instance)
    }
    clear_game(folder, pair, name, {tasks[i].folder for i in done_before} | others)
    if len(done_before) == len(tasks):
        say(f"{name}: all {len(tasks)} episodes are in {shown_path(folder / pair / name)}")
        return
    write_players(folder / pair, players)
    for below, task in {task.folder.split("/")[0]: task for task in tasks}.items():
        write_experiment(folder / pair / name / below, name, task.experiment, players)

    def done(index: int, records: Records) -> None:
        task: GameTask = tasks[index]
        write_episode(folder / pair / name / task.folder, task.instance, records)

    began = time.perf_counter()
    found = play(game, players, tasks, settings.seed, settings.at_once, done, done_before)
    reasons = Counter(one_line(records.failure, 80) for records in found if records.failure)
    aborted = sum(bool(records.outcome.get("Aborted")) for records in found)
    failed = f", {sum(reasons.values())} failed ({reasons.most_common(1)[0][0]})" if reasons else ""
    earlier = f", and {len(done_before)} earlier ones" if done_before else ""
    say(f"{name}: {len(found)} episodes in {time.perf_counter() - began:.0f} s, {aborted} aborted{failed}{earlier}")


def _score(results: Path, expected: Mapping[str, int], chosen: InstanceList | None) -> SuiteScore:
    """The score of the episodes on disk, those of the list if there is one; failed ones count as expected."""
    counts, scores = dict(expected), read_scores(results)
    games = [path.name for path in sorted(results.iterdir()) if path.is_dir()] if results.is_dir() else []
    if chosen:
        own = [score for score in scores if score.game in expected and score.game not in chosen.games]  # of --static
        scores = [*chosen.keep(scores), *own]
        return suite_score(scores, counts | {name: len(chosen.games[name]) for name in games if name in chosen.games})
    for game in games:
        episodes = {path.parent for name in (INSTANCE, SCORES) for path in (results / game).rglob(name)}
        counts.setdefault(game, len(episodes))
    return suite_score(scores, counts)


def _write(
    folder: Path, player: Model, scores: Mapping[str, SuiteScore], instances: str | None, notes: Sequence[str]
) -> None:
    """The files beside the suites, and the table on the terminal."""
    path = folder / f"{player.name}.val.json"
    line = {SCORE_NAMES[suite]: scores[suite].score for suite in (STATIC, CLEM)}
    write_text(path, json.dumps(_merged(path, line)))
    coverage = {suite: _coverage(players_folder(folder / suite, player), score) for suite, score in scores.items()}
    usage = player.usage
    content: dict[str, Any] = {"model": player.descriptor, "instances": instances, "suites": coverage}
    if usage:
        content["usage"] = {n: getattr(usage, n) for n in ("requests", "prompt_tokens", "completion_tokens")}
        prices = player.spec.get("prices")  # per million tokens of prompt and reply
        if isinstance(prices, list | tuple) and len(prices) == 2:
            content["usage"]["cost"] = usage.cost(float(prices[0]), float(prices[1]))
    write_json(folder / f"{player.name}.coverage.json", content)
    suite_table(player.descriptor, scores)
    write_report(folder / "report.html", player.descriptor, scores, notes)
    values = ", ".join(f"{name} {'not played' if value is None else f'{value:.2f}'}" for name, value in line.items())
    say(f"{values}; {path}, {folder / 'report.html'}")
    for note in notes:
        say(note)


def _merged(path: Path, line: Mapping[str, float | None]) -> dict[str, Any]:
    """The scores, with those of an existing file where this evaluation has none."""
    try:
        former = read_json(path) if path.exists() else {}
    except (OSError, ValueError):
        former = {}
    former = former if isinstance(former, dict) else {}
    return former | {name: former.get(name) if value is None else value for name, value in line.items()}


def _coverage(results: Path, score: SuiteScore) -> dict[str, Any]:
    games = {n: {"episodes": g.episodes, "expected": g.expected} for n, g in score.games.items()}
    failures = Counter(one_line(reason, 120) for reason in read_failures(results)) if results.is_dir() else Counter()
    return {"share": score.coverage, "games": games, "failures": dict(failures)}

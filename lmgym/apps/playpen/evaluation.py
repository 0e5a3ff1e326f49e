"""`playpen eval`: the suites of games and of questions, played and scored.

DIR is playpen-eval/TIMESTAMP. DIR/clem and DIR/static hold the episodes, DIR/MODEL.val.json the scores on one line as
Playpen writes them (null where a suite was not played), DIR/MODEL.coverage.json how much of each was played, and
DIR/report.html the table.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue.records import Records, read_scores, write_episode
from lmgym.apps.games.dialogue.suites import SuiteScore, suite_score
from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.episodes import (
    clear_game,
    is_played,
    pair_name,
    read_failures,
    write_experiment,
    write_players,
)
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, ServerGone, play, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.static_rows import read_static_games
from lmgym.apps.playpen.suite_report import suite_table, write_report
from lmgym.apps.playpen.trainers.base import close_games
from lmgym.console import say
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.runs.files import read_json, write_json, write_text

TOP = "playpen-eval"
CLEM, STATIC, ALL = "clem", "static", "all"
SUITES = (CLEM, STATIC)
SCORE_NAMES = {CLEM: "clemscore", STATIC: "statscore"}


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
    seed: int = 0
    at_once: int = 64


def evaluate(player: Model, registry: GameRegistry, settings: EvalSettings) -> Mapping[str, SuiteScore]:
    """Plays, scores, writes and prints; the scores by suite.

    Raises InputError for a game in none of the suites, a folder of another model, and nothing to play or to score.
    """
    if settings.skip_gameplay and not settings.folder:
        raise InputError("--skip_gameplay without -r; needed: the folder of the results to score")
    folder = Path(settings.folder or f"{TOP}/{time.strftime('%Y-%m-%dT%H-%M-%S')}").expanduser()
    suites = SUITES if settings.suite == ALL else (settings.suite,)
    games = {suite: _games_of(suite, registry, settings) for suite in suites}
    found = {game.spec.name for chosen in games.values() for game in chosen}
    if missing := [name for name in settings.game if name not in found]:
        raise InputError(f"there is no game {shown(missing[0])} in suite {settings.suite}; see playpen list games")
    expected: dict[str, dict[str, int]] = {suite: {} for suite in SUITES}
    gone: ServerGone | None = None
    for suite, game in [(suite, game) for suite, chosen in games.items() for game in chosen]:
        if settings.skip_gameplay or gone:
            break
        try:
            expected[suite][game.spec.name] = len(tasks_of(game))
            play_game(game, [player], folder / suite, settings, goes_on=not settings.game)
        except ServerGone as error:
            gone = error
        finally:
            close_games([game])
    scores = {suite: _score(folder, suite, pair_name([player]), expected[suite]) for suite in SUITES}
    if gone and all(score.score is None for score in scores.values()):
        raise gone
    if all(score.score is None for score in scores.values()):
        raise InputError(
            f"no episode of {player.descriptor} is in {shown_path(folder)}; needed: games to play "
            "(game_registry.json or --games), --static ROWS, or -r with a folder of results"
        )
    _write(folder, player, scores)
    if gone:
        rest = f"the rest: the same command with -r {shown_path(folder)}"
        raise InputError(f"{one_line(str(gone), 200)}; {rest}") from gone
    return scores


def _games_of(suite: str, registry: GameRegistry, settings: EvalSettings) -> list[Game]:
    """The games of a suite that are to be played: all, or those that -g names."""
    if suite == STATIC:
        tagged = [spec for spec in registry.select(ALL) if any("static" in str(t) for t in spec.get("benchmark") or ())]
        rows = read_static_games(settings.static) if settings.static else []
        games = [*map(open_game, tagged), *rows]
    else:
        specs = registry.to_play()
        for name in settings.game:
            if name not in {spec.name for spec in specs}:
                specs += [spec for spec in registry.specs if spec.name == name][:1]
        games = [open_game(spec) for spec in specs]
    return [game for game in games if not settings.game or game.spec.name in settings.game]


def play_game(
    game: Game,
    players: Sequence[Model],
    folder: Path,
    settings: EvalSettings,
    experiment: str | None = None,
    goes_on: bool = False,
) -> None:
    """Plays all instances of a game, in place of earlier results, and writes them; with `goes_on` what they lack.

    Raises InputError for players that cannot be used, before anything is removed, and ServerGone.
    """
    pair, name = pair_name(players), game.spec.name
    tasks = tasks_of(game, experiment)
    for player in players:
        player.refuse_unusable()
    done_before = {
        i for i, task in enumerate(tasks) if goes_on and is_played(folder / pair / name / task.folder, task.instance)
    }
    clear_game(folder, pair, name, {tasks[i].folder for i in done_before})
    if len(done_before) == len(tasks):
        say(f"{name}: all {len(tasks)} episodes are in {shown_path(folder / pair / name)}")
        return
    write_players(folder / pair, players)
    for task in tasks:
        if task.number == 0:
            write_experiment(folder / pair / name / task.folder.split("/")[0], name, task.experiment, players)

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


def _score(folder: Path, suite: str, pair: str, expected: Mapping[str, int]) -> SuiteScore:
    """The score of the episodes on disk; those that failed count as expected ones."""
    results = folder / suite / pair
    counts = dict(expected)
    for game in sorted(path.name for path in results.iterdir() if path.is_dir()) if results.is_dir() else ():
        counts.setdefault(game, len(list((results / game).rglob("instance.json"))))
    return suite_score(read_scores(results), counts)


def _write(folder: Path, player: Model, scores: Mapping[str, SuiteScore]) -> None:
    """The files beside the suites, and the table on the terminal."""
    path = folder / f"{player.name}.val.json"
    line = {SCORE_NAMES[suite]: scores[suite].score for suite in (STATIC, CLEM)}
    write_text(path, json.dumps(_merged(path, line)))
    coverage = {suite: _coverage(folder / suite / pair_name([player]), score) for suite, score in scores.items()}
    usage = player.usage
    content: dict[str, Any] = {"model": player.descriptor, "suites": coverage}
    if usage:
        content["usage"] = {n: getattr(usage, n) for n in ("requests", "prompt_tokens", "completion_tokens")}
        prices = player.spec.get("prices")  # per million tokens of prompt and reply
        if isinstance(prices, list | tuple) and len(prices) == 2:
            content["usage"]["cost"] = usage.cost(float(prices[0]), float(prices[1]))
    write_json(folder / f"{player.name}.coverage.json", content)
    suite_table(player.descriptor, scores)
    write_report(folder / "report.html", player.descriptor, scores)
    values = ", ".join(f"{name} {'not played' if value is None else f'{value:.2f}'}" for name, value in line.items())
    say(f"{values}; {path}, {folder / 'report.html'}")


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

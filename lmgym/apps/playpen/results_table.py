"""`clem eval`: the table of all players' scores below a folder, in the files of clemcore.

RESULTS/raw.csv has a row for each score of each episode, RESULTS/results.csv and results.html a row for each player
(the folder above the game): clemscore, and %Played and quality of each game. The figures are those of suites.py.
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmgym.apps.games.dialogue.records import SCORES
from lmgym.apps.games.dialogue.scoring import ABORTED, MAIN_SCORE
from lmgym.apps.games.dialogue.suites import EpisodeScore, SuiteScore, episode_score, suite_score
from lmgym.console import say
from lmgym.errors import InputError, one_line, regular, shown_path
from lmgym.runs.files import read_json, write_text

RAW, TABLE, PAGE = "raw.csv", "results.csv", "results.html"
PLAYED = "Played"
COLUMNS = ("game", "model", "experiment", "episode", "metric", "value")
SORTS = ("model_name", "clemscore")


class Episode(NamedTuple):
    """An episode by the names of its folders."""

    game: str
    model: str
    experiment: str
    episode: str


Scores = dict[Episode, dict[str, Any]]


def write_table(
    results: str, model: str | None = None, games: Sequence[str] = (), std: bool = False, sort: str = SORTS[0]
) -> None:
    """Writes the three files and prints a line a player.

    Of one model (a part of its folder's name) or of some games only, the others are kept as raw.csv has them. Raises
    InputError for a folder without scores.
    """
    folder = Path(results).expanduser()
    if not folder.is_dir():
        raise InputError(f"{shown_path(results)} is not a folder; needed: a folder of scored results (-r)")

    def is_chosen(episode: Episode) -> bool:
        return (not model or model in episode.model) and (not games or episode.game in games)

    found = {episode: scores for episode, scores in _read_scores(folder).items() if is_chosen(episode)}
    if model or games:
        found = {e: s for e, s in _read_raw(folder / RAW).items() if not is_chosen(e)} | found
    suites = _suites(found)
    if not suites:
        raise InputError(f"{shown_path(results)} holds no such {SCORES}; needed: clem score -r FOLDER, or another -r")
    write_text(folder / RAW, _raw(found))
    names = sorted(suites, key=lambda name: -(suites[name].score or 0) if sort == "clemscore" else 0)
    header, rows = _table({name: suites[name] for name in names}, found, std)
    write_text(folder / TABLE, _csv([header, *rows]))
    write_text(folder / PAGE, _html([header, *rows]))
    for name in names:
        suite = suites[name]
        say(f"{name}: clemscore {suite.score:.2f}, {suite.played:.2f}% played, quality {suite.quality:.2f}")
    say(f"{folder / TABLE}, {folder / PAGE}, {folder / RAW}")


def _read_scores(folder: Path) -> Scores:
    """The episode's scores of all files below a folder; what cannot be read is reported and left out."""
    found: Scores = {}
    for path in sorted(folder.rglob(SCORES)):
        parts = path.relative_to(folder).parts
        if len(parts) < 5:  # the players' folder may be `folder` itself
            parts = path.absolute().parts
        model, game, experiment, episode = parts[-5:-1]
        try:
            content = read_json(path)
            episode_score(content, game, experiment)
            found[Episode(game, model, experiment, episode)] = dict(content["episode scores"])
        except (OSError, ValueError) as error:
            say(f"{shown_path(path)} is left out: {one_line(str(error), 120)}", error=True)
    return found


def _read_raw(path: Path) -> Scores:
    """The scores of an earlier raw.csv, if there is one."""
    found: Scores = defaultdict(dict)
    if path.is_file():
        for row in csv.DictReader(io.StringIO(regular(path).read_text(encoding="utf-8"))):
            if missing := [name for name in COLUMNS if row.get(name) is None]:
                raise InputError(f"{shown_path(path)} has no column {missing[0]}; needed: one of clem eval, or none")
            if row["metric"] != PLAYED:
                value = float(row["value"]) if row["value"] else math.nan
                found[Episode(*(row[name] for name in COLUMNS[:4]))][row["metric"]] = value
    return dict(found)


def _suites(found: Scores) -> dict[str, SuiteScore]:
    """The score of each player."""
    by_model: dict[str, list[EpisodeScore]] = defaultdict(list)
    for episode, scores in sorted(found.items()):
        content = {"episode scores": scores}
        by_model[episode.model].append(episode_score(content, episode.game, episode.experiment))
    return {model: suite_score(scores) for model, scores in sorted(by_model.items())}


def _raw(found: Scores) -> str:
    """A row a score, with Played, the complement of Aborted, at the end."""
    rows = [[*episode, metric, _cell(value)] for episode, scores in found.items() for metric, value in scores.items()]
    rows += [[*episode, PLAYED, 1 - int(scores[ABORTED])] for episode, scores in found.items()]
    return _csv([["", *COLUMNS], *([number, *row] for number, row in enumerate(rows))])


def _table(suites: Mapping[str, SuiteScore], found: Scores, std: bool) -> tuple[list[Any], list[list[Any]]]:
    """(the header, a row a player): games in the order of their names, among which `all` is one."""
    games = {name for suite in suites.values() for name in suite.games}
    header, rows = ["", "-, clemscore"], [[name, suite.score] for name, suite in suites.items()]
    for game in sorted({*games, "all"}):
        kinds = ["Average % Played", "Average Quality Score"] if game == "all" else ["% Played", "Quality Score"]
        header += [f"{game}, {kind}" for kind in kinds]
        header += [f"{game}, Quality Score (std)"] if std and game != "all" else []
        for row, (name, suite) in zip(rows, suites.items(), strict=True):
            score = suite if game == "all" else suite.games.get(game)
            row += [_cell(score.played), _cell(score.quality)] if score else ["", ""]
            row += [_deviation(found, name, game)] if std and game != "all" else []
    return header, rows


def _deviation(found: Scores, model: str, game: str) -> Any:
    own = [
        scores.get(MAIN_SCORE) for episode, scores in found.items() if (episode.model, episode.game) == (model, game)
    ]
    values = [float(value) for value in own if value is not None and value == value]
    return float(np.round(np.std(values, ddof=1), 2)) if len(values) > 1 else ""


def _cell(value: Any) -> Any:
    """Empty where there is nothing, as pandas writes it."""
    return "" if value is None or value != value else value


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _html(rows: Sequence[Sequence[Any]]) -> str:
    head, *body = [[escape(str(cell)) for cell in row] for row in rows]
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body]
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    return f"<!doctype html><meta charset=utf-8><table border=1><tr>{heads}</tr>\n" + "\n".join(lines) + "\n</table>\n"

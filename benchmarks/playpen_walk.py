"""The figures of the walk in docs/playpen.md: each game's %Played and quality by model, and rises over the first model.

python benchmarks/playpen_walk.py --records outputs/dialogue/records base=playpen-eval/base sft=playpen-eval/sft ...

The first folder is the model before training. Intervals are of 95%: Wilson's of %Played, Newcombe's of its rise, the
normal one of quality over the episodes that were played. It stops if an instance that was evaluated is one of those
that were learnt from: of the records, or of the trainers' own.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

from shared import write_result
from tables import table, with_interval

from lmgym.apps.games.dialogue.games import GAMES
from lmgym.apps.games.dialogue.instances import TRAIN
from lmgym.apps.games.dialogue.records import read_episodes
from lmgym.apps.games.dialogue.scoring import ABORTED, MAIN_SCORE
from lmgym.apps.playpen.registries.own_games import TRAINING_INSTANCES
from lmgym.statistics import mean, share

RESULT = Path(__file__).parent / "results/playpen_walk.json"


def main() -> None:
    """Read, check and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("evaluations", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--records", type=Path, required=True, help="of the games that SFT learnt from")
    arguments = parser.parse_args()
    learnt = {*instances(arguments.records), *training_instances()}
    models: dict[str, dict] = {}
    for given in arguments.evaluations:
        name, folder = given.split("=", 1)
        if found := learnt & set(instances(Path(folder))):
            raise SystemExit(f"{folder} has {len(found)} instances that were learnt from, such as {min(found)}")
        models[name] = {game: figures(scores) for game, scores in scores_by_game(Path(folder)).items()}
    before, *after = models.values()
    for games in after:
        for game, found in games.items():
            found["rise_of_played"] = rise(before[game]["played"], found["played"])
    write_result(RESULT, {"model": "SmolLM2-135M-Instruct", "models": models}, "rows", "method", "sampler")
    for name, games in models.items():
        for game, found in games.items():
            print(f"{name:12} {game:18} {found}")


def instances(folder: Path) -> Iterator[str]:
    """The instances of the episodes below a folder, without their numbers."""
    for episode in read_episodes(folder):
        assert episode.records.interactions is not None
        yield about(episode.records.interactions["meta"]["game_name"], episode.instance)


def training_instances() -> Iterator[str]:
    """Those that the trainers play."""
    for name, game in GAMES.items():
        for experiment in game.experiments(TRAINING_INSTANCES, split=TRAIN):
            yield from (about(name, instance) for instance in experiment["game_instances"])


def about(game: str, instance: dict) -> str:
    """A key of an instance: equal for equal words, grids or facts."""
    return f"{game} {json.dumps({k: v for k, v in instance.items() if k != 'game_id'}, sort_keys=True)}"


def scores_by_game(folder: Path) -> dict[str, list[dict]]:
    """The scores of the episodes below a folder."""
    found: dict[str, list[dict]] = {}
    for episode in read_episodes(folder):
        assert episode.records.interactions is not None
        name = episode.records.interactions["meta"]["game_name"]
        found.setdefault(name, []).append(dict(episode.records.outcome))
    return found


def figures(scores: list[dict]) -> dict:
    """Of one game."""
    played = [score[MAIN_SCORE] for score in scores if not score[ABORTED]]
    result: dict = {"episodes": len(scores), "played": played_share(len(played), len(scores)), "quality": None}
    if played:
        found = mean(played, bounds=(0, 100))
        result["quality"] = [None if x is None else round(x, 1) for x in (found.value, found.low, found.high)]
    return result


def played_share(played: int, number: int) -> list[float]:
    """(share, low, high) in percent."""
    found = share([1] * played + [0] * (number - played)).times(100)
    return [round(x or 0.0, 1) for x in (found.value, found.low, found.high)]


def rise(before: list[float], after: list[float]) -> list[float]:
    """(difference, low, high) in points: Newcombe (1998), method 10."""
    difference = after[0] - before[0]
    low = difference - math.hypot(after[0] - after[1], before[2] - before[0])
    high = difference + math.hypot(after[2] - after[0], before[0] - before[1])
    return [round(x, 1) for x in (difference, low, high)]


def walk(found: dict) -> list[str]:
    """%Played by game and model: the table of docs/playpen.md."""
    models = found["models"]
    games = dict.fromkeys(game for played in models.values() for game in played)
    cells = [[played_cell(models[model].get(game)) for model in models] for game in games]
    return table(("game", *models), ([f"`{game}`", *row] for game, row in zip(games, cells, strict=True)))


def played_cell(found: dict | None) -> str:
    """'80 (58 to 92)', nothing of a game that the model did not play."""
    if found is None:
        return ""
    return with_interval(dict(zip(("value", "low", "high"), found["played"], strict=True)), 0)


if __name__ == "__main__":
    main()

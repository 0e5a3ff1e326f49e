"""The commands of `lmgym dialogue`: games of scripted players, and rows out of records."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lmgym.apps.games.dialogue.games import GAMES, DialogueGame, find_dialogue_game, play_scripted
from lmgym.apps.games.dialogue.records import write_episode, write_experiment
from lmgym.apps.games.dialogue.rows import Loss, RowFilter, write_dialogue_rows
from lmgym.apps.games.dialogue.suites import EpisodeScore, GameScore, episode_score, suite_score
from lmgym.console import say
from lmgym.errors import InputError, shown
from lmgym.shell import command

ALL = "all"


def show_games() -> None:
    """Prints a line a game."""
    for game in GAMES.values():
        say(f"{game.name}: {game.about} (roles {', '.join(game.roles)}; {', '.join(game.experiment_names)})")


def play_games(name: str, player: str, number: int, seed: int, split: str, output: str) -> None:
    """Plays, writes records below `output`, prints %Played and quality. Raises InputError for unknown names."""
    games = list(GAMES.values()) if name == ALL else [find_dialogue_game(name)]
    for game in games:
        score = _play(game, player, number, seed, split, Path(output))
        say(f"{game.name}: {score.episodes} episodes, {score.played:g}% played, quality {score.quality:g}")
    rows = command("lmgym", "dialogue", "rows", output, "--output", "rows.jsonl")
    say(f"{output}: records; `{rows}` makes rows of them")


def _play(game: DialogueGame, player: str, number: int, seed: int, split: str, output: Path) -> GameScore:
    players = dict.fromkeys(game.roles, player)
    game.script(game.roles[0], player)  # an unknown player is refused before anything is written
    folder = output / "--".join(f"scripted_{p}-t0.0" for p in players.values()) / game.name
    scores: list[EpisodeScore] = []
    for place, experiment in enumerate(game.experiments(number, seed, split)):
        below = folder / f"{place}_{experiment['name']}"
        write_experiment(below, {"game_name": game.name, **experiment})
        for i, instance in enumerate(experiment["game_instances"]):
            task = {"experiment": {"name": experiment["name"]}, "instance": instance}
            records = play_scripted(game, task, players, seed)
            write_episode(below / f"episode_{i}", instance, records)
            scores.append(episode_score(records.scores, game.name, experiment["name"]))
    return suite_score(scores).games[game.name]


def write_rows(source: str, output: str, loss: str, split: str, keep: Mapping[str, tuple[str, ...]]) -> None:
    """Writes the rows and prints how many there are of each outcome. Raises InputError for an unknown loss."""
    if loss not in ("all", "last"):
        raise InputError(f"--loss {shown(loss)}; needed: all or last")
    columns = {"game_role" if name == "role" else name: values for name, values in keep.items()}
    chosen: Loss = "last" if loss == "last" else "all"
    rows = write_dialogue_rows(source, output, RowFilter(**columns), chosen, split)
    counts = Counter(row["meta"].get("outcome", "unknown") for row in rows)
    say(f"{output}: {len(rows):,} rows ({', '.join(f'{name} {n:,}' for name, n in counts.most_common())})")

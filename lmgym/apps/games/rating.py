"""`lmgym games rate`: matches between the policies of a pool, and their ratings."""

from collections.abc import Sequence
from pathlib import Path

from lmgym.apps.games.self_play.matches import round_robin
from lmgym.apps.games.self_play.two_players import TwoPlayerGame, find_two_player_game
from lmgym.config import SEED, Range
from lmgym.console import CONSOLE, say
from lmgym.environments.players import Actor
from lmgym.errors import MOST_STEPS, InputError, shown, shown_path
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.runs.files import write_json
from lmgym.scoring.ratings import Rating, rate
from lmgym.statistics import notes

GAMES = Range(2, MOST_STEPS)
TOGETHER = 256


def rate_pool(
    folder: str,
    name: str,
    scripts: str,
    games: int,
    every: int,
    seed: int,
    temperature: float,
    output: str | None,
    policy_over: str = "tokens",
) -> None:
    """Plays every pair and prints the table. Raises InputError for an unknown game or player, and an empty pool."""
    GAMES.check("games", games)
    Range(1, MOST_STEPS).check("every", every)
    SEED.check("seed", seed)
    game = find_two_player_game(name)
    paths = pool_members(Path(folder))
    members = dict(list(paths.items())[::-1][::every][::-1])
    scripted = [one for one in dict.fromkeys(scripts.split(",")) if one]
    for one in scripted:
        game.script(one)
    names = [*scripted, *members]
    if len(names) < 2:
        raise InputError(
            f"{shown_path(folder)} has {len(members)} policy; needed: two players or more, such as --scripts random"
        )
    sampling = Sampling(game.max_new_tokens, temperature, seed=seed)
    progress = _say_progress(len(names))
    found = round_robin(game, names, lambda one: _load(one, game, members, policy_over), games, sampling, progress)
    ratings = rate(found)
    show(ratings, game, games)
    if output:
        write_json(
            Path(output), {"game": name, "games": games, "seed": seed, "ratings": [_row(one) for one in ratings]}
        )
        say(f"the ratings: {output}")


def pool_members(folder: Path) -> dict[str, Path]:
    """The policies of a pool, or of any folder of models, by name. Raises InputError if there is none."""
    found: dict[str, Path] = {}
    for inner in sorted(folder.iterdir()) if folder.is_dir() else []:
        path = next((p for p in (inner / "model", inner) if (p / "config.json").is_file()), None)
        if path and not inner.name.startswith("."):
            found[inner.name.replace("iteration_", "iteration ")] = path
    if not found:
        raise InputError(
            f"{shown_path(folder)} has no policy; needed: the PATH of `--opponents pool:PATH`, or a folder of models"
        )
    return found


def _load(name: str, game: TwoPlayerGame, members: dict[str, Path], over: str) -> Actor:
    if name not in members:
        return ScriptedGenerator(game.script(name))
    from lmgym.generation.actions import policy_over
    from lmgym.generation.local_generation import LocalGenerator, load_causal

    generator = load_causal(str(members[name]))
    assert isinstance(generator, LocalGenerator)
    generator.generation_batch_size = TOGETHER
    return policy_over(over, generator)


def _say_progress(players: int):
    pairs, number = players * (players - 1) // 2, iter(range(1, players * players))
    return lambda first, second: say(f"pair {next(number)} of {pairs}: {shown(first)} and {shown(second)}", error=True)


def _row(one: Rating) -> dict[str, float | int | str | None]:
    ends = {"elo": one.elo.value, "low": one.elo.low, "high": one.elo.high, "reason": one.elo.reason}
    return {"player": one.player, **ends, "games": one.games, "score": one.score}


def show(ratings: Sequence[Rating], game: TwoPlayerGame, games: int) -> None:
    """Prints the table, the strongest player first."""
    from rich.table import Table

    table = Table("player", title=f"{game.name}: Bradley-Terry, {games} games a pair, half on either side")
    for column in ("Elo", "95% interval", "games", "points"):
        table.add_column(column, justify="right")
    for one in ratings:
        interval = one.elo.interval("+.0f")
        table.add_row(one.player, f"{one.elo.value:+.0f}", interval, str(one.games), f"{one.score:.1%}")
    CONSOLE.print(table)
    for note in notes((one.elo for one in ratings), "game"):
        say(note)

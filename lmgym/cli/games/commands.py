"""`lmgym games`: what scripted players earn in each game, and games of a model, a person or a script."""

import click

from lmgym.cli.usage_errors import OneLineErrors
from lmgym.runs.launch import launch

GAME = click.argument("game")
EPISODES = click.option("--episodes", type=int, help="number of games  [default: 1 for a person, else 100]")
SEED = click.option("--seed", default=0, show_default=True, help="of the first game; the next one has the next")


@click.group(cls=OneLineErrors)
def games() -> None:
    """Games to train and test agents on: measured returns of scripted players, and games to watch or to play."""


@games.command(name="list")
def list_games() -> None:
    """Show the measured mean returns of a random, a heuristic and an optimal player in each game."""
    from lmgym.cli.games.tables import show_ladder

    launch(show_ladder)


@games.command()
@GAME
@click.option("--episodes", default=1000, show_default=True, help="of each player")
@SEED
def measure(game: str, episodes: int, seed: int) -> None:
    """Measure the scripted players of GAME again, beside the figures of `lmgym games list`."""
    from lmgym.cli.games.tables import show_measured

    launch(lambda: show_measured(game, episodes, seed))


@games.command()
@GAME
@click.option("--agent", default="human", show_default=True,
              help="human, random, heuristic, optimal, or a model: its folder or hub id")  # fmt: skip
@EPISODES
@SEED
@click.option("--temperature", default=1.0, show_default=True, help="of a model's moves")
@click.option("--max_new_tokens", type=int, help="of a model's move  [default: the game's]")
def play(
    game: str, agent: str, episodes: int | None, seed: int, temperature: float, max_new_tokens: int | None
) -> None:
    """Play GAME: the first one is shown move by move; then the mean return of all."""
    from lmgym.cli.games.playing import play_games

    launch(lambda: play_games(game, agent, episodes, seed, temperature, max_new_tokens))

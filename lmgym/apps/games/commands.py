"""`lmgym games`: what scripted players earn in each game, and games of a model, a person or a script."""

import click

from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

GAME = click.argument("game")
EPISODES = click.option("--episodes", type=int, help="number of games  [default: 1 for a person, else 100]")
SEED = click.option("--seed", default=0, show_default=True, help="of the first game; the next one has the next")
POLICY_OVER = click.option(
    "--policy_over",
    type=click.Choice(["tokens", "actions"]),
    default="tokens",
    show_default=True,
    help="a model writes its move, or chooses a listed one",
)


@click.group(cls=OneLineErrors)
def games() -> None:
    """Games to train and test agents on: measured returns of scripted players, and games to watch or to play."""


@games.command(name="list")
def list_games() -> None:
    """Show the measured mean returns of a random, a heuristic and an optimal player in each game."""
    from lmgym.apps.games.tables import show_ladder

    launch(show_ladder)


@games.command()
@GAME
@click.option("--episodes", default=1000, show_default=True, help="of each player")
@SEED
def measure(game: str, episodes: int, seed: int) -> None:
    """Measure the scripted players of GAME again, beside the figures of `lmgym games list`."""
    from lmgym.apps.games.tables import show_measured

    launch(lambda: show_measured(game, episodes, seed))


@games.command()
@GAME
@click.option(
    "--agent",
    default="human",
    show_default=True,
    help="human, random, heuristic, optimal, or a model: folder, hub id, vllm:URL, openai:URL#MODEL, anthropic:MODEL",
)
@EPISODES
@SEED
@click.option("--temperature", default=1.0, show_default=True, help="of a model's moves")
@click.option("--max_new_tokens", type=int, help="of a model's move  [default: the game's]")
@POLICY_OVER
def play(
    game: str,
    agent: str,
    episodes: int | None,
    seed: int,
    temperature: float,
    max_new_tokens: int | None,
    policy_over: str,
) -> None:
    """Play GAME: the first one is shown move by move; then the mean return of all."""
    from lmgym.apps.games.playing import play_games

    launch(lambda: play_games(game, agent, episodes, seed, temperature, max_new_tokens, policy_over))


@games.command()
@click.argument("pool")
@click.option("--game", required=True, help="tic_tac_toe or nim")
@click.option(
    "--scripts",
    default="random",
    show_default=True,
    help="scripted players that play too: random, heuristic, optimal, separated by commas",
)
@click.option("--games", "number", default=100, show_default=True, help="of each pair, half of them on either side")
@click.option("--every", default=1, show_default=True, help="only every so many policies, the last one among them")
@SEED
@click.option("--temperature", default=1.0, show_default=True, help="of the policies' moves; 0 is greedy")
@click.option("--output", help="JSON file for the ratings")
@POLICY_OVER
def rate(
    pool: str,
    game: str,
    scripts: str,
    number: int,
    every: int,
    seed: int,
    temperature: float,
    output: str | None,
    policy_over: str,
) -> None:
    """Play the policies of POOL against each other: Bradley-Terry ratings, in points of Elo, with intervals.

    POOL is the PATH of `--opponents pool:PATH`, or a folder of models' folders.
    """
    from lmgym.apps.games.rating import rate_pool

    launch(lambda: rate_pool(pool, game, scripts, number, every, seed, temperature, output, policy_over))


@games.command()
@click.argument("run")
@click.option("--min_return", required=True, type=float, help="smallest return of an episode whose replies are kept")
@click.option("--of", "kind", type=click.Choice(["all", "rollouts", "evaluation"]), default="all", show_default=True)
@click.option("--agent", default="", help="only this agent's replies  [default: those of all trained agents]")
@click.option("--output", default="outputs/episodes.jsonl", show_default=True, help="JSONL file")
def data(run: str, min_return: float, kind: str, agent: str, output: str) -> None:
    """Turn the good episodes of a PPO run into rows for SFT: a prompt and a completion for each turn."""
    from lmgym.apps.games.episode_rows import write_training_data

    launch(lambda: write_training_data(run, min_return, kind, agent, output))

"""`lmgym games play`: games of a person, a script or a model, the first one shown move by move."""

import os

import numpy as np

from lmgym.apps.games.ladder import LadderGame, Measured, WatchMove, find_game
from lmgym.apps.games.ladder import play_games as play_all
from lmgym.apps.games.tables import shown as figure
from lmgym.config import SEED, Range
from lmgym.console import CONSOLE, clean, say
from lmgym.environments.engine import hashed_seeds
from lmgym.environments.players import ActionScript, GeneratorPlayer, Player
from lmgym.environments.protocol import Environment, Observation
from lmgym.errors import InputError, shown
from lmgym.generation.model_specs import load_generator, read_model_spec
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.text import Conversation, to_transcript

EPISODES = Range(1, 100_000)
MOST_ACTIONS = 12
HUMAN, TOGETHER = "human", 256


def play_games(
    name: str,
    agent: str,
    episodes: int | None,
    seed: int,
    temperature: float,
    max_new_tokens: int | None,
    policy_over: str = "tokens",
) -> None:
    """Plays, shows the first game, and prints the mean return. Raises InputError for an unknown game or agent."""
    number = episodes if episodes is not None else (1 if agent == HUMAN else 100)
    EPISODES.check("episodes", number)
    SEED.check("seed", seed)
    game = find_game(name)
    sampling = Sampling(game.max_new_tokens if max_new_tokens is None else max_new_tokens, temperature, seed=seed)
    if agent == HUMAN or agent in game.players:
        returns = _scripted(game, ask if agent == HUMAN else game.players[agent], number, seed)
    elif read_model_spec(agent).served:
        returns = _of_server(game, agent, number, seed, sampling, policy_over)
    elif os.path.isdir(agent) or "/" in agent:
        returns = _of_model(game, agent, number, seed, sampling, policy_over)
    else:
        raise InputError(
            f"--agent {shown(agent)} is no folder; needed: {HUMAN}, {', '.join(game.players)}, or a model's folder or "
            "hub id, or vllm:URL, openai:URL#MODEL, anthropic:MODEL"
        )
    if not returns:
        return
    lines = ", ".join(f"{player} {value:.3f}" for player, value in game.reference_lines.items())
    found = figure(Measured.of(returns)) if len(returns) > 1 else f"{returns[0]:.3f}"
    say(f"{agent} in {game.name}: mean return {found} over {len(returns):,} game{'s' * (len(returns) > 1)} ({lines})")


def _scripted(game: LadderGame, player: ActionScript, episodes: int, seed: int) -> list[float]:
    """Returns of a script or a person, who may stop at any time."""
    returns: list[float] = []
    try:
        for i in range(episodes):
            returns.append(game.play(player, seed + i, _watch(i > 0 and player is not ask)))
            if player is ask or i == 0:
                say(f"return: {returns[-1]:.3f}")
    except EOFError:
        say(f"stopped in game {len(returns) + 1}")
    return returns


def _watch(quiet: bool) -> WatchMove | None:
    return None if quiet else lambda agent, reply, reward: say(f"{agent}: {reply.strip()}   (reward {reward:g})")


def ask(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """The move of the person at the terminal. Raises EOFError at the end of input."""
    CONSOLE.print(_text(seen.conversation))
    if 0 < len(seen.actions) <= MOST_ACTIONS:
        say(f"moves: {', '.join(seen.actions)}")
    return input("> ")


def _text(prompt: Conversation) -> str:
    return clean(to_transcript(prompt).removesuffix("\nBot:"))


def _of_server(game: LadderGame, name: str, episodes: int, seed: int, sampling: Sampling, over: str) -> list[float]:
    """Returns of a served model's games, many at a time. Raises InputError for what needs a model in this process."""
    if over != "tokens" or game.has_tools:
        needs = f"--policy_over {over}" if over != "tokens" else f"{game.name}, whose tools its template writes,"
        raise InputError(
            f"{needs} needs a model in this process, and {shown(name)} is served; needed: a folder, a hub id"
        )
    players: dict[str, Player] = {agent: GeneratorPlayer(ScriptedGenerator(s)) for agent, s in game.opponents.items()}
    players[game.agent] = GeneratorPlayer(load_generator(name), sampling)
    returns: list[float] = []
    for first in [0, *range(1, episodes, TOGETHER)]:  # the first game is shown
        seeds = range(seed + first, seed + min(first + TOGETHER, episodes) if first else seed + 1)
        environments = [game.environment() for _ in seeds]
        found = play_all(environments, seeds, players, hashed_seeds(seed), _watch(first > 0))
        returns += [of_game[game.agent] for of_game in found]
    return returns


def _of_model(game: LadderGame, name: str, episodes: int, seed: int, sampling: Sampling, over: str) -> list[float]:
    """Returns of a model's games, many at a time; those that failed are left out, with a line."""
    # here: torch takes seconds to import
    from lmgym.environments.rollout_engine import run_episodes
    from lmgym.generation.actions import policy_over
    from lmgym.generation.local_generation import LocalGenerator, load_causal

    model = load_causal(name)
    assert isinstance(model, LocalGenerator)
    policy = policy_over(over, model)
    others = {agent: ScriptedGenerator(script) for agent, script in game.opponents.items()}
    returns, errors = [], []
    for first in range(0, episodes, TOGETHER):
        seeds = list(range(seed + first, seed + min(first + TOGETHER, episodes)))
        environments = [game.environment(model.tokenizer) for _ in seeds]
        found = run_episodes(environments, [{}] * len(seeds), seeds, policy, model.tokenizer, sampling, None, others)
        if not first:
            for step in found[0].steps:
                CONSOLE.print(clean(step.prompt_text))
                reward = "failed" if step.reward is None else f"{step.reward:g}"
                say(f"{found[0].agent}: {step.completion.text.strip()}   (reward {reward})")
        returns += [total for episode in found if (total := episode.total_reward) is not None]
        errors += [episode.failure for episode in found if episode.total_reward is None]
    if errors:
        say(f"{len(errors)} of {episodes} games failed: {errors[0]}", error=True)
    return returns

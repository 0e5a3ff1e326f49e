"""Replay audit: an episode that is played alone, interleaved with others, or again gives the same result.

Every environment that the library has is here. A game that draws from a global random state, or keeps its state in a
class, fails.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
from acting import TOKENIZER

from lmgym.apps.games.alternating import SIDES
from lmgym.apps.games.dialogue.games import GAMES as DIALOGUE_GAMES
from lmgym.apps.games.ladder import GAMES, random_move
from lmgym.apps.games.prisoners import PrisonersDilemma
from lmgym.apps.games.reasoning_rows import ReasoningRow
from lmgym.apps.games.self_play.two_players import TWO_PLAYER_GAMES
from lmgym.apps.games.shop import Shop
from lmgym.apps.games.text_arena import TextArena
from lmgym.apps.games.toy_text import taxi
from lmgym.apps.world.app_conversation import AppConversation
from lmgym.apps.world.streams import draw_population
from lmgym.apps.world.world import World
from lmgym.environments.one_side import OneSide
from lmgym.environments.protocol import Environment, Observation, StepResult
from lmgym.environments.scored_chat import ScoredChat

WORLD = World(0)
POPULATION = draw_population(WORLD, np.arange(8), 0)
WORDS = (
    "i like it.",
    "hello",
    "stick",
    "hit",
    "cooperate",
    "defect",
    "[1 2 3 4]",
    "[2]",
    "answer 3",
    "look up hat",
    "CLUE: of wood",
    "guess: stove",
    "Expression: a line",
    "ANSWER: no",
    "",
)
EPISODES, STEPS = 6, 30

Trace = list[StepResult]


class OwnChance:
    """A game that draws from numpy's global random state: what the audit must find."""

    def reset(self, task, seed):
        np.random.seed(seed)
        self.steps = 0
        return {"policy": Observation("?")}

    def step(self, actions):
        self.steps += 1
        return StepResult({"policy": Observation(str(np.random.rand()))}, {"policy": 0.0}, truncated=self.steps == 5)


def environments() -> dict[str, tuple[Callable[[], Environment], dict, str]]:
    """By name: a maker, a task, and the module that is needed."""
    needs = {"gym": "gymnasium", "textarena": "textarena", "": "json"}
    found: dict[str, tuple[Callable[[], Environment], dict, str]] = {
        name: (game.make, {}, needs[game.extra]) for name, game in GAMES.items()
    }
    found |= {f"dialogue: {name}": (game.environment, {}, "json") for name, game in DIALOGUE_GAMES.items()}
    return found | {
        "scored chat": (ScoredChat, {"prompt": "hello"}, "json"),
        "app": (lambda: AppConversation(WORLD, POPULATION, 10), {"user": 3}, "json"),
        "prisoners": (PrisonersDilemma, {}, "json"),
        "our own tic-tac-toe": (TWO_PLAYER_GAMES["tic_tac_toe"].make, {}, "json"),
        "our own nim": (TWO_PLAYER_GAMES["nim"].make, {}, "json"),
        "nim against an opponent": (lambda: OneSide(TWO_PLAYER_GAMES["nim"].make(), SIDES), {"side": SIDES[1]}, "json"),
        "shop for a tokenizer without tools": (lambda: Shop(TOKENIZER), {}, "json"),
        "GuessTheNumber": (lambda: TextArena("GuessTheNumber-v0"), {}, "textarena"),
        "textarena's Blackjack, which draws all the time": (
            lambda: TextArena("Blackjack-v0", legal=lambda text: ("[Hit]", "[Stand]")), {}, "textarena"
        ),
        "LiarsDice of three players": (lambda: TextArena("LiarsDice-v0", players=3), {}, "textarena"),
        "reasoning-gym": (lambda: ReasoningRow("countdown"), {}, "reasoning_gym"),
        "reasoning-gym by row": (lambda: ReasoningRow("word_sorting"), {"row": 5}, "reasoning_gym"),
    }  # fmt: skip


class Playing:
    """An episode by a player whose moves follow from the seed."""

    def __init__(self, make: Callable[[], Environment], task: dict, seed: int) -> None:
        self.game, self.rng, self.ended = make(), np.random.default_rng(seed), False
        observations = self.game.reset(task, seed)
        self.results: Trace = [StepResult(observations)]

    def step(self) -> None:
        actions = {}
        for agent, seen in self.results[-1].observations.items():
            is_wild = not seen.actions or self.rng.random() < 0.05
            actions[agent] = WORDS[self.rng.integers(len(WORDS))] if is_wild else random_move(self.game, seen, self.rng)
        result = self.game.step(actions)
        self.results.append(result)
        self.ended = result.terminated or result.truncated or len(self.results) > STEPS


def played_alone(make: Callable[[], Environment], task: dict) -> list[Trace]:
    traces = []
    for seed in range(EPISODES):
        episode = Playing(make, task, seed)
        while not episode.ended:
            episode.step()
        traces.append(episode.results)
    return traces


def played_together(make: Callable[[], Environment], task: dict) -> list[Trace]:
    """Begun one after the other from the last on, and stepped in turn."""
    episodes = [Playing(make, task, seed) for seed in reversed(range(EPISODES))][::-1]
    while waiting := [episode for episode in episodes if not episode.ended]:
        for episode in waiting:
            episode.step()
    return [episode.results for episode in episodes]


@pytest.mark.parametrize("name", environments())
def test_an_episode_alone_and_interleaved_with_others_gives_the_same_result(name: str) -> None:
    make, task, module = environments()[name]
    if not find_spec(module):
        pytest.skip(f"needs {module}")
    alone, together = played_alone(make, task), played_together(make, task)
    assert [len(trace) for trace in alone] == [len(trace) for trace in together]
    assert alone == together


def test_the_audit_finds_a_game_that_draws_from_the_global_random_state() -> None:
    assert played_alone(OwnChance, {}) == played_alone(OwnChance, {})
    assert played_alone(OwnChance, {}) != played_together(OwnChance, {})


@pytest.mark.parametrize("seed", [0, 2**32, 2**62 - 1])
def test_a_game_takes_every_seed_that_an_iteration_draws(seed: int) -> None:
    if find_spec("gymnasium"):
        assert taxi().reset({}, seed) == taxi().reset({}, seed)
    if find_spec("textarena"):
        assert TextArena("Mastermind-v0").reset({}, seed) == TextArena("Mastermind-v0").reset({}, seed)
    assert Shop().reset({}, seed) == Shop().reset({}, seed)

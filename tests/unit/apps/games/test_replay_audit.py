"""Replay audit: an episode alone, interleaved with others, or in an environment that was used gives the same result.

Every environment that the library has is here. A game that draws from a global random state, or keeps its state in a
class, fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from acting import TOKENIZER

from lmgym.apps.games.alternating import SIDES
from lmgym.apps.games.dialogue.games import GAMES as DIALOGUE_GAMES
from lmgym.apps.games.dialogue.games import DialogueGame
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
    "",
)
EPISODES, STEPS = 6, 30

Trace = list[StepResult]
Move = Callable[[Any, str, Observation, np.random.Generator], str]


class OwnChance:
    """A game that draws from numpy's global random state: what the audit must find."""

    def reset(self, task, seed):
        np.random.seed(seed)
        self.steps = 0
        return {"policy": Observation("?")}

    def step(self, actions):
        self.steps += 1
        return StepResult({"policy": Observation(str(np.random.rand()))}, {"policy": 0.0}, truncated=self.steps == 5)


def any_move(game: Any, agent: str, seen: Observation, rng: np.random.Generator) -> str:
    """A legal move, or now and then, and where none are listed, one of WORDS."""
    is_wild = not seen.actions or rng.random() < 0.05
    return WORDS[rng.integers(len(WORDS))] if is_wild else random_move(game, seen, rng)


def move_of_scripts(dialogue: DialogueGame) -> Move:
    """A move of the script that wins, or now and then of the one that loses: episodes end in every way."""
    return lambda game, agent, seen, rng: dialogue.script(agent, "winner" if rng.random() < 0.7 else "loser")(
        seen.prompt, None
    )


@dataclass(frozen=True)
class Case:
    """An environment with a task of it, the module that it needs, and who moves."""

    make: Callable[[], Environment]
    task: Mapping[str, Any] = field(default_factory=dict)
    module: str = "json"
    move: Move = any_move


def cases() -> dict[str, Case]:
    """By name."""
    needs = {"gym": "gymnasium", "textarena": "textarena", "": "json"}
    found = {name: Case(game.make, {}, needs[game.extra]) for name, game in GAMES.items()}
    for name, dialogue in DIALOGUE_GAMES.items():
        found[f"dialogue: {name}"] = Case(dialogue.environment, move=move_of_scripts(dialogue))
    return found | {
        "scored chat": Case(ScoredChat, {"prompt": "hello"}),
        "app": Case(lambda: AppConversation(WORLD, POPULATION, 10), {"user": 3}),
        "prisoners": Case(PrisonersDilemma),
        "our own tic-tac-toe": Case(TWO_PLAYER_GAMES["tic_tac_toe"].make),
        "our own nim": Case(TWO_PLAYER_GAMES["nim"].make),
        "nim against an opponent": Case(lambda: OneSide(TWO_PLAYER_GAMES["nim"].make(), SIDES), {"side": SIDES[1]}),
        "shop for a tokenizer without tools": Case(lambda: Shop(TOKENIZER)),
        "GuessTheNumber": Case(lambda: TextArena("GuessTheNumber-v0"), {}, "textarena"),
        "textarena's Blackjack, which draws all the time": Case(
            lambda: TextArena("Blackjack-v0", legal=lambda text: ("[Hit]", "[Stand]")), {}, "textarena"
        ),
        "LiarsDice of three players": Case(lambda: TextArena("LiarsDice-v0", players=3), {}, "textarena"),
        "reasoning-gym": Case(lambda: ReasoningRow("countdown"), {}, "reasoning_gym"),
        "reasoning-gym by row": Case(lambda: ReasoningRow("word_sorting"), {"row": 5}, "reasoning_gym"),
    }


class Playing:
    """An episode by a player whose moves follow from the seed."""

    def __init__(self, case: Case, seed: int, game: Any = None) -> None:
        self.game, self.move, self.rng = game or case.make(), case.move, np.random.default_rng(seed)
        self.results: Trace = [StepResult(self.game.reset(case.task, seed))]

    @property
    def ended(self) -> bool:
        return self.results[-1].terminated or self.results[-1].truncated or len(self.results) > STEPS

    def step(self) -> None:
        seen = self.results[-1].observations
        self.results.append(
            self.game.step({agent: self.move(self.game, agent, seen[agent], self.rng) for agent in seen})
        )

    def to_its_end(self) -> Trace:
        while not self.ended:
            self.step()
        return self.results


def played_alone(case: Case) -> list[Trace]:
    return [Playing(case, seed).to_its_end() for seed in range(EPISODES)]


def played_together(case: Case) -> list[Trace]:
    """Begun one after the other from the last on, and stepped in turn."""
    episodes = [Playing(case, seed) for seed in reversed(range(EPISODES))][::-1]
    while waiting := [episode for episode in episodes if not episode.ended]:
        for episode in waiting:
            episode.step()
    return [episode.results for episode in episodes]


def case_of(name: str) -> Case:
    case = cases()[name]
    if not find_spec(case.module):
        pytest.skip(f"needs {case.module}")
    return case


@pytest.mark.parametrize("name", cases())
def test_an_episode_alone_and_interleaved_with_others_gives_the_same_result(name: str) -> None:
    alone, together = (play(case_of(name)) for play in (played_alone, played_together))
    assert [len(trace) for trace in alone] == [len(trace) for trace in together]
    assert alone == together


@pytest.mark.parametrize("name", cases())
def test_an_environment_begins_anew_at_each_reset(name: str) -> None:
    case, used = case_of(name), case_of(name).make()
    for seed in range(2):
        Playing(case, seed, used).to_its_end()
    assert Playing(case, 2, used).to_its_end() == Playing(case, 2).to_its_end()


def test_the_audit_finds_a_game_that_draws_from_the_global_random_state() -> None:
    case = Case(OwnChance)
    assert played_alone(case) == played_alone(case)
    assert played_alone(case) != played_together(case)


@pytest.mark.parametrize("seed", [0, 2**32, 2**62 - 1])
def test_a_game_takes_every_seed_that_an_iteration_draws(seed: int) -> None:
    if find_spec("gymnasium"):
        assert taxi().reset({}, seed) == taxi().reset({}, seed)
    if find_spec("textarena"):
        assert TextArena("Mastermind-v0").reset({}, seed) == TextArena("Mastermind-v0").reset({}, seed)
    for make in (Shop, *(game.environment for game in DIALOGUE_GAMES.values())):
        assert make().reset({}, seed) == make().reset({}, seed)

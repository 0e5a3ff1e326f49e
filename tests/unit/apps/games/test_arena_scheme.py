"""`textarena:ID`: players, who is the policy, what is refused; with a stand-in where textarena is not installed."""

import sys
from types import SimpleNamespace

import pytest

from lmgym.apps.games.arena_scheme import SCHEME
from lmgym.apps.games.text_arena import fewest_players
from lmgym.environments.engine import play
from lmgym.environments.named import load_environment
from lmgym.environments.players import GeneratorPlayer
from lmgym.errors import InputError
from lmgym.generation.protocol import ScriptedGenerator


class Pile:
    """Two or three players take from a pile, as textarena's games do; who takes the last one wins."""

    def reset(self, num_players: int, seed: int) -> None:
        if num_players not in (2, 3):
            raise ValueError("2 or 3 players")
        self.players, self.turn, self.left = num_players, 0, 4

    def get_observation(self) -> tuple[int, str]:
        return self.turn % self.players, f"[GAME] Current Pile:\n  pile 0: {self.left}"

    def step(self, reply: str) -> tuple[bool, dict]:
        self.left -= int(reply.strip("[]").split()[1])
        self.turn += 1
        return self.left == 0, {}

    def close(self) -> tuple[dict[int, float], dict]:
        winner = (self.turn - 1) % self.players
        return {i: 1.0 if i == winner else -1.0 for i in range(self.players)}, {}


class Closed:
    def __init__(self) -> None:
        raise ValueError("no key for a server")


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch):
    games = {"Nim-v0": Pile, "Nim-v0-raw": Pile, "Other-v0": Pile, "Closed-v0": Closed}
    registration = SimpleNamespace(ENV_REGISTRY=games)
    stub = SimpleNamespace(envs=SimpleNamespace(registration=registration), make=lambda name: games[name]())
    monkeypatch.setitem(sys.modules, "textarena", stub)
    fewest_players.cache_clear()
    yield
    fewest_players.cache_clear()


def test_all_players_are_the_policy_unless_one_is(arena) -> None:
    named = load_environment("textarena:Nim-v0")
    assert (named.trained_agents, dict(named.players)) == (2, {})
    assert load_environment("textarena:Other-v0?players=3").trained_agents == 3
    named = load_environment("textarena:Nim-v0?policy=player_1")
    assert (named.trained_agents, list(named.players)) == (1, ["player_0"])
    players = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
    players["player_1"] = GeneratorPlayer(ScriptedGenerator(["[0 1]"]))
    played = play([named.environment() for _ in range(30)], [{}] * 30, range(30), players)
    assert not any(episode.error for episode in played)
    assert len({episode.actions[0]["player_0"] for episode in played}) == 4


def test_moves_are_limited(arena) -> None:
    environment = load_environment("textarena:Other-v0?max_steps=2").environment()
    environment.reset({}, 0)
    assert [environment.step({f"player_{i}": "[0 1]"}).truncated for i in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("Nim-v1", "textarena has no 'Nim-v1'; did you mean Nim-v0?"),
        ("Nim-v0?players=5", "2 or 3 players"),
        ("Nim-v0?players=0", "players=0; needed: a number from 1 on"),
        ("Nim-v0?players=two", "players='two'; needed: a number"),
        ("Nim-v0?player=2", "has no setting player; needed: players, policy, max_steps"),
        ("Nim-v0?policy=player_2", "has no player 'player_2'; did you mean player_"),
        ("Nim-v0?max_steps=0", "max_steps=0; needed: 1 to"),
        ("Other-v0?policy=player_0", "legal moves of this game are not known, so player_1 cannot be played at random"),
        ("Closed-v0", "begins with no number of players up to 15 (no key for a server); needed: players=N"),
    ],
)
def test_what_a_game_does_not_take_is_refused_before_anything_is_loaded(arena, words: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        load_environment(f"textarena:{words}")
    assert message in str(refused.value)


def test_games_that_can_be_made_are_listed_without_their_variants(arena) -> None:
    assert list(SCHEME.names()) == ["Nim-v0", "Other-v0"]
    assert SCHEME.missing() == ""


def test_without_textarena_nothing_is_listed_and_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    assert list(SCHEME.names()) == []
    assert SCHEME.missing() == "pip install 'lmgym[textarena]'"
    with pytest.raises(InputError, match=r"needed: pip install 'lmgym\[textarena\]'"):
        load_environment("textarena:Nim-v0")


def test_textarenas_own_games_play() -> None:
    pytest.importorskip("textarena")
    named = load_environment("textarena:LiarsDice-v0?players=3")
    assert named.trained_agents == 3
    shown = named.environment().reset({}, 0)
    assert list(shown) == ["player_0"]
    assert "Liar" in shown["player_0"].prompt.turns[0].text

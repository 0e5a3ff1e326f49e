"""Evaluations against real servers that are down, die, refuse a request, or send the key back."""

import json
from pathlib import Path

import pytest
from toy_games import SayGame, without_keys

from lmgym.apps.playpen import evaluation
from lmgym.apps.playpen.evaluation import EvalSettings, evaluate
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError
from lmgym.generation import model_server

KEY = "sk-never-to-be-seen-0123"


def player(url: str) -> Model:
    fields = {"model_name": "served", "backend": "openai_compatible", "model_config": {"base_url": url}}
    return Model(Spec(fields))


@pytest.fixture
def games(monkeypatch, tmp_path) -> GameRegistry:
    """A registry of a game of 20 episodes, each over after the first reply."""
    without_keys(monkeypatch, tmp_path)
    monkeypatch.setattr(model_server, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(model_server, "LONGEST_WAIT", 0.02)
    game = SayGame(20)
    monkeypatch.setattr(evaluation, "open_game", lambda spec: game)
    return GameRegistry([game.spec], is_chosen=True)


def played() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path("out").rglob("scores.json"))}


def test_a_server_that_is_down_is_refused_before_anything_is_played_or_removed(games, serve) -> None:
    evaluate(player(serve("good").url), games, EvalSettings(folder="out"))
    before = played()
    assert len(before) == 20
    with pytest.raises(
        InputError, match=r"^http://127.0.0.1:1/v1 cannot be reached \(Connection refused\); needed: a ser"
    ):
        evaluate(player("http://127.0.0.1:1/v1"), games, EvalSettings(folder="out", game=("say",)))
    assert played() == before


def test_a_server_that_dies_leaves_what_was_played_and_the_same_command_plays_the_rest(games, serve, capsys) -> None:
    with pytest.raises(InputError) as caught:
        evaluate(player(serve("dies_later").url), games, EvalSettings(folder="out", at_once=1))
    said = str(caught.value)
    assert said.startswith("2 of 20 episodes of say were played: ServerError: http://127.0.0.1:")
    assert said.endswith("; the rest: the same command with -r out")
    assert len(said) < 300
    kept = played()
    assert len(kept) == 2
    failures = [json.loads(path.read_text())["failure"] for path in Path("out").rglob("failure.json")]
    assert len(failures) == 8, "so many in a row, and the other 10 were not begun"
    assert all("gave no usable answer in 4 tries" in failure for failure in failures)
    assert json.loads(Path("out/served.coverage.json").read_text())["suites"]["clem"]["share"] == 2 / 20
    server = serve("good")
    evaluate(player(server.url), games, EvalSettings(folder="out"))
    assert len(server.requests) == 18
    assert len(played()) == 20
    assert played().items() >= kept.items()
    assert not list(Path("out").rglob("failure.json"))
    assert "18 episodes in" in capsys.readouterr().out


def test_a_refused_request_fails_its_own_episode(games, serve, capsys) -> None:
    evaluate(player(serve("refuses_one").url), games, EvalSettings(folder="out"))
    failures = [json.loads(path.read_text())["failure"] for path in Path("out").rglob("failure.json")]
    assert 0 < len(failures) < 12
    assert len(played()) + len(failures) == 20
    assert all("this prompt is not allowed" in failure for failure in failures)
    assert f"{len(failures)} failed (Refusal: http://127.0.0.1" in capsys.readouterr().out


def test_a_server_that_answers_nothing_at_all_is_one_line(games, serve) -> None:
    with pytest.raises(InputError, match=r"0 of 20 episodes of say were played: .*in 4 tries") as caught:
        evaluate(player(serve("echoes_key_and_breaks").url), games, EvalSettings(folder="out"))
    assert "\n" not in str(caught.value)


def test_a_key_that_a_server_sends_back_and_a_password_in_an_address_reach_no_file(
    games, serve, monkeypatch, capfd
) -> None:
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    evaluate(player(serve("echoes_key").url), games, EvalSettings(folder="out"))
    evaluate(Model(Spec({"model_name": "mock", "backend": "_player_programmed", "model_config": {
        "base_url": "https://me:hidden-word@example.org/v1?api_key=hidden-query"}, "api_key": "hidden-field",
    })), games, EvalSettings(folder="mine"))  # fmt: skip
    written = "".join(path.read_text() for path in Path().rglob("*") if path.is_file())
    assert "you sent Bearer ***" in written
    assert "https://***@example.org/v1?api_key=***" in written
    said = written + "".join(capfd.readouterr())
    for secret in (KEY, "hidden-word", "hidden-query", "hidden-field"):
        assert secret not in said

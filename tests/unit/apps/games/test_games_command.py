"""`lmgym games`: the ladder, its measurement, and games of scripts, people and models."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.games import playing, tables
from lmgym.apps.games.ladder import GAMES
from lmgym.cli.main import main
from lmgym.errors import InputError


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """Sets what a person types, line by line, and then the end of input."""

    def given(*lines: str) -> None:
        waiting: Iterator[str] = iter(lines)

        def read(prompt: str) -> str:
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)

    return given


def test_the_list_has_every_game_with_its_recorded_returns(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_ladder()
    printed = capsys.readouterr().out
    for game in GAMES.values():
        assert game.name in printed
        assert game.measured.keys() == {"random", "heuristic", "optimal"}
    assert tables.shown(GAMES["blackjack"].measured["random"]) in printed
    assert re.search(r"-0\.39\d ± 0\.00\d", printed)


def test_every_game_has_its_reference_lines_in_order() -> None:
    for game in GAMES.values():
        lines = game.reference_lines
        assert lines["random"] < lines["optimal"]
        assert lines["heuristic"] <= lines["optimal"]


def test_a_measurement_is_shown_beside_the_recorded_figures(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_measured("shop", 20, 0)
    printed = " ".join(capsys.readouterr().out.split())
    assert "optimal 1.000 ± 0.000 1.000 ± 0.000 Look both prices up, calculate, answer" in printed


def test_a_script_plays_the_first_game_move_by_move(capsys: pytest.CaptureFixture[str]) -> None:
    playing.play_games("shop", "optimal", 3, 0, 1.0, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("policy: look up ")
    assert sum(line.startswith("policy: ") for line in lines) == 4
    assert lines[-1].startswith("optimal in shop: mean return 1.000 ± 0.000 over 3 games (random 0.0")


def test_a_person_plays_until_the_end_of_input(typed, capsys: pytest.CaptureFixture[str]) -> None:
    typed("look up hat", "answer 1")
    playing.play_games("shop", "human", 2, 0, 1.0, None)
    printed = capsys.readouterr().out
    assert "User: What do" in printed
    assert "return: 0.000" in printed
    assert "stopped in game 2" in printed
    assert "human in shop: mean return 0.000 over 1 game (" in printed
    typed()
    playing.play_games("shop", "human", None, 0, 1.0, None)
    assert capsys.readouterr().out.splitlines()[-1] == "stopped in game 1"


def test_a_person_sees_the_moves(typed, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gymnasium")
    typed("stick")
    playing.play_games("blackjack", "human", None, 0, 1.0, None)
    assert "moves: stick, hit" in capsys.readouterr().out


def test_a_model_plays(small_models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    playing.play_games("shop", str(small_models["llama"]), 3, 0, 1.0, 8)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("User: What do") for line in lines)
    assert re.search(r"llama in shop: mean return 0.000 ± 0.000 over 3 games", lines[-1])


def test_games_that_fail_are_counted_and_left_out(small_models, monkeypatch, capsys) -> None:
    class Broken(type(GAMES["shop"].make())):  # type: ignore[misc]
        def step(self, actions):
            raise KeyError("table")

    from dataclasses import replace

    monkeypatch.setitem(GAMES, "shop", replace(GAMES["shop"], make=Broken))
    playing.play_games("shop", str(small_models["llama"]), 2, 0, 1.0, 4)
    assert "2 of 2 games failed: episode 0 (seed 0) of Broken, step 1: KeyError" in capsys.readouterr().err


def test_wrong_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, message in (
        (
            ("shop", "nobody", 1, 0, 1.0, None),
            "--agent 'nobody' is no folder; needed: human, random, heuristic, optimal",
        ),
        (("shops", "random", 1, 0, 1.0, None), "has no 'shops'; did you mean shop?"),
        (("shop", "random", 0, 0, 1.0, None), "episodes=0; needed: 1 to 100,000"),
        (("shop", "random", 1, -1, 1.0, None), "seed=-1; needed: 0 to"),
        (("shop", "random", 1, 0, -1.0, None), "temperature=-1"),
        (("shop", "random", 1, 0, 1.0, 0), "max_new_tokens=0; needed: 1 to"),
    ):
        with pytest.raises(InputError, match=message):
            playing.play_games(*settings)
    with pytest.raises(InputError, match="episodes=1; needed: 2 to"):
        tables.show_measured("shop", 1, 0)


def test_the_group_is_in_the_command() -> None:
    shown = CliRunner().invoke(main, ["games", "--help"]).output
    assert all(name in shown for name in ("list", "measure", "play"))

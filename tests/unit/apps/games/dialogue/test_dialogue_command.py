"""`lmgym dialogue`: records of scripted players, and rows out of them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.games.dialogue.games import GAMES
from lmgym.cli.main import main


def run(*words: object) -> tuple[int, str]:
    """(exit code, what was printed, in one line)."""
    done = CliRunner().invoke(main, ["dialogue", *map(str, words)])
    return done.exit_code, " ".join(done.output.split())


def test_games_are_listed_with_roles_and_experiments() -> None:
    code, printed = run("list")
    assert code == 0
    assert all(f"{name}: " in printed for name in GAMES)
    assert "(roles describer, guesser; common, less_common)" in printed


def test_scripted_players_leave_records_of_which_rows_are_made(tmp_path: Path) -> None:
    code, printed = run("play", "all", "--number", 2, "--output", tmp_path / "records")
    assert code == 0, printed
    assert "taboo: 4 episodes, 100% played, quality 100" in printed
    pair = tmp_path / "records/scripted_winner-t0.0--scripted_winner-t0.0"
    assert (pair / "taboo/1_less_common/episode_1/scores.json").is_file()
    out = tmp_path / "rows.jsonl"
    code, printed = run(
        "rows", tmp_path / "records", "--output", out, "--outcome", "success", "--game", "taboo",
        "--role", "guesser", "--loss", "last",
    )  # fmt: skip
    assert code == 0, printed
    assert "4 rows (success 4)" in printed
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["meta"]["game_role"] for row in rows} == {"guesser"}
    assert all(row["completion"][0]["content"].startswith("GUESS: ") for row in rows)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("play", "tabu", "--output", "x"), "there is no dialogue game 'tabu'"),
        (("play", "taboo", "--player", "hero", "--output", "x"), "player='hero'; needed: winner, loser"),
        (("play", "taboo", "--number", "0", "--output", "x"), "number"),
        (("play", "taboo", "--seed", "-1", "--output", "x"), "seed"),
        (("play", "taboo", "--split", "test", "--output", "x"), "split='test'"),
        (("rows", "nowhere.jsonl", "--output", "x"), "does not exist"),
        (("rows", "nowhere.jsonl", "--loss", "some", "--output", "x"), "--loss 'some'; needed: all or last"),
    ],
)
def test_mistakes_are_one_line(words, found, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed = run(*words)
    assert code == 2
    assert found in printed
    assert list(tmp_path.iterdir()) == []

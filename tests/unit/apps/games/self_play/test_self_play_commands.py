"""`lmgym games rate` and `data`, and `lmgym replay`: what they print, and what they refuse."""

import json
import shutil
from pathlib import Path

import pytest

from lmgym.apps.games.episode_rows import write_training_data
from lmgym.apps.games.rating import pool_members, rate_pool
from lmgym.apps.games.self_play.two_players import make_start
from lmgym.errors import InputError


def test_a_pool_is_rated_beside_scripted_players(talkative_models: dict[str, Path], tmp_path: Path, capsys) -> None:
    for name in ("iteration_00000000", "iteration_00000010"):
        shutil.copytree(talkative_models["gpt2"], tmp_path / "pool" / name / "model")
    rate_pool(str(tmp_path / "pool"), "tic_tac_toe", "random,optimal", 4, 1, 0, 1.0, str(tmp_path / "ratings.json"))
    printed = capsys.readouterr().out
    for player in ("iteration 00000000", "iteration 00000010", "random", "optimal", "Elo"):
        assert player in printed
    ratings = json.loads((tmp_path / "ratings.json").read_text())["ratings"]
    assert [one["games"] for one in ratings] == [12] * 4
    assert ratings[0]["player"] in ("random", "optimal"), "an untrained model says nothing that is legal"
    assert sum(one["elo"] for one in ratings) == pytest.approx(0, abs=1e-6)


def test_policies_over_the_listed_moves_are_rated_as_they_play(tmp_path: Path) -> None:
    make_start("tic_tac_toe", tmp_path / "pool/untrained")
    points = {}
    for over in ("tokens", "actions"):
        rate_pool(str(tmp_path / "pool"), "tic_tac_toe", "random", 100, 1, 0, 1.0, str(tmp_path / over), over)
        ratings = json.loads((tmp_path / over).read_text())["ratings"]
        points[over] = next(one["score"] for one in ratings if one["player"] == "untrained")
    assert points["tokens"] < 0.05
    assert points["actions"] == pytest.approx(0.5, abs=0.2)


def test_a_pool_without_policies_and_unknown_players_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no policy; needed: the PATH"):
        pool_members(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.json").write_text("{}")
    assert pool_members(tmp_path) == {"a": tmp_path / "a"}
    given = 10, 1, 0, 1.0, None
    with pytest.raises(InputError, match="has no scripted player 'strong'"):
        rate_pool(str(tmp_path), "tic_tac_toe", "strong", *given)
    with pytest.raises(InputError, match=r"has 1 policy; needed: two players or more"):
        rate_pool(str(tmp_path), "tic_tac_toe", "", *given)
    with pytest.raises(InputError, match="games=1; needed: 2 to"):
        rate_pool(str(tmp_path), "tic_tac_toe", "random", 1, 1, 0, 1.0, None)


def made_run(folder: Path, command: str) -> Path:
    (folder / "episodes").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"command": command, "cwd": str(folder), "name": "x"}))
    turn = {"messages": [{"role": "user", "content": "a"}], "reply": "b", "finish": "eos"}
    game = {"agents": {"policy": [turn]}, "returns": {"policy": 1.0}}
    lost = {"agents": {"policy": [turn | {"reply": "c"}]}, "returns": {"policy": -1.0}}
    path = folder / "episodes/rollouts-00000004.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (game, lost, game)))
    return path


def test_good_episodes_of_a_run_become_rows_that_sft_reads(tmp_path: Path, capsys) -> None:
    made_run(tmp_path / "run", "python game.py")
    output = tmp_path / "rows/good.jsonl"
    write_training_data(str(tmp_path / "run"), 1.0, "all", "", str(output))
    [row] = [json.loads(line) for line in output.read_text().splitlines()]
    assert row["completion"] == [{"role": "assistant", "content": "b"}]
    assert "1 rows for" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InputError, match="no reply is left: 3 for a return below 5; needed: a lower --min_return"):
        write_training_data(str(tmp_path / "run"), 5.0, "all", "", str(output))
    with pytest.raises(InputError, match="has no recorded episodes of evaluation"):
        write_training_data(str(tmp_path / "run"), 1.0, "evaluation", "", str(output))
    with pytest.raises(InputError, match="min_return=nan; needed"):
        write_training_data(str(tmp_path / "run"), float("nan"), "all", "", str(output))

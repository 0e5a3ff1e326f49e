"""Rows to learn from: each player's view, who is left out, filters, and what SFT learns of them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_dialogue_records import write_games

from lmgym.apps.games.dialogue.games import GAMES, play_scripted
from lmgym.apps.games.dialogue.rows import (
    RowFilter,
    read_dialogue_rows,
    rows_of_episode,
    write_dialogue_rows,
)
from lmgym.data.records import read_records
from lmgym.errors import InputError
from sft.conversations import validate_chats


def lost_taboo() -> dict:
    game = GAMES["taboo"]
    return play_scripted(game, game.tasks(1)[0], {"describer": "winner", "guesser": "loser"}).interactions


def test_each_player_gets_a_row_of_what_it_read_and_said() -> None:
    describer, guesser = rows_of_episode(lost_taboo(), "lose", 4)
    assert [message["role"] for message in describer["messages"]] == 3 * ["user", "assistant"]
    assert describer["messages"][2] == {"role": "user", "content": "GUESS: nothing"}
    assert guesser["messages"][-1] == {"role": "assistant", "content": "GUESS: nothing"}
    assert describer["meta"] == {
        "game": "taboo", "experiment": "common", "task_id": 4, "game_id": 0, "player_name": "Player 1",
        "game_role": "describer", "model": "scripted_winner", "outcome": "lose",
    }  # fmt: skip
    assert guesser["meta"]["model"] == "scripted_loser"


def test_a_row_is_what_the_player_was_given() -> None:
    for game in GAMES.values():
        records = play_scripted(game, game.tasks(1)[0], dict.fromkeys(game.roles, "winner"))
        views = [row["messages"] for row in rows_of_episode(records.interactions)]
        given = [
            [*r["manipulated_prompt_obj"]["messages"],
             {"role": "assistant", "content": r["raw_response_obj"]["response"]}]
            for r in records.requests
        ]  # fmt: skip
        assert all(view in given for view in views), game.name


def test_programmed_players_and_those_who_never_spoke_have_no_row() -> None:
    interactions = lost_taboo()
    interactions["players"]["Player 2"]["model_name"] = "programmatic"
    assert [row["meta"]["game_role"] for row in rows_of_episode(interactions)] == ["describer"]
    game = GAMES["taboo"]
    first_clue = play_scripted(game, game.tasks(1)[0], {"describer": "loser", "guesser": "winner"}).interactions
    assert [row["meta"]["game_role"] for row in rows_of_episode(first_clue)] == ["describer"]


def test_neighbours_of_one_role_are_joined_and_messages_without_a_reply_are_left_out() -> None:
    def event(sender: str, receiver: str, text: str) -> dict:
        return {"from": sender, "to": receiver, "action": {"type": "any", "content": text}}

    turns = [[event("GM", "Player 1", "rules"), event("GM", "Player 1", "clue"), event("Player 1", "GM", "guess")]]
    turns += [[event("GM", "GM", "wrong"), event("GM", "Player 1", "bye")]]
    [row] = rows_of_episode({"players": {"Player 1": {"model_name": "m"}}, "turns": turns})
    assert row["messages"] == [
        {"role": "user", "content": "rules\n\nclue"}, {"role": "assistant", "content": "guess"}
    ]  # fmt: skip
    assert row["meta"]["game"] == row["meta"]["outcome"] == "unknown"


@pytest.mark.parametrize("broken", [{}, {"players": {}}, {"players": {"a": {}}, "turns": []},
                                    {"players": [], "turns": []}, {"players": {}, "turns": [[1]]}])  # fmt: skip
def test_other_json_is_refused(broken) -> None:
    players = broken.get("players")
    if players == {} and "turns" in broken:
        broken["players"] = {"a": {"model_name": "m"}}
    with pytest.raises(ValueError, match="no interactions of clembench"):
        rows_of_episode(broken)


def test_a_folder_of_records_gives_rows_with_outcomes(tmp_path: Path, capsys) -> None:
    below = write_games(tmp_path / "won", 3)
    write_games(tmp_path / "aborted", 2, "rule_breaker")
    (below / "episode_0" / "scores.json").unlink()
    (below / "episode_1" / "interactions.json").write_text("{}")
    rows = read_dialogue_rows(str(tmp_path))
    found = [(row["meta"]["task_id"], row["meta"]["outcome"]) for row in rows]
    assert found == [(0, "aborted"), (1, "aborted"), (0, "unknown"), (0, "unknown"), (2, "success"), (2, "success")]
    assert "episode_1 is left out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_of_rows_are_read_as_playpen_data_has_them(tmp_path: Path, kind: str, capsys) -> None:
    rows = [row for i in range(2) for row in rows_of_episode(lost_taboo(), "lose" if i else "success", i)]
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "no row"}]) + "{\n")
    assert read_dialogue_rows(str(path)) == rows
    assert ("2 of 6 rows are left out" in " ".join(capsys.readouterr().err.split())) == (kind == "jsonl")
    assert len(RowFilter(outcome=("success",)).keep(rows)) == 2


def test_filters_keep_the_named_values_and_refuse_those_that_no_row_has() -> None:
    rows = rows_of_episode(lost_taboo(), "lose")
    assert RowFilter().keep(rows) == rows
    [row] = RowFilter(outcome=("lose",), game_role=("guesser",)).keep(rows)
    assert row["meta"]["game_role"] == "guesser"
    with pytest.raises(InputError, match="no row has the outcome 'won'; needed: one of those there are, lose"):
        RowFilter(outcome=("lose", "won")).keep(rows)


@pytest.mark.parametrize(("loss", "outputs"), [("all", (1, 3, 5)), ("last", (5,))])
def test_sft_learns_from_all_replies_or_the_last_alone(tmp_path: Path, loss: str, outputs: tuple[int, ...]) -> None:
    source, output = tmp_path / "rows.jsonl", tmp_path / "made" / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows_of_episode(lost_taboo(), "lose")))
    write_dialogue_rows(str(source), output, RowFilter(game_role=("describer",)), loss)
    chats, rejections = validate_chats(read_records(str(output)))
    assert not rejections
    assert [chat.outputs for chat in chats] == [outputs]


def test_a_source_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(InputError, match=r"holds no rows; needed: clembench's records with interactions\.json, or"):
        read_dialogue_rows(str(tmp_path / "a.jsonl"))

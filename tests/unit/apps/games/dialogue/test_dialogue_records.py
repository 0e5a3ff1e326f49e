"""Records: clembench's JSON, its folders, and reading them back."""

import json
from pathlib import Path

import pytest
from dialogues import begun, said

from lmgym.apps.games.dialogue.games import GAMES, play_scripted
from lmgym.apps.games.dialogue.records import (
    Records,
    read_episodes,
    read_scores,
    write_episode,
    write_experiment,
)
from lmgym.errors import InputError

BELL = {"game_id": 7, "target_word": "bell", "related_word": ["ring", "church", "toll"]}


def test_interactions_hold_who_said_what_to_whom_turn_by_turn() -> None:
    game = begun("taboo", BELL)
    guess = ("guesser", "GUESS: organ")
    said(game, ("describer", "CLUE: high up"), guess, ("describer", "CLUE: it sounds"), ("guesser", " GUESS: bell "))
    found = game.records().interactions
    assert found["meta"] == {"game_name": "taboo", "experiment_name": "some", "game_id": 7}
    assert found["players"]["GM"] == {"player_name": "GM", "game_role": "Game Master", "model_name": "programmatic"}
    assert found["players"]["Player 2"] == {
        "player_name": "Player 2", "game_role": "guesser", "model_name": "unknown"
    }  # fmt: skip
    seen = [[(e["from"], e["to"], e["action"]["type"]) for e in turn] for turn in found["turns"]]
    first = [("GM", "Player 1", "send message"), ("Player 1", "GM", "get message"), ("GM", "GM", "valid clue")]
    second = [("GM", "Player 2", "send message"), ("Player 2", "GM", "get message")]
    assert seen == [
        [*first, *second, ("GM", "GM", "wrong guess")],
        [*first, *second, ("GM", "GM", "correct guess")],
    ]
    assert found["turns"][0][0]["action"]["label"] == "initial prompt"
    assert found["turns"][1][0]["action"] == {"type": "send message", "content": "GUESS: organ", "label": "context"}


def test_requests_hold_what_a_player_read_and_its_raw_reply() -> None:
    game = begun("taboo", BELL)
    said(game, ("describer", "CLUE: it sounds"), ("guesser", " GUESS: bell "))
    _, last = game.records().requests
    [message] = last["manipulated_prompt_obj"]["messages"]
    assert message["role"] == "user"
    assert message["content"].endswith("CLUE: it sounds")
    assert last["raw_response_obj"] == {"response": " GUESS: bell "}


def write_games(root: Path, numbers: int = 11, player: str = "winner") -> Path:
    game = GAMES["taboo"]
    [experiment] = game.experiments(numbers, split="train")[:1]
    below = root / "pair" / "taboo" / "0_common"
    write_experiment(below, {"game_name": "taboo", **experiment})
    for i, instance in enumerate(experiment["game_instances"]):
        task = {"experiment": {"name": "common"}, "instance": instance}
        write_episode(below / f"episode_{i}", instance, play_scripted(game, task, dict.fromkeys(game.roles, player)))
    return below


def test_the_folders_are_clembenchs_and_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    below = write_games(tmp_path)
    assert json.loads((below / "experiment.json").read_text()) == {"game_name": "taboo", "name": "common"}
    assert sorted(p.name for p in (below / "episode_3").iterdir()) == [
        "instance.json", "interactions.json", "requests.json", "scores.json"
    ]  # fmt: skip
    episodes = list(read_episodes(tmp_path))
    assert [episode.folder.name for episode in episodes] == [f"episode_{i}" for i in range(11)]
    game = begun("taboo", BELL)
    said(game, ("describer", "CLUE: it sounds"), ("guesser", "GUESS: bell"))
    records = game.records()
    write_episode(tmp_path / "one", BELL, records)
    [episode] = read_episodes(tmp_path / "one")
    assert episode.instance == BELL
    assert episode.records == records


def test_an_aborted_games_score_is_read_as_nan(tmp_path: Path) -> None:
    below = write_games(tmp_path, 2, "rule_breaker")
    assert '"Main Score": NaN' in (below / "episode_0" / "scores.json").read_text()
    scores = read_scores(tmp_path)
    assert [score.aborted for score in scores] == [True, True]
    assert all(score.main_score != score.main_score for score in scores)
    assert {(score.game, score.experiment) for score in scores} == {("taboo", "common")}


def test_records_that_are_half_written_or_strange_are_left_out_with_a_reason(tmp_path: Path, capsys) -> None:
    below = write_games(tmp_path, 6)
    (below / "episode_0" / "scores.json").write_text('{"meta": {}, "episode sc')
    (below / "episode_1" / "scores.json").write_text('{"episode scores": {"Aborted": 2, "Main Score": 1}}')
    (below / "episode_2" / "scores.json").unlink()
    (below / "episode_3" / "scores.json").write_text('{"episode scores": {"Aborted": 0, "Main Score": "high"}}')
    (below / "episode_4" / "interactions.json").write_text("[]")
    assert len(read_scores(tmp_path)) == 2
    assert capsys.readouterr().err.count("is left out") == 3
    assert [episode.folder.name for episode in read_episodes(tmp_path)] == [f"episode_{i}" for i in (1, 2, 3, 5)]
    printed = " ".join(capsys.readouterr().err.split())
    assert "interactions.json holds a list; needed: whole records, so play it again" in printed


def test_scores_that_are_no_object_leave_their_episode_out(tmp_path: Path, capsys) -> None:
    (tmp_path / "interactions.json").write_text("{}")
    (tmp_path / "scores.json").write_text('{"episode scores": "x"}')
    assert list(read_episodes(tmp_path)) == []
    assert "the \"episode scores\" of scores.json are 'x'" in capsys.readouterr().err


def test_a_failed_episode_leaves_its_reason_in_place_of_scores(tmp_path: Path) -> None:
    below = write_games(tmp_path, 1)
    write_episode(below / "episode_0", {}, Records(failure="the server went away"))
    assert sorted(p.name for p in (below / "episode_0").iterdir()) == ["failure.json", "instance.json"]
    assert read_scores(tmp_path) == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder; needed: a folder of clembench's records"):
        list(read_episodes(tmp_path / "none"))

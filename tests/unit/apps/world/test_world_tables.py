"""The world's files."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lmgym.apps.world.tables import EVAL_USERS, FILES, write_world
from lmgym.apps.world.world import VERSION, World
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.messages import from_transcript


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of 1,500 rows."""
    path = tmp_path_factory.mktemp("world")
    write_world(path, 1500, 7)
    return path


def columns(folder: Path, name: str) -> dict[str, list]:
    """A table as lists."""
    return pq.read_table(folder / f"{name}.parquet").to_pydict()


def test_the_tables_have_the_columns_of_an_app(folder: Path) -> None:
    found = {name: pq.read_schema(folder / f"{name}.parquet").names for name in FILES}
    assert found["logs"] == [
        *("row_id", "user_id", "convo_id", "turn", "is_new_user", "is_nsfw", "input_text", "output_text", "accepted"),
        *("remaining_user_messages", "time_delta_till_user_response", "log_norm_time_delta_till_user_response"),
        *("d1", "d2", "d3"),
    ]
    assert found["gold"] == ["row_id", "utility"]
    assert found["retry_eval"][:3] == ["text", "retried", "end_of_conversation"]
    assert found["retention_eval"][:5] == ["text", "d3", "d7", "d30", "is_new_user"]
    assert found["ranking_eval"] == ["id", "text", "rank (lower is better)"]
    assert found["reject_eval"] == ["id", "text", "label", "is_nsfw", "new_user"]
    assert found["pairs"] == ["prompt", "chosen", "rejected"]
    assert found["kwise"] == ["prompt", "replies", "ranks"]
    assert found["sft"] == ["messages"]
    record = json.loads((folder / "world.json").read_text())
    assert (record["version"], record["seed"], record["rows"]["logs"]) == (VERSION, 7, 1500)


def test_logs_say_never_and_unknown_apart(folder: Path) -> None:
    logs = columns(folder, "logs")
    seconds, log = (np.array(logs[f"{name}time_delta_till_user_response"]) for name in ("", "log_norm_"))
    assert logs["row_id"] == list(range(1500))
    assert all(text.endswith("\nBot:") and "\nUser: " in text for text in logs["input_text"])
    assert (seconds == -1).any()
    assert np.isnan(seconds).any()
    assert (seconds[seconds != -1][:3] != 0).all()
    assert ((log == -1) == (seconds == -1)).all()
    assert (np.isnan(log) == np.isnan(seconds)).all()
    answered = seconds >= 0
    assert log[answered] == pytest.approx(np.log1p(seconds[answered]))
    assert None in logs["d1"]
    assert min(value for value in logs["d1"] if value is not None) >= 1


def test_gold_is_the_utility_of_what_the_log_shows(folder: Path) -> None:
    logs, gold = columns(folder, "logs"), columns(folder, "gold")
    assert gold["row_id"] == logs["row_id"]
    conversations = [from_transcript(text) for text in logs["input_text"]]
    average = World(7).utility(conversations, logs["output_text"])
    assert np.corrcoef(average, gold["utility"])[0, 1] > 0.85  # the rest is taste


def test_users_of_evaluations_are_not_in_the_logs(folder: Path) -> None:
    assert max(columns(folder, "logs")["user_id"]) < EVAL_USERS
    for name in ("retry_eval", "retention_eval", "gold_eval"):
        assert min(columns(folder, name)["user_id"]) >= EVAL_USERS


def test_groups_are_ranked_by_utility_with_noise(folder: Path) -> None:
    world, kwise = World(7), columns(folder, "kwise")
    right = []
    for prompt, replies, ranks in zip(kwise["prompt"], kwise["replies"], kwise["ranks"], strict=True):
        assert len(set(replies)) == 4
        assert sorted(ranks) == [1, 2, 3, 4]
        worth = world.utility([from_transcript(prompt)] * 4, replies)
        right.append(worth[ranks.index(1)] > worth[ranks.index(4)])
    assert 0.85 < np.mean(right) < 1
    pairs = columns(folder, "pairs")
    conversations = [from_transcript(prompt) for prompt in pairs["prompt"]]
    chosen, rejected = (world.utility(conversations, pairs[side]) for side in ("chosen", "rejected"))
    assert 0.65 < (chosen > rejected).mean() < 0.95


def test_ranks_and_labels_of_the_evaluation_groups_are_whole(folder: Path) -> None:
    ranking, reject = columns(folder, "ranking_eval"), columns(folder, "reject_eval")
    ranks = np.array(ranking["rank (lower is better)"]).reshape(-1, 4)
    assert (np.sort(ranks) == [1, 2, 3, 4]).all()
    assert (np.array(reject["label"]).reshape(-1, 4).sum(1) == 1).all()


def test_sft_chats_alternate_and_end_with_the_bot(folder: Path) -> None:
    for chat in columns(folder, "sft")["messages"]:
        roles = [message["role"] for message in chat]
        assert roles[0] == "system"
        assert roles[1:] == ["user", "assistant"] * (len(roles) // 2)


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logs.parquet").write_text("mine")
    with pytest.raises(InputError, match="give an empty folder"):
        write_world(tmp_path, 1000, 0)
    assert (tmp_path / "logs.parquet").read_text() == "mine"


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    few = CliRunner().invoke(main, ["world", "--rows", "10", "--output", str(tmp_path)])
    assert few.exit_code == 2
    assert "at least 1000" in few.output
    done = CliRunner().invoke(main, ["world", "--rows", "1000", "--seed", "1", "--output", str(tmp_path / "w")])
    assert done.exit_code == 0, done.output
    assert "logs 1,000" in done.output

"""Prompts out of rows: what becomes a task, what is held out, and which tasks an iteration plays."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.data.prompts import Task, read_prompts
from lmgym.data.rejections import UNREADABLE, RowError, tally
from lmgym.environments.groups import tasks_of_iteration
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn
from ppo.config import RolloutConfig


def written(path: Path, rows: list[dict]) -> RolloutConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RolloutConfig(str(path), eval_size=1)


def test_every_task_is_played_once_an_epoch_across_iterations() -> None:
    tasks = list(range(7))
    played = [task for iteration in range(14) for task in tasks_of_iteration(tasks, 3, iteration, 5)]
    epochs = [played[7 * i : 7 * i + 7] for i in range(6)]
    assert all(sorted(epoch) == tasks for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 3, "in a fresh order"
    assert tasks_of_iteration(tasks, 3, 9, 5) == played[27:30], "an iteration alone plays the same"
    assert tasks_of_iteration(tasks, 20, 0, 5)[:7] == epochs[0], "more than there are: again from the start"
    assert [x for i in range(14) for x in tasks_of_iteration(tasks, 3, i, 6)] != played


def test_a_prompt_is_a_text_or_a_chat_without_its_last_reply_and_keeps_its_columns(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    rows = [
        {"messages": chat, "wanted": 3},
        {"messages": [*chat, {"role": "user", "content": "more"}]},
        {"prompt": "say it"},
        {"messages": chat, "wanted": 4},
        {"prompt": ""},
        {"messages": chat[1:]},
    ]
    found = read_prompts(replace(written(tmp_path / "a.jsonl", rows), eval_size=1), 0)
    tasks = [*found.train, *found.evaluation]
    assert len(tasks) == 3
    by_turns = {len(task["prompt"].turns): task for task in tasks if task["prompt"].turns[0].text == "hello"}
    assert by_turns[1] == {"prompt": Conversation((Turn("user", "hello"),)), "wanted": 3}
    assert [turn.text for turn in by_turns[3]["prompt"].turns] == ["hello", "hi", "more"]
    assert [(one.line, one.field) for one in found.rejections] == [(4, "prompt"), (5, "prompt"), (6, "messages")]
    assert "the same prompt as in line 1" in found.rejections[0].found
    texts = read_prompts(written(tmp_path / "b.jsonl", rows), 0, as_text=True)
    assert "say it" in [task["prompt"] for task in [*texts.train, *texts.evaluation]]


def test_rows_in_which_a_check_finds_a_fault_are_rejected_with_their_lines(tmp_path: Path) -> None:
    def check(tasks: Sequence[Task]) -> list[RowError | None]:
        return [RowError("wanted", f"found {t['wanted']}", UNREADABLE) if t["wanted"] < 0 else None for t in tasks]

    rows = [{"prompt": f"say {i}", "wanted": wanted} for i, wanted in enumerate((1, -2, 3, 4))]
    settings = written(tmp_path / "a.jsonl", rows)
    written(tmp_path / "b.jsonl", [{"prompt": "say 9", "wanted": -1}, {"prompt": "say 8", "wanted": 1}])
    found = read_prompts(replace(settings, eval_prompts=str(tmp_path / "b.jsonl")), 0, row_check=check)
    assert [task["wanted"] for task in found.train] == [1, 3, 4]
    assert [task["wanted"] for task in found.evaluation] == [1]
    assert [(one.line, one.field, one.found, one.reason) for one in found.rejections] == [
        (2, "wanted", "found -2", "unreadable"), (1, "wanted", "found -1", "unreadable"),
    ]  # fmt: skip
    assert tally(found.rejections, found.rows).line == "2 of 6 rows rejected: 2 unreadable (field wanted)"
    written(tmp_path / "a.jsonl", rows[1:2])
    with pytest.raises(
        InputError, match=r"holds no prompts that can be used; rows rejected: 1 \(line 1: wanted: found"
    ):
        read_prompts(settings, 0, row_check=check)


def test_prompts_that_are_evaluated_on_are_not_trained_on(tmp_path: Path) -> None:
    settings = written(tmp_path / "a.jsonl", [{"prompt": f"say {i}"} for i in range(10)])
    written(tmp_path / "b.jsonl", [{"prompt": "say 3"}, {"prompt": "say 20"}])
    found = read_prompts(replace(settings, eval_prompts=str(tmp_path / "b.jsonl")), 0, as_text=True)
    assert len(found.train) == 9
    assert [task["prompt"] for task in found.evaluation] == ["say 3", "say 20"]
    assert [(one.line, one.found) for one in found.rejections] == [(4, "is in the evaluation set too")], "counted"
    with pytest.raises(InputError, match="leaves 0 prompts to train on"):
        read_prompts(replace(settings, eval_prompts=settings.prompts), 0)
    part = read_prompts(replace(settings, eval_size=4), 0, as_text=True)
    assert (len(part.train), len(part.evaluation)) == (6, 4)
    assert not {task["prompt"] for task in part.train} & {task["prompt"] for task in part.evaluation}
    assert part.fingerprint == read_prompts(replace(settings, eval_size=4), 0, as_text=True).fingerprint
    assert part.fingerprint != found.fingerprint


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "quoted.jsonl",
            "{'prompt': 'a'}\n{'prompt': 'b'}\n",
            r"holds no prompts: .*2 of 2 rows rejected: 2 not JSON; the first: .*line 1.*not JSON: Expecting prop",
        ),
        (
            "cut.json",
            '{\n  "prompt": "a",\n',
            r"cannot be read: it is not closed: the file is damaged or incomplete",
        ),
        (
            "strings.json",
            '["a", "b"]',
            r"rejected: 2 not an object; the first: .*line 1, \(row\): 'a'; needed: an object",
        ),
        (
            "mixed.jsonl",
            "{'prompt': 'a'}\n{\"answer\": 1}\n",
            r"holds no prompts: 1 of 2 rows rejected: 1 not JSON; the first: .*; found the columns answer; needed: ",
        ),
        (
            "empty.jsonl",
            '{"prompt": ""}\n{"prompt": 3}\n',
            r"used; rows rejected: 2 \(line 1: prompt: missing or empty; line",
        ),
        (
            "few.jsonl",
            '{"prompt": "a"}\n{"prompt": ""}\n',
            r"asks for 1 of 1 prompts; .*rejected: 1 \(line 2: prompt: m",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_counted_with_the_first_reasons(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        read_prompts(RolloutConfig(str(tmp_path / name), eval_size=6), 0)


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    for rows, said in (
        ([], "is empty: found 0 rows; needed: at least 2 prompts"),
        ([{"answer": "x"}], "found the columns answer; needed: one of prompt"),
        ([{"prompt": "a"}, {"prompt": "a"}], "prompts"),
    ):
        with pytest.raises(InputError, match=said):
            read_prompts(written(tmp_path / "a.jsonl", rows), 0)

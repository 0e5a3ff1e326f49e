"""Conversations for convo_evolution from every format that the project reads; rejected rows are reported."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from lmgym.apps.chat.evolution import read_chats, show_evolution
from lmgym.errors import InputError
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.text import Conversation, Turn

TURNS = (Turn("user", "hi"), Turn("bot", "ho"), Turn("user", "hm?"), Turn("bot", "ok"))
MESSAGES = [{"role": "user" if t.speaker == "user" else "assistant", "content": t.text} for t in TURNS]
SHAREGPT = [{"from": "human" if t.speaker == "user" else "gpt", "value": t.text} for t in TURNS]
FLAT, HH = "User: hi\nBot: ho\nUser: hm?\nBot: ok", "\n\nHuman: hi\n\nAssistant: ho\n\nHuman: hm?\n\nAssistant: ok"
FORMATS = {
    "messages": {"messages": MESSAGES},
    "transcript": {"text": FLAT},
    "hh": {"chosen": HH, "rejected": HH + "!"},
    "standard": {"prompt": FLAT.removesuffix("\nBot: ok"), "chosen": "ok", "rejected": "no"},
    "conversational": {"prompt": MESSAGES[:3], "chosen": MESSAGES[3:], "rejected": MESSAGES[3:]},
    "prompt repeated": {"prompt": MESSAGES[:3], "chosen": MESSAGES, "rejected": MESSAGES},
    "unpaired": {"prompt": MESSAGES[:3], "completion": MESSAGES[3:], "label": True},
    "unpaired text": {"prompt": FLAT.removesuffix("\nBot: ok"), "completion": "ok", "label": False},
    "ShareGPT": {"conversations": SHAREGPT},
    "Alpaca": {"instruction": "hm?", "history": [["hi", "ho"]], "output": "ok"},
    "a log": {"input_text": FLAT.removesuffix(" ok"), "output_text": "ok"},
    "a log without a bot's mark": {"input_text": FLAT.removesuffix("\nBot: ok"), "output_text": " ok"},
}


def write(path: Path, *rows: object) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_each_format_is_its_conversation(tmp_path: Path, name: str) -> None:
    assert read_chats(write(tmp_path / "x.jsonl", FORMATS[name])) == ([Conversation(TURNS)], [])


def test_each_kind_of_file_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write(json.dumps({"messages": MESSAGES}))
    (tmp_path / "x.json").write_text(json.dumps([{"messages": MESSAGES}]))
    pyarrow.parquet.write_table(pyarrow.table({"messages": [MESSAGES]}), tmp_path / "x.parquet")
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["messages"], [json.dumps(MESSAGES)], [json.dumps(MESSAGES)]])
    with (tmp_path / "y.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], [FLAT]])
    for path in tmp_path.iterdir():
        assert read_chats(str(path))[0][0].turns == TURNS, path


def test_rows_without_a_conversation_are_listed_and_a_file_without_any_is_refused(tmp_path: Path) -> None:
    bad = [
        {"messages": 5}, "not json", {"text": {"a": 1}}, {"messages": [5]},
        {"messages": [{"role": "x", "content": "y"}]}, [1], {}, {"messages": None}, {"messages": MESSAGES[:2]},
        {"messages": "[{broken"},
    ]  # fmt: skip
    found, rejections = read_chats(write(tmp_path / "x.jsonl", {"messages": MESSAGES}, *bad))
    assert found == [Conversation(TURNS)]
    assert [(r.line, r.field) for r in rejections] == [
        (2, "messages"), (3, "(row)"), (4, "text"), (5, "messages"), (6, "messages"), (7, "(row)"), (8, "(row)"),
        (9, "(row)"), (10, "messages"), (11, "messages"),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"no conversation in 10 rows; needed: messages.*line 1, messages: 5"):
        read_chats(write(tmp_path / "y.jsonl", *bad))
    with pytest.raises(InputError, match=r"z\.jsonl is empty|the dataset is empty: found 0 rows"):
        read_chats(write(tmp_path / "z.jsonl"))


class FakeExperiment:
    """Two scorers, one of which fails if the user says hm."""

    def judges(self):
        class Breaks:
            def score(self, conversations, replies):
                if conversations[0].turns[-1].text == "hm?":
                    raise RuntimeError("boom \x1b[31m")
                return [1.0]

        return {"random": RandomScorer(), "breaks": Breaks()}


def test_rejected_rows_and_errors_of_scorers_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    dataset = write(tmp_path / "x.jsonl", {"messages": 5}, {"messages": MESSAGES}, {"messages": MESSAGES[1:]})
    out = io.StringIO()
    show_evolution(FakeExperiment(), dataset, 2, out)
    assert "note: 1 of 3 rows rejected: 1 of the wrong type (field messages); the first: " in capsys.readouterr().err
    lines = out.getvalue().splitlines()
    assert lines[:4] == ["", "conversation 1", "  user hi", "  bot  ho"]
    assert "       breaks: failed: RuntimeError: boom ␛[31m" in lines
    second = lines[lines.index("conversation 2") :]
    assert second[1:3] == ["  bot  ho", "  user hm?"], "the bot that begins is shown once"

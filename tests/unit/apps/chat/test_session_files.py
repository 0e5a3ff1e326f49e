"""A session's file has each text once, from which prompts are rebuilt, and is readable by its owner only."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.apps.chat.records import FIELDS, export_preferences, load
from lmgym.text import messages


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_message_of_a_megabyte_is_written_once_and_not_per_turn(make_session) -> None:
    session = make_session()
    session.say("x" * 1_000_000)
    for line in range(20):
        session.say(str(line))
    assert session.path.stat().st_size < 1_100_000
    assert load(session.path).exchanges == session.exchanges


def test_prompts_are_rebuilt_from_the_tree_through_edits_branches_and_personas(make_session, tmp_path: Path) -> None:
    session = make_session()
    session.say("one")
    session.write("mine")
    session.persona = "Another bot."
    session.say("two")
    session.edit("first", 1)
    session.say("three")
    session.persona = ""
    session.retry()
    session.back(2)
    session.pick(4)
    session.more(2)
    loaded = load(session.path)
    assert loaded.exchanges == session.exchanges
    assert (loaded.corrupt, loaded.orphans) == ([], [])
    assert [e.prompt.persona for e in loaded.exchanges.values()][:3] == ["A bot.", "Another bot.", "Another bot."]
    session.back(1)
    session.save(tmp_path / "kept.jsonl")
    kept = load(tmp_path / "kept.jsonl")
    assert (kept.exchanges, kept.head) == (session.exchanges, 1)
    assert not [row for row in rows_of(session.path) if "prompt" in row]


def test_a_corrupt_line_of_a_decision_is_detected_by_the_turns_after_it(make_session) -> None:
    old, new = make_session(), make_session()
    old.say("one")
    old.pick(1 if old.last.selected else 2)  # another than the scorers'
    old.say("two")
    lines = old.path.read_bytes().split(b"\n")
    old.path.write_bytes(b"\n".join([*lines[:2], b"{torn", *lines[3:]]))
    assert new.restore(old.path) == ["line(s) 3 could not be read", "turn(s) 2: the conversation before is unknown"]


@pytest.mark.parametrize("whole_prompts", [True, False])
def test_files_of_earlier_versions_with_every_field_still_load(make_session, whole_prompts: bool) -> None:
    old, new = make_session(), make_session()
    for line in ("one", "two", "three"):
        old.say(line)
    rows = rows_of(old.path)
    del rows[0]["sampling"]
    for row in rows[1:]:
        exchange = old.exchanges[row["turn"]]
        row |= {name: getattr(exchange, name) for name in FIELDS} | {"models": {}, "reply": exchange.reply}
        row |= {"candidates": [vars(candidate) for candidate in exchange.candidates]}
        if whole_prompts:
            row["prompt"] = messages(exchange.prompt)
            del row["before"]
            row.pop("persona", None)
    former = old.path.with_name("former.jsonl")
    former.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert new.restore(former) == []
    assert new.exchanges == old.exchanges
    if not whole_prompts:
        return
    former.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:2], *rows[3:]]))
    again = make_session()
    assert again.restore(former) == []
    assert [t.text for t in again.last.prompt.turns[1::2]] == ["one", "two", "three"], "the prompt has them"
    again.say("four")
    assert load(again.path).exchanges == again.exchanges


def test_a_row_has_only_what_differs_and_a_decision_is_a_row_of_its_own(make_session) -> None:
    session = make_session()
    session.say("one")
    session.pick(3)
    session.write("mine")
    session.sampling = replace(session.sampling, temperature=0.5)
    session.say("two")
    header, first, pick, write, second = rows_of(session.path)
    assert set(first) == {
        "kind", "time", "turn", "parent", "before", "persona", "user", "candidates", "selected", "selected_by", "seed",
    }  # fmt: skip
    assert first["candidates"]["seed"] == first["seed"]
    assert {**pick, "time": ""} == {
        "kind": "decision", "time": "", "turn": 1, "selected": first["selected"], "selected_by": "length",
        "human_pick": 2,
    }  # fmt: skip
    assert (write["human_pick"], write["edited_text"]) == ("written", "mine")
    assert header["sampling"]["temperature"] == 1
    assert second["sampling"]["temperature"] == 0.5
    assert load(session.path).exchanges == session.exchanges
    session.path.write_bytes(session.path.read_bytes().replace(b'"human_pick":2', b'"human_pick":4'))
    assert load(session.path).corrupt == [3], "there are four candidates"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_session_files_are_readable_by_their_owner_only(make_session, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        session = make_session()
        session.say("one")
        session.pick(2)
        session.save(tmp_path / "saved" / "kept.jsonl")
        export_preferences([session.last], "g", tmp_path / "prefs.jsonl")
        (tmp_path / "open.jsonl").write_text("")
        (tmp_path / "open.jsonl").chmod(0o644)
        export_preferences([session.last], "g", tmp_path / "open.jsonl")
    finally:
        os.umask(before)
    for file in (session.path, tmp_path / "saved/kept.jsonl", tmp_path / "prefs.jsonl", tmp_path / "open.jsonl"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (session.path.parent, tmp_path / "saved"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

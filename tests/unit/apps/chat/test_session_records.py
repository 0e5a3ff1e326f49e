"""A session's file: appended, read back, corrupt lines reported, and preferences for training exported."""

import json
from pathlib import Path

import pytest

from lmgym.apps.chat.exchanges import preferences
from lmgym.apps.chat.records import append, export_preferences, load
from lmgym.apps.chat.session import ChatSession
from lmgym.data.pairs import validate
from lmgym.data.records import read_records
from lmgym.errors import InputError
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_file_has_all_that_influenced_a_turn(make_session) -> None:
    session = make_session()
    assert not session.path.exists(), "a session without a turn leaves nothing"
    session.say("hello")
    session.pick(2)
    header, first, second = rows_of(session.path)
    assert (header["kind"], header["experiment"]) == ("session", "test")
    assert (header["sampling"]["seed"], header["models"]) == (3, {"generator": {"kind": "script"}})
    assert (first["kind"], second["kind"], second["human_pick"]) == ("turn", "decision", 1)
    assert second["turn"] == first["turn"] == 1
    assert (first["persona"], first["user"]) == ("A bot.", "hello")
    assert header["opening"] == [{"role": "system", "content": "A bot."}, {"role": "assistant", "content": "hi"}]
    assert first["candidates"].keys() == {"text", "tokens", "finish_reason", "seed", "scores"}
    assert len(first["candidates"]["text"]) == len(first["candidates"]["scores"]["length"]) == 4


def test_every_turn_is_synced_to_the_disk_before_it_is_shown(make_session, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda handle, real=os.fsync: (synced.append(os.fstat(handle).st_size), real(handle))
    )
    session = make_session()
    for line in ("one", "two"):
        session.say(line)
        assert session.path.stat().st_size in synced


def test_a_session_continues_from_a_file_without_changing_it(make_session) -> None:
    old, new = make_session(), make_session()
    old.say("one")
    old.say("two")
    old.more(2)
    old.more(2)
    before = old.path.read_bytes()
    new.restore(old.path)
    assert [e.user for e in new.history] == ["one", "two"]
    assert new.conversation_id == old.conversation_id
    assert [t.text for t in new.opening] == ["hi"]
    old_texts = {c.text for e in old.exchanges.values() for c in e.candidates}
    new.say("three")
    assert old.path.read_bytes() == before
    assert not old_texts & {c.text for c in new.last.candidates}
    again = load(new.path)
    assert [e.user for e in again.exchanges.values()] == ["one", "two", "three"]
    assert again.exchanges[3].seed not in {e.seed for e in old.exchanges.values()}


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_kill_during_a_write_loses_only_that_line(make_session, cut: int) -> None:
    session = make_session()
    session.say("one")
    session.say("two")
    session.path.write_bytes(session.path.read_bytes()[:-cut])
    torn = load(session.path)
    assert [e.user for e in torn.exchanges.values()] == (["one", "two"] if cut == 1 else ["one"])
    session.say("three")
    after = load(session.path)
    assert after.exchanges[3].user == "three"
    assert after.corrupt == ([] if cut == 1 else [3])


def test_a_corrupt_line_loses_its_turn_and_none_of_those_after_it(make_session) -> None:
    old, new = make_session(), make_session()
    for line in ("one", "two", "three"):
        old.say(line)
    lines = old.path.read_bytes().split(b"\n")
    old.path.write_bytes(b"\n".join([*lines[:2], b"{torn", *lines[3:]]))
    assert new.restore(old.path) == ["line(s) 3 could not be read", "turn(s) 3: the conversation before is unknown"]
    assert [e.user for e in new.history] == ["three"]
    assert [t.text for t in new.opening] == ["hi"]
    assert new.say("four").parent == 3
    assert load(new.path).corrupt == []


@pytest.mark.parametrize("wrong", [
    {"turn": float("inf")}, {"turn": 0}, {"turn": True}, {"parent": 2}, {"user": 5}, {"persona": 5}, {"parent": []},
    {"prompt": 5}, {"prompt": []},
    {"prompt": [{"role": "assistant", "content": "hm"}]}, {"candidates": []}, {"candidates": [5]}, {"human_pick": True},
    {"human_pick": "\x1b[31m"}, {"selected": 9}, {"selected": "0"}, {"tied": [7]}, {"seed": "0"}, {"failed": []},
    {"selected_by": ["a"]}, {"text": "high"}, {"text": [5] * 4}, {"text": ["a"]}, {"tokens": "\x1b[31m"},
    {"tokens": [1, 2]}, {"finish_reason": None}, {"scores": [1.0]}, {"scores": {"length": 5}},
    {"scores": {"length": "high"}}, {"scores": {"length": [1.0]}}, {"scores": {"length": [float("nan")] * 4}},
    {"candidates": [{"text": 5, "tokens": 1, "finish_reason": "eos", "seed": 0, "scores": {}}]}, {"sampling": []},
])  # fmt: skip
def test_a_line_that_would_fail_loop_or_send_control_characters_is_corrupt(make_session, wrong: dict) -> None:
    session = make_session()
    session.say("one")
    row = {**rows_of(session.path)[1], "turn": 2}
    [name] = wrong
    if name in row["candidates"]:
        row["candidates"] |= wrong
    else:
        row |= wrong
    append(session.path, row)
    loaded = load(session.path)
    assert (list(loaded.exchanges), loaded.corrupt) == ([1], [3])


def test_rows_that_could_not_be_written_are_written_later(make_session) -> None:
    session = make_session()
    session.say("one")
    aside = session.path.with_name("aside")
    session.path.rename(aside)
    session.path.mkdir()  # also stops root
    assert any("NOT RECORDED" in note for note in session.say("two").notes)
    session.back(1)
    session.path.rmdir()
    aside.rename(session.path)
    assert not session.say("three").notes
    loaded = load(session.path)
    assert [(e.user, e.parent) for e in loaded.exchanges.values()] == [("one", None), ("two", 1), ("three", 1)]
    assert (loaded.head, loaded.corrupt) == (3, [])


def test_a_deleted_file_is_written_again_completely(make_session) -> None:
    session = make_session()
    session.say("one")
    session.path.unlink()
    session.say("two")
    assert [e.user for e in load(session.path).exchanges.values()] == ["one", "two"]
    assert load(session.path).head == 2


def test_a_change_of_the_working_folder_does_not_change_the_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    session = ChatSession(ScriptedGenerator(["x"]), {"length": FunctionScorer(lambda c, r: [0.0] * len(r))}, "length")
    session.say("one")
    monkeypatch.chdir(tmp_path / "elsewhere")
    session.say("two")
    assert [e.user for e in load(session.path).exchanges.values()] == ["one", "two"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_that_are_not_sessions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load a session"):
        load(tmp_path / "absent.jsonl")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\nnot json\n[]\n\x00\n')
    with pytest.raises(InputError, match="is not a session file"):
        load(tmp_path / "other.jsonl")


def test_a_line_that_goes_to_a_missing_turn_is_corrupt(make_session) -> None:
    session = make_session()
    session.say("one")
    append(session.path, {"kind": "head", "turn": 77})
    loaded = load(session.path)
    assert (loaded.corrupt, loaded.head) == ([3], 1)


# --- preferences


def test_a_pick_is_preferred_to_every_other_candidate_and_a_written_reply_to_all(make_session) -> None:
    session = make_session()
    session.say("one")
    session.pick(2)
    session.say("two")
    session.write("my own")
    session.say("three")
    session.tie()
    session.say("four")
    session.reject()
    session.say("five")  # no decision
    rows = preferences(list(session.exchanges.values()), "g")
    assert len(rows) == 3 + 4
    assert {row["chosen"][0]["content"] for row in rows} == {session.exchanges[1].candidates[1].text, "my own"}
    assert all(row["group"] == "g" for row in rows)


def test_identical_and_empty_candidates_give_no_pair(make_session) -> None:
    session = make_session()
    session.generator = ScriptedGenerator(["same"])
    session.say("one")
    session.pick(1)
    assert preferences([session.last], "g") == []
    with pytest.raises(InputError, match=r"nothing to export: 1 decisions"):
        export_preferences([session.last], "g", session.path.with_name("prefs.jsonl"))


def test_a_later_pick_of_the_same_turn_replaces_the_pairs_that_contradict_it(make_session) -> None:
    session = make_session()
    session.say("one")
    first = [candidate.text for candidate in session.pick(2).candidates]
    session.say("two")  # from here on a new pick of turn 1 is a branch beside
    session.back(1)
    session.pick(3)
    rows = preferences(list(session.exchanges.values()), "g")
    found = {(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows}
    kept = {(first[1], first[0]), (first[1], first[3])}
    assert found == kept | {(first[2], first[i]) for i in (0, 1, 3)}


def test_hh_pairwise_reads_exported_preferences_without_rejections(make_session, tmp_path: Path) -> None:
    session = make_session()
    for line in ("one", "two", "three"):
        session.say(line)
        session.pick(3)
    counts = export_preferences(list(session.exchanges.values()), session.conversation_id, tmp_path / "prefs.jsonl")
    pairs, rejections = validate(read_records(str(tmp_path / "prefs.jsonl")))
    assert rejections == []
    assert len(pairs) == counts.pairs == 9
    assert pairs[0].conversation == session.exchanges[1].prompt
    assert pairs[0].chosen == session.exchanges[1].reply
    row = json.loads((tmp_path / "prefs.jsonl").read_text().splitlines()[0])
    assert row["group"] == session.conversation_id


def test_a_thought_is_set_apart_kept_and_exported_with_what_is_picked(make_session, tmp_path: Path) -> None:
    session, seen = make_session(), []
    marks = iter(["<think>a\nb</think>\n\nfour", "no thought", "c</think>five", "<think>never ends"] * 2)
    session.generator = ScriptedGenerator(lambda conversation, rng: (seen.append(conversation), next(marks))[1])
    said = session.say("2 + 2?")
    parts = sorted((candidate.thought, candidate.text) for candidate in said.candidates)
    assert parts == [("", "no thought"), ("a\nb", "four"), ("c", "five"), ("never ends", "")]
    four = next(i for i, candidate in enumerate(said.candidates, 1) if candidate.text == "four")
    session.pick(four)
    assert load(session.path).exchanges == session.exchanges
    session.say("sure?")
    assert seen[-1].turns[-2].text == "four", "the thought is in no later prompt"
    found = preferences([session.exchanges[1]], "g")
    assert found[0]["chosen"] == [{"role": "assistant", "content": "four", "reasoning_content": "a\nb"}]
    assert [row["rejected"][0].get("reasoning_content") for row in found].count("c") == 1

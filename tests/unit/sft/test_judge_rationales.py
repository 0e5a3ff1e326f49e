"""Pairs with reasons as a judge's answers: its own prompt in both orders, reasons about a place in their order."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from acting import TOKENIZER
from judge_server import comparing_judge

import sft.judging as judging
from lmgym.config import ColumnConfig, RowsConfig
from lmgym.data.records import Record
from lmgym.data.splitting import split_rows
from lmgym.errors import InputError
from lmgym.scoring.judge_settings import JUDGE_FILE
from lmgym.text import Conversation, Turn
from ppo.config import PPOConfig, RolloutConfig
from ppo.judging import judge_of_pairs, verdict_of
from sft.config import SftConfig
from sft.judging import save_settings, validate_rationales

ASKED = Conversation((Turn("user", "q"),), is_text=True)


def pair(number: int = 0, **more: object) -> Record:
    fields = {"prompt": "q", "chosen": f"good {number}", "rejected": "bad", "rationale": "It is good."}
    return Record("pairs.jsonl", number + 1, {**fields, **more})


def two(winner: str, why: str, number: int = 0) -> Record:
    fields = {"prompt": "q", "response_a": f"x{number}", "response_b": "y", "winner": winner, "reason": why}
    return Record("votes.jsonl", number + 1, fields)


def test_the_answer_to_each_order_is_the_reasons_and_the_letter_of_the_preferred_reply() -> None:
    chats, rejections = validate_rationales([pair()])
    assert rejections == []
    assert [chat.conversation.turns[1].text for chat in chats] == ["It is good.\n\n[[A]]", "It is good.\n\n[[B]]"]
    assert [verdict_of(chat.conversation.turns[1].text) for chat in chats] == ["A", "B"]
    assert {chat.outputs for chat in chats} == {(1,)}


def test_the_prompts_are_those_of_the_judge_that_compares_and_of_its_training(tmp_path: Path) -> None:
    chats, _ = validate_rationales([pair()])
    judge = comparing_judge(lambda a, b: 1.0, tmp_path)
    judge.verdicts.model.reasons = True  # type: ignore[misc]
    asked = [judge._asked(ASKED, replies).prompt for replies in (("good 0", "bad"), ("bad", "good 0"))]
    assert [chat.prompt for chat in chats] == asked
    rows = [dict(pair(i).fields) for i in range(12)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = RolloutConfig(prompts=str(tmp_path / "pairs.jsonl"), eval_size=0, policy_over="tokens")
    tasks = judge_of_pairs(PPOConfig("x", rollout=settings), TOKENIZER).tasks
    assert [task["prompt"] for task in tasks[:2]] == asked


def test_reasons_about_a_place_are_learned_in_the_order_of_their_row_alone() -> None:
    notes: list[str] = []
    rows = [two("A", "Response A is right.", 0), two("B", "Response A is wrong.", 1), two("B", "It is right.", 2)]
    chats, rejections = validate_rationales(rows, notes=notes)
    assert rejections == []
    assert [chat.conversation.turns[1].text[-5:] for chat in chats] == ["[[A]]", "[[B]]", "[[A]]", "[[B]]"]
    for chat, first in zip(chats[:2], ("x0", "x1"), strict=True):
        assert f">\n{first}\n</reply-A" in chat.prompt.turns[0].text
    assert notes[-1] == "2 of 3 reasons name a reply by its place: learned in one order"


def test_rows_that_do_not_say_which_reply_is_first_duplicates_and_rows_without_reasons_are_rejected() -> None:
    rows = [pair(0), pair(1, rationale="B is wrong."), pair(0), pair(2, rationale=None), pair(3, reason="Also.")]
    chats, rejections = validate_rationales(rows)
    assert len(chats) == 2
    found = [one.found for one in rejections]
    assert "does not say which one is first" in found[0]
    assert "the replies of line 1" in found[1]
    assert found[2] == "no reasons"
    assert "--rationale_column" in found[3]


def test_rows_without_such_a_column_are_refused_and_a_flag_names_another(tmp_path: Path) -> None:
    rows = [pair(i, rationale=None, why="It is good.") for i in range(2)]
    for row in rows:
        del row.fields["rationale"]
    with pytest.raises(InputError, match=r"holds no pairs with reasons.*--rationale_column"):
        validate_rationales(rows)
    assert len(validate_rationales(rows, columns=ColumnConfig(rationale_column="why"))[0]) == 4


@pytest.mark.parametrize("by", ["prompt", "first_message", "auto"])
def test_both_orders_and_all_pairs_of_a_prompt_are_on_one_side_of_a_split(by: str) -> None:
    rows = [pair(i, prompt=f"question {i // 2}") for i in range(40)]
    chats, _ = validate_rationales(rows)
    sides = split_rows(chats, None, by, (), 8, 0, "rows", "eval_dataset")
    asked = [{chat.about for chat in side} for side in (sides.train, sides.held_out)]
    assert len(sides.held_out) == 8
    assert not asked[0] & asked[1]


def test_the_folder_says_how_many_tokens_the_longest_reasons_need(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(judging, "load_tokenizer", lambda name: TOKENIZER)
    words = " ".join(["good"] * 100)
    rows = [{"prompt": f"q{i}", "chosen": "x", "rejected": "y", "rationale": words[: 5 * i]} for i in range(1, 101)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = SftConfig("x", data=RowsConfig(str(tmp_path / "pairs.jsonl")))
    (tmp_path / "run/model").mkdir(parents=True)
    save_settings(config, tmp_path)
    save_settings(replace(config, run=replace(config.run, dry_run=True)), tmp_path / "run")
    assert not list(tmp_path.rglob(JUDGE_FILE)), "neither without weights nor in a dry run"
    save_settings(config, tmp_path / "run")
    found = json.loads((tmp_path / "run/model" / JUDGE_FILE).read_text())["judge_tokens"]
    longest = len(TOKENIZER(f"{words}\n\n[[A]]").input_ids)
    assert found % 64 == 0
    assert 1.5 * longest <= found < 1.5 * longest + 64

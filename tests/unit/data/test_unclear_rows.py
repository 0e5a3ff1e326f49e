"""Rows that might be read in two ways or in none are refused or rejected with words."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from format_rows import (
    ARENA,
    CASES,
    HELPSTEER,
    SHP,
    SUMMARIES,
    Read,
    bot,
    prompts_of,
    read_one,
    records,
    refusal,
    scored,
    talk,
    user,
)

from lmgym.cli import score
from lmgym.config import ColumnConfig
from lmgym.data.formats import renamed
from lmgym.data.pairs import read_pair, validate
from lmgym.data.records import read_records
from lmgym.data.rows import read_rows
from lmgym.errors import InputError
from preferences import thumbs
from reward_models.kwise import validate_groups
from sft.conversations import read_chat, validate_chats, validate_chosen

CODE = {"instruction": "Sort.", "input": "[2, 1]", "output": "[1, 2]", "prompt": "Below is... ### Output: [1, 2]"}
STAGES = (validate, validate_chats, validate_chosen, validate_groups, thumbs.validate)


TWO_WAYS: list[tuple[Read, dict[str, Any], str]] = [
    (validate_chats, CODE, "instruction: either prompt, instruction may be the prompt; needed: --prompt_colum"),
    (validate_chats, {"question": "a", "query": "b", "answer": "c"}, "query: either question, query may be the p"),
    (validate_chats, {"instruction": "Do.", "question": "2+2?", "output": "4"}, "question: either instruction, questi"),
    (validate_chats, {"question": "a", "solution": "b", "answer": "c"}, "holds no conversations: found the columns"),
    (validate_chats, HELPSTEER, "holds no conversations: found the columns coherence, complexity, correctness, helpf"),
    (validate_chats, {"prompt": "a", "response": "b", "history": "x"}, "history: 'x'; needed: a list of [instruction"),
    (validate_chats, {"prompt": "a", "response": "b", "history": [["x"]]}, "history: a list of 1 item; needed: a list"),
    (validate_chats, {"instruction": "a", "instances": [{"input": "", "output": "b"}] * 2},
     "instances: a list of 2 items; needed: one, an object with input and output"),
    (validate_chats, {"mask": "Assistant", "conversations": [user("a"), bot("b")]}, "mask: 'Assistant' is not to be l"),
    (validate_chats, {"system": "x", "conversations": [{"from": "system", "value": "y"}, user("a"), bot("b")]},
     "conversations: a system message in messages, and another one in the column system; needed: one"),
    (validate_chats, {"conversation": [{"input": "", "output": "b"}]}, "conversation: no turn of the bot that answers"),
    (validate_chats, {"conversation": [["a", "b"]]}, "conversation: message 1 is a list of 2 items; needed: an object"),
    (validate_chats, {"conversations": "a"}, "conversations: 'a'; needed: a list of messages"),
    (validate_chats, {"dialogue": ["a", "b"]}, "holds no conversations: found the columns dialogue; needed: messages"),
    (validate, {"prompt": "a", "response_a": "b", "response_b": "c"}, "holds no pairs: found the columns prompt, resp"),
    (validate, {**SHP, "labels": 2}, "labels: 2; needed: one of 1, 0"),
    (validate, {**ARENA, "winner": "model_c"}, "winner: 'model_c', beside conversation_a, conversation_b"),
    (validate, {**ARENA, "winner": None}, "winner: missing, beside conversation_a, conversation_b; needed"),
    (validate, {"instruction": "a", "output_1": "b", "output_2": "c", "preference": 3}, "preference: 3;"),
    (validate, {"question": "a", "answer_0": "b", "answer_1": "c", "score_0": 1, "score_1": None}, "score_1: None; ne"),
    (validate, {**SUMMARIES, "choice": 2}, "choice: 2; needed: 0 or 1"),
    (validate, {**SUMMARIES, "summaries": [{"text": "a"}]}, "summaries: a list of 1 item; needed: two objects with a "),
    (validate, {**SUMMARIES, "info": {"post": " "}}, "info: has neither a post nor an article"),
    (validate, {"prompt": {"text": "a", "role": "prompter", "replies": []}}, "holds no pairs"),
    (validate, {"prompt": "a", "answers": [{"answer": "b", "rank": 1}, {"answer": None, "rank": 2}]},
     "answers: None; needed: text"),
    (validate_chats, {"instruction": "", "output": "a"}, "instruction: missing or empty"),
    (validate_chats, {"instruction": "q", "input": ["x"], "output": "a"}, "input: a list of 1 item"),
    (validate_chats, {"instruction": "q", "output": " "}, "output: an empty output"),
    (validate_chats, {"conversations": [user("a"), {"from": "pet", "value": "b"}]}, "conversations: message 2 has the "
     "role 'pet'"),
    (validate_chats, {"conversations": [user("a"), {"from": "function_call", "value": "{"}]}, "not JSON"),
    (validate_chats, {"conversations": [user("a"), bot("b")], "tools": "x"}, "tools: 'x'; needed: a list of"),
    (validate, {"instruction": "q", "completions": [{"response": "a", "overall_score": 1}]}, "1 of them; needed: at"),
    (validate, {"instruction": "q", "completions": [{"response": "a", "overall_score": 1}, {"response": "b"}]},
     "completions: a completion without a score; needed: a number as overall_score or fine-grained_score of each"),
    (validate, {"instruction": "q", "completions": [{"response": None}]}, "1 has no response"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "row", "found"), TWO_WAYS, ids=[found[:40] for _, _, found in TWO_WAYS])
def test_a_row_that_might_be_read_in_two_ways_or_none_is_refused_with_words(read: Read, row, found: str) -> None:
    assert found in refusal(read, row)


def test_a_file_of_unknown_columns_is_refused_with_those_found_and_the_formats_that_are_known(tmp_path: Path) -> None:
    row = {"good": "a", "bad": "b"}
    for reader, noun, needed in (
        (validate, "pairs", "chosen and rejected, .*UltraFeedback's instruction and completions"),
        (validate_groups, "groups", "prompt, replies .*UltraFeedback's instruction and completions"),
        (validate_chats, "conversations", "messages; or prompt and completion; .*; or another format of docs/"),
    ):
        with pytest.raises(
            InputError, match=f"rows.jsonl holds no {noun}: found the columns bad, good; needed: {needed}"
        ):
            reader(records(row))
    with pytest.raises(InputError, match="holds no prompts: found the columns bad, good; needed: one of prompt"):
        prompts_of(tmp_path, row)
    with pytest.raises(InputError, match=r"^b\.jsonl holds no pairs: found the columns bad, good"):
        validate(records({"prompt": "q", "chosen": "a", "rejected": "b"}), records(row, file="b.jsonl"))


def test_chosen_and_rejected_chats_repeat_a_prompt_whatever_it_looks_like(tmp_path: Path) -> None:
    text = "Quote:\nUser: hi\nBot: ho"
    sides = {"chosen": [user(text), bot("a")], "rejected": [user(text), bot("b")]}
    row = {"prompt": text, **sides, "messages": sides["chosen"], "score_chosen": 8.0}
    [pair], rejections = validate(records(row))
    assert (pair.conversation, pair.chosen, pair.rejected, rejections) == (talk(text), "a", "b", [])
    [chat], _ = validate_chats(records(row))
    assert prompts_of(tmp_path, row)[0][0]["prompt"] == pair.conversation == chat.prompt
    system = {"role": "system", "content": "s"}
    row = {"prompt": text, **{side: [system, *messages] for side, messages in sides.items()}}
    assert validate(records(row))[0][0].conversation == talk(text, persona="s")


def test_rows_read_from_parquet_are_those_read_from_json(tmp_path: Path) -> None:
    from datasets import Dataset

    completions = [
        {"response": "a", "overall_score": 1, "fine-grained_score": 1.0},
        {"response": "b", "overall_score": 2},
    ]
    rows = [{"instruction": f"sea {i}", "completions": completions} for i in range(3)]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"))
    of_parquet, of_json = (validate(found)[0] for found in (read_records(str(tmp_path / "a.parquet")), records(*rows)))
    assert [(pair.conversation, pair.answers) for pair in of_parquet] == [
        (pair.conversation, pair.answers) for pair in of_json
    ]
    assert len(of_json) == 3


TIES = [
    {"instruction": "a", "input": "", "output_1": "b", "output_2": "c", "preference": 0},
    {"prompt": "a", "response_a": "b", "response_b": "c", "winner": "tie"},
    {"prompt": "a", "response_1": "b", "response_2": "c", "preference_strength": 0},
    {"question": {"full_text": "a"}, "answer_0": "b", "answer_1": "c", "score_0": 0.0, "score_1": 0.0},
]


@pytest.mark.parametrize("row", TIES, ids=lambda row: " ".join(row))
def test_a_tie_is_rejected_as_tied_and_is_a_prompt_all_the_same(row: dict[str, Any], tmp_path: Path) -> None:
    for read in (validate, validate_chosen, thumbs.validate):
        _, [rejection] = read(records(row))
        assert (rejection.reason, rejection.found[:5]) == ("tied", "a tie")
        assert rejection.field in row
    _, [rejection] = validate_groups(records(row))
    assert (rejection.reason, rejection.found[:18]) == ("with too many tied ranks", "all 2 replies tied")
    assert rejection.field in row
    [task], _ = prompts_of(tmp_path, row)
    assert task["prompt"] == talk("a")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 1]},
            "ids of tokens .* needed: the texts or mes",
        ),
        ({"prompt_input_ids": [1], "chosen_input_ids": [2], "rejected_input_ids": [3]}, "ids of tokens"),
        (
            {"segments": [{"label": False, "text": "<s>[INST] a"}, {"label": True, "text": " b</s>"}]},
            "segments of rend",
        ),
        (
            {"message_id": "1", "parent_id": None, "text": "a", "role": "prompter", "lang": "en"},
            "single messages of Op",
        ),
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}, "stepwise rows"),
    ],
)
def test_rows_that_no_stage_can_read_are_refused_by_name(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    for read in STAGES:
        with pytest.raises(InputError, match=rf"^rows\.jsonl holds {words}"):
            read(records(row))
    with pytest.raises(InputError, match=words):
        prompts_of(tmp_path, row)


def test_ids_beside_a_text_are_named_and_the_text_is_read() -> None:
    notes: list[str] = []
    [chat], _ = validate_chats(records({"text": "Once.", "input_ids": [1, 2]}), notes=notes)
    assert chat.text == "Once."
    assert notes == ["rows.jsonl: 1 rows; read: text (plain text); not read: input_ids (1)"]


def test_flags_choose_between_columns_that_might_be_the_prompt_or_the_reply() -> None:
    columns = ColumnConfig(prompt_column="prompt", context_column="unused")
    [chat], _ = validate_chats(records(CODE | {"prompt": "Sort 2, 1."}), columns=columns)
    assert chat.conversation == talk("Sort 2, 1.", "[1, 2]")
    row = {"question": "2+2?", "solution": "2+2=4", "answer": "4"}
    for column, reply in (("solution", "2+2=4"), ("answer", "4")):
        notes: list[str] = []
        [chat], _ = validate_chats(records(row), columns=ColumnConfig(reply_column=column), notes=notes)
        assert chat.conversation == talk("2+2?", reply)
        assert f"{column} as completion (plain text); not read: {({*row} - {'question', column}).pop()} (1)" in notes[0]
    [chat], _ = validate_chats(records(HELPSTEER), columns=ColumnConfig(reply_column="response"))
    assert chat.conversation == talk("What is a fjord?", "A car.")
    [row_scored] = scored(HELPSTEER, ColumnConfig(reply_column="response"))
    assert row_scored.replies == ("A car.",)
    alpaca = {"instruction": "Sort.", "input": "2, 1", "text": "1, 2"}
    [chat], _ = validate_chats(records(alpaca), columns=ColumnConfig(reply_column="text"))
    assert chat.conversation == talk("Sort.\n\n2, 1", "1, 2")


def test_a_conversation_beside_a_prompt_or_chosen_replies_is_not_what_is_read() -> None:
    talked = [{"input": "x", "output": "y"}]
    row = {"conversation": talked, "chosen": [user("a"), bot("b")], "rejected": [user("a"), bot("c")]}
    [pair], _ = validate(records(row))
    assert (pair.conversation, pair.chosen) == (talk("a"), "b")
    [chat], _ = validate_chats(records({"conversation": talked, "prompt": "a", "completion": "b"}))
    assert chat.conversation == talk("a", "b")
    [pair], _ = validate(records({"conversation": talked, "prompt": "a", "chosen": "b", "rejected": "c"}))
    assert pair.conversation == talk("a")


def test_columns_under_our_names_come_before_those_of_other_formats(tmp_path: Path) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    choice = {"output_1": "x", "output_2": "y", "preference": 1, "answer": "z"}
    webgpt = {"answer_0": "x", "answer_1": "y", "score_0": 0, "score_1": 1}
    named = {"chosen_response": "x", "rejected_response": "y"}
    for others in (choice, webgpt, named):
        [found], _ = validate(records(pair | others))
        assert (found.conversation, found.chosen, found.rejected) == (talk("a"), "b", "c")
        assert "holds no conversations" in refusal(validate_chats, pair | others)
    log = {"input_text": "User: a\nBot:", "output_text": "b", "question": "x", "answer": "y"}
    assert [chat.conversation for chat in validate_chats(records(log))[0]] == [talk("a", "b")]
    whole = {"messages": [user("a"), bot("b")], "question": "x", "answer": "y"}
    assert [chat.conversation for chat in validate_chats(records(whole))[0]] == [talk("a", "b")]
    for row in (log, whole):
        assert prompts_of(tmp_path, row)[0][0]["prompt"] == talk("a")


def test_two_columns_that_may_be_the_reply_are_no_hindrance_to_ppo(tmp_path: Path) -> None:
    [task], _ = prompts_of(tmp_path, row := {"question": "2+2?", "solution": "2+2=4", "answer": "4"})
    assert task == {"prompt": talk("2+2?"), **row}


def test_the_refusal_of_rows_whose_reply_is_not_clear_says_what_to_do() -> None:
    both = {"prompt": "2+2?", "solution": "2+2=4", "answer": "4"}
    assert refusal(validate_chats, both).endswith(
        "; either answer, solution may be the reply: --reply_column says which"
    )
    keep = "keep the good ones by their helpfulness, and add --reply_column response"
    assert refusal(validate_chats, HELPSTEER).endswith(f"; these replies are good and bad ones: {keep}")
    assert "may be the reply" not in refusal(validate_chats, {"prompt": "2+2?"})


KNOWN = sorted({name for case in CASES for name in case.row} | {"mask", "instances", "segments", "input_ids"})
JUNK = [
    None, "", "a", 5, -1, 1.5, True, [], {}, [None], ["a"], [["a", "b"]], [5], [{}], {"a": 1}, {"messages": 5},
    {"text": 5, "replies": 5}, {"text": "a", "replies": [5, {"text": "b", "rank": "x"}]}, {"full_text": 5},
    [{"from": 5, "value": []}], [{"role": {}, "content": {}}], [{"from": "function_call", "value": "{"}],
    [{"answer": [], "rank": {}}], [{"human": 5, "assistant": {}}], '[{"role": 5}]', [{"label": 5, "text": 5}],
]  # fmt: skip


def test_junk_in_known_columns_is_rejected_with_words_and_stops_nothing() -> None:
    rng = random.Random(0)
    rows = [{name: rng.choice(JUNK) for name in rng.sample(KNOWN, rng.randint(1, 8))} for _ in range(3000)]
    rows += [{**rng.choice(CASES).row, rng.choice(KNOWN): rng.choice(JUNK)} for _ in range(3000)]
    for read in (read_pair, read_chat, thumbs.read_thumbs, score.read_row):
        found, rejections = read_rows(map(renamed, records(*rows)), read)  # an error of another kind is "unreadable"
        assert [str(one) for one in rejections if one.reason == "unreadable"] == []
        assert found
        assert rejections
        assert len(found) + len(rejections) == len(rows)
    for row in rows[::20]:
        for validating in STAGES:
            read_one(validating, row)  # raises nothing but InputError


LOG = "Explain this log:\nUser: alice logged in\nUser: bob logged out"


def test_a_text_with_lines_that_look_like_marks_stays_a_text(tmp_path: Path) -> None:
    notes: list[str] = []
    [pair], _ = validate(records({"prompt": LOG, "chosen": "Two users.", "rejected": "No."}), notes=notes)
    assert pair.conversation == talk(LOG)
    assert notes == ["rows.jsonl: 1 rows; read: prompt (plain text), chosen (plain text), rejected (plain text)"]
    assert prompts_of(tmp_path, {"prompt": LOG})[0][0]["prompt"] == talk(LOG)


@pytest.mark.parametrize(
    "text",
    [
        "<s>[INST] Hi [/INST]",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
        "<|user|>\nHi</s>\n<|assistant|>\n",
    ],
)
def test_text_that_a_template_has_rendered_is_refused_unless_a_flag_calls_it_text(text: str, tmp_path: Path) -> None:
    row = {"prompt": text, "chosen": "a", "rejected": "b"}
    found = refusal(validate, row)
    assert "rows.jsonl: column prompt holds text that a chat template has rendered (line 1: " in found
    assert found.endswith("which would be rendered again; needed: messages or the bare texts, or --prompt_format text "
                          "to take it as plain text")  # fmt: skip
    [pair], _ = validate(records(row), columns=ColumnConfig(prompt_format="text"))
    assert pair.conversation == talk(text.strip())
    with pytest.raises(InputError, match="which would be rendered again"):
        prompts_of(tmp_path, {"prompt": text})


HH = "\n\nHuman: {}\n\nAssistant:"
PLAIN_AND_HH = [{"prompt": HH.format(i) if i % 2 else f"Plain {i}", "completion": "a"} for i in range(6)]


def test_a_mixture_of_forms_is_refused_with_an_example_of_each_and_flags_overrule_it(tmp_path: Path) -> None:
    found = refusal(validate_chats, *PLAIN_AND_HH)
    assert found == (
        "rows.jsonl: column prompt mixes plain text (3, line 1: 'Plain 0') and transcripts (3, line 2: "
        r"'\n\nHuman: 1\n\nAssistant:'); needed: one form in a data set, or --prompt_format text, transcript or "
        "messages, which says what all of them are"
    )
    as_text, _ = validate_chats(records(*PLAIN_AND_HH), columns=ColumnConfig(prompt_format="text"))
    assert [chat.prompt for chat in as_text[:2]] == [talk("Plain 0"), talk(HH.format(1).strip())]
    as_marked, _ = validate_chats(records(*PLAIN_AND_HH), columns=ColumnConfig(prompt_format="transcript"))
    assert [chat.prompt for chat in as_marked[:2]] == [talk("Plain 0"), talk("1")]


def test_mixed_replies_are_refused_and_reply_format_overrules_them() -> None:
    cell = json.dumps([bot("a")])
    rows = [{"prompt": f"q {i}", "chosen": cell if i % 2 else "a", "rejected": "b"} for i in range(8)]
    mixed = r"column chosen mixes plain text \(12, line 1: '[ab]'\) and JSON of messages \(4, line 2: '.*--reply_format"
    assert re.search(mixed, refusal(validate, *rows))
    pairs, _ = validate(records(*rows), columns=ColumnConfig(reply_format="messages"))
    assert [pair.chosen for pair in pairs] == ["a"] * 8
    pairs, _ = validate(records(*rows), columns=ColumnConfig(reply_format="text"))
    assert [pair.chosen for pair in pairs] == ["a", cell] * 4


def test_a_flag_overrules_what_one_form_looks_like() -> None:
    row = {"prompt": HH.format("Hi"), "completion": "Yo."}
    assert validate_chats(records(row))[0][0].conversation == talk("Hi", "Yo.")
    [chat], _ = validate_chats(records(row), columns=ColumnConfig(prompt_format="text"))
    assert chat.conversation == talk(HH.format("Hi").strip(), "Yo.")
    row = {"prompt": "Hi", "completion": "\n\nAssistant: Yo."}
    assert validate_chats(records(row))[0][0].conversation == talk("Hi", "Yo.")
    [chat], _ = validate_chats(records(row), columns=ColumnConfig(reply_format="text"))
    assert chat.conversation == talk("Hi", "Assistant: Yo.")

"""Parts of a row: system messages, thoughts, passages, media, weights of turns, tool calls, columns that flags name."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_texts import character_tokenizer
from format_rows import PASSAGE, Read, bot, prompts_of, records, refusal, scored, talk, user

from lmgym.config import ColumnConfig
from lmgym.data.pairs import validate
from lmgym.data.prompts import read_prompts
from lmgym.data.records import read_records
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn
from ppo.config import RolloutConfig
from preferences import thumbs
from preferences.examples import tokenize_pairs
from reward_models.kwise import validate_groups
from sft.conversations import validate_chats, validate_chosen
from sft.tokenization import tokenize_chats

# fields that nobody reads: rows.md, kind 1


def reasoned(thought: str, text: str) -> Turn:
    return Turn("bot", text, json.dumps({"reasoning_content": thought}))


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_beside_the_content_is_part_of_the_turn(name: str) -> None:
    messages = [user("2+1?"), bot("3", **{name: "count up"})]
    [chat], _ = validate_chats(records({"messages": messages}))
    assert chat.conversation.turns == (Turn("user", "2+1?"), reasoned("count up", "3"))
    [pair], _ = validate(records({"chosen": messages, "rejected": [user("2+1?"), bot("4")]}))
    assert (pair.chosen, pair.rejected) == (reasoned("count up", "3"), "4")


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_a_system_column_is_the_system_message_at_every_stage(name: str, tmp_path: Path) -> None:
    asks = talk("q", persona="Be a pirate.")
    pair = {name: "Be a pirate.", "prompt": "q", "chosen": "a", "rejected": "b"}
    single = {name: "Be a pirate.", "prompt": "q", "completion": "a", "label": True}
    whole = {name: "Be a pirate.", "messages": [user("q"), bot("a")]}
    group = {name: "Be a pirate.", "prompt": "q", "replies": ["a", "b"], "ranks": [1, 2]}
    assert validate(records(pair))[0][0].conversation == asks
    assert [chat.prompt for chat in validate_chosen(records(pair))[0]] == [asks]
    for row in (single, whole):
        assert [chat.prompt for chat in validate_chats(records(row))[0]] == [asks]
    assert [thumb.conversation for thumb in thumbs.validate(records(single))[0]] == [asks]
    assert validate_groups(records(group))[0][0].conversation == asks
    for row in (pair, single, whole, group):
        assert prompts_of(tmp_path, row)[0][0]["prompt"] == asks
        assert scored(row)[0].conversation == asks
    other = whole | {"messages": [{"role": "system", "content": "Be kind."}, *whole["messages"]]}  # type: ignore[misc]
    assert "another one in the column system; needed: one" in refusal(validate_chats, other)


def test_a_prompt_that_stays_a_text_keeps_its_system_message_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "q", "system": "Be a pirate."}) + "\n")
    found = read_prompts(RolloutConfig(str(path), eval_size=0), 0, as_text=True)
    [line] = found.reading
    assert "read: system" not in line
    assert "system" not in line.partition("; to the reward function")[0], "nothing reads it"


PASSAGES = [
    {"instruction": "Summarise.", "context": PASSAGE, "response": "A tower."},
    {"prompt": "Summarise.", "context": PASSAGE, "completion": "A tower."},
    {"prompt": "Summarise.", "passage": PASSAGE, "response": "A tower."},
    {"question": "Summarise.", "document": PASSAGE, "answer": "A tower."},
]


@pytest.mark.parametrize("row", PASSAGES, ids=lambda row: " ".join(row))
def test_a_passage_is_put_below_the_prompt_or_left_out_only_where_a_flag_says_so(row: dict[str, Any]) -> None:
    name = [*row][1]
    found = refusal(validate_chats, row)
    assert f"rows.jsonl: nothing reads the column {name} (1 rows, line 1: '{PASSAGE}')" in found
    assert f"needed: --context_column {name}, which puts it below the prompt, or --ignore_columns {name}" in found
    [chat], _ = validate_chats(records(row), columns=ColumnConfig(context_column=name))
    assert chat.conversation == talk(f"Summarise.\n\n{PASSAGE}", "A tower.")
    for columns in (ColumnConfig(context_column="unused"), ColumnConfig(ignore_columns=f" {name} ")):
        [chat], _ = validate_chats(records(row), columns=columns)
        assert chat.conversation == talk("Summarise.", "A tower.")


def test_where_no_column_is_the_prompt_the_message_says_how_to_name_it_in_words_for_a_shell() -> None:
    examples = Path(__file__).parents[3] / "examples/data/helpful_pairs.jsonl"
    rows = [
        {"Customer asked": row["prompt"], "answer_a": row["chosen"], "answer_b": row["rejected"], "better": "a"}
        for row in map(json.loads, examples.read_text().splitlines()[:60])
    ]
    found = refusal(validate, *rows)
    assert "nothing reads the column 'Customer asked'" in found
    assert "needed: --prompt_column 'Customer asked', if it is that, --context_column 'Customer asked', which" in found


def test_a_passage_that_a_flag_names_is_put_below_a_prompt_that_stays_a_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "Summarise.", "context": PASSAGE}) + "\n")
    columns = ColumnConfig(context_column="context")
    found = read_prompts(RolloutConfig(str(path), eval_size=0), 0, as_text=True, columns=columns)
    assert [task["prompt"] for task in found.train] == [f"Summarise.\n\n{PASSAGE}"]
    assert "to the reward function" not in found.reading[0]


def test_the_input_of_an_instruction_that_a_flag_names_is_not_left_out_silently() -> None:
    row = {"instruction": "Translate.", "input": "the cat", "output": "le chat"}
    columns = ColumnConfig(prompt_column="instruction", reply_column="output")
    assert "--context_column input" in refusal(validate_chats, row, columns=columns)
    assert "--context_column input" in refusal(validate_chats, {"prompt": "Translate.", **row} | {"instruction": ""})


@pytest.mark.parametrize("name", ["image", "images", "audio", "audios", "video", "videos"])
def test_media_are_rejected(name: str) -> None:
    row = {"messages": [user("<image>What is it?"), bot("A cat.")], name: ["a.png"]}
    notes: list[str] = []
    [chat], [rejection] = validate_chats(records(row, {"messages": [user("a"), bot("b")], name: []}), notes=notes)
    assert (chat.line, rejection.reason) == (2, "with images, audio or video")
    assert rejection.found == "holds a list of 1 item, which no stage reads; needed: rows of text alone"
    assert notes == [f"rows.jsonl: 2 rows; read: messages; not read: {name} (1)"]
    assert "which no stage reads" in refusal(validate, {"prompt": "a", "chosen": "b", "rejected": "c", name: "a.png"})


@pytest.mark.parametrize("off", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"loss": False}], ids=str)
def test_messages_of_weight_0_are_context(off: dict[str, Any]) -> None:
    later = {"messages": [user("a"), bot("b", **off), user("c"), bot("d")]}
    last = {"messages": [user("a"), bot("b"), user("c"), bot("d", **off)]}
    none = {"messages": [user("a"), bot("b", **off)]}
    sharegpt = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", **off},
                                  {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}  # fmt: skip
    chats, [rejection] = validate_chats(records(later, last, none))
    assert [(chat.conversation, chat.outputs) for chat in chats] == [
        (talk("a", "b", "c", "d"), (3,)),
        (talk("a", "b"), (1,)),
    ]
    assert (rejection.found, rejection.reason) == (
        "every turn of the bot has weight 0; needed: at least one", "of weight 0",
    )  # fmt: skip
    assert validate_chats(records(sharegpt))[0][0].outputs == (3,)
    assert "has the weight 0.5; needed: 0 or 1" in refusal(
        validate_chats, {"messages": [user("a"), bot("b", weight=0.5)]}
    )


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [user("a"), bot("b")], "label": False},
        {"instruction": "a", "input": "", "output": "b", "kto_tag": False},
        {"conversations": [user("a"), bot("b")], "kto_tag": "false"},
        {"prompt": "a", "response": "b", "label": False},
    ],
)
def test_a_reply_that_was_not_liked_is_not_learned(row: dict[str, Any]) -> None:
    _, [rejection] = validate_chats(records(row))
    said = "'false'" if "false" in row.values() else "False"
    assert (rejection.found, rejection.reason) == (
        f"{said}, which says that the reply was disliked; needed: a reply to learn from", "with a label that is false",
    )  # fmt: skip


STRIPPING = (
    "{%- for m in messages -%}{{ m.role + ': ' + m.content.split('</think>')[-1].strip() + '\n' }}{%- endfor -%}"
    "{{ 'assistant: ' if add_generation_prompt else '' }}"
)


def test_a_thought_that_the_template_removes_is_said_and_not_learned_as_if_it_were_there() -> None:
    tokenizer = character_tokenizer(template=STRIPPING)
    said = bot("<think>\ntwo\n</think>\n\n4")
    chats, _ = validate_chats(records({"messages": [user("2+2?"), said]}))
    examples, [rejection] = tokenize_chats(chats, tokenizer, 200)
    assert examples == []
    assert rejection.found.startswith("the chat template removes the text between <think> and </think>; needed: a te")
    other = bot("<think>\nthree\n</think>\n\n4")
    pairs, _ = validate(records({"chosen": [user("2+2?"), said], "rejected": [user("2+2?"), other]}))
    examples, [rejection] = tokenize_pairs(pairs, tokenizer, 200)
    assert examples == []
    assert "<think>" in rejection.found


# one string, several guesses: rows.md, kind 2


def test_a_csv_file_with_json_of_messages_is_read_as_messages(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "chosen", "rejected"])
        writer.writeheader()
        for i in range(3):
            sides = {"chosen": json.dumps([bot(f"yes {i}")]), "rejected": json.dumps([bot("no")])}
            writer.writerow({"prompt": json.dumps([user(f"q {i}")]), **sides})
    notes: list[str] = []
    pairs, rejections = validate(read_records(str(tmp_path / "a.csv")), notes=notes)
    assert rejections == []
    assert [(pair.conversation, pair.chosen) for pair in pairs] == [(talk(f"q {i}"), f"yes {i}") for i in range(3)]
    forms = ", ".join(f"{name} (JSON of messages)" for name in ("prompt", "chosen", "rejected"))
    assert notes == [f"a.csv: 3 rows; read: {forms}"]


# falsy taken for absent: rows.md, kind 4


def calls(arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    return {
        "messages": [user("Time?"), bot(None, tool_calls=[call]), {"role": "tool", "content": "Noon"}, bot("Noon.")]
    }


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, {}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        ({"zone": "UTC", "other": None}, {"zone": "UTC"}),  # as Parquet fills objects up
        ('{"zone": null, "hours": 0}', {"zone": None, "hours": 0}),
        ({"hours": 0, "short": False, "zone": ""}, {"hours": 0, "short": False, "zone": ""}),
    ],
)
def test_empty_arguments_are_arguments_and_a_null_in_json_is_kept(given: Any, read: dict[str, Any]) -> None:
    [chat], rejections = validate_chats(records(calls(given)))
    assert rejections == []
    [call] = json.loads(chat.conversation.turns[1].extra)["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": read}
    assert chat.outputs == (1, 3)


# rows and files that were not read at all


def test_two_turns_of_the_bot_in_a_row_are_rejected_with_words() -> None:
    found = refusal(validate_chats, {"messages": [user("a"), bot("b"), bot("c")]})
    assert found == "messages: two turns of the bot in a row, turns 2 and 3; needed: a user's turn between"


# the line on what is read, and the flags that name columns


def test_the_line_counts_columns_and_keys_of_messages_that_are_not_read() -> None:
    messages = [user("a", timestamp=3), bot("b", timestamp=4, annotations=[])]
    rows = [{"messages": messages, "id": i, "source": "x" if i else ""} for i in range(3)]
    notes: list[str] = []
    validate_chats(records(*rows), notes=notes)
    assert notes == ["rows.jsonl: 3 rows; read: messages; not read: id (3), source (2), messages[].timestamp (6)"]


def test_flags_name_columns_of_each_data_set_and_the_line_says_as_what() -> None:
    first = records({"ask": "Hi", "good": "Yo.", "bad": "No."}, file="a.jsonl")
    second = records({"prompt": "Ho", "chosen": "Hm.", "rejected": "No."}, file="b.jsonl")
    notes: list[str] = []
    names = ColumnConfig(prompt_column="ask,", chosen_column="good,", rejected_column="bad,")
    pairs, _ = validate(first, second, columns=names, notes=notes)
    assert [(pair.conversation, pair.chosen, pair.rejected) for pair in pairs] == [
        (talk("Hi"), "Yo.", "No."),
        (talk("Ho"), "Hm.", "No."),
    ]
    assert notes == [
        "a.jsonl: 1 rows; read: ask as prompt (plain text), good as chosen (plain text), bad as rejected (plain text)",
        "b.jsonl: 1 rows; read: prompt (plain text), chosen (plain text), rejected (plain text)",
    ]
    with pytest.raises(InputError, match="--prompt_column 'ask,x,y' names 3 columns for 2 data sets; needed: one for"):
        validate(first, second, columns=replace(names, prompt_column="ask,x,y"))
    with pytest.raises(InputError, match=r"^b\.jsonl has no column 'good'; found: chosen, prompt, rejected"):
        validate(first, second, columns=replace(names, chosen_column="good"))


NAMED: list[tuple[Read, dict[str, Any], dict[str, str], Conversation]] = [
    (validate_chats, {"talk": [user("a"), bot("b")]}, {"messages_column": "talk"}, talk("a", "b")),
    (validate_chats, {"talk": "User: a\nBot: b"}, {"messages_column": "talk"}, talk("a", "b")),
    (validate_chats, {"ask": "a", "said": "b"}, {"prompt_column": "ask", "reply_column": "said"}, talk("a", "b")),
    (validate_chats, {"prompt": "a", "response": "b", "who": "Kind."}, {"system_column": "who"},
     talk("a", "b", persona="Kind.")),
    (validate_chats, {"query": "a", "response": "b", "about": "c"}, {"context_column": "about"}, talk("a\n\nc", "b")),
    (validate, {"q": "a", "good": "b", "bad": "c"},
     {"prompt_column": "q", "chosen_column": "good", "rejected_column": "bad"}, talk("a")),
    (thumbs.validate, {"prompt": "a", "response": "b", "up": 1}, {"label_column": "up"}, talk("a")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "row", "columns", "expected"), NAMED, ids=[" ".join(names) for _, _, names, _ in NAMED]
)
def test_each_flag_names_its_column(read: Read, row, columns: dict[str, str], expected: Conversation) -> None:
    [found], rejections = read(records(row), columns=ColumnConfig(**columns))  # type: ignore[arg-type]
    assert rejections == []
    assert found.conversation == expected


def test_a_fault_names_the_column_that_a_flag_named_in_a_row_of_another_format() -> None:
    columns = ColumnConfig(label_column="up")
    row = {"prompt": "a", "response": "b", "up": 1}
    _, [faulty, empty] = thumbs.validate(records(row, row | {"up": "x"}, row | {"response": ""}), columns=columns)
    assert (faulty.field, faulty.found[:30]) == ("up", "'x'; needed: true or false, 1 ")
    assert (empty.field, empty.found) == ("response", "empty")


def test_a_few_messages_among_plain_texts_are_rejected_and_never_learned_as_text() -> None:
    for cell in (json.dumps([bot("a")]), '[{"role": "assistant", "content": "a'):
        rows = [{"prompt": f"q {i}", "completion": cell if i == 5 else "a"} for i in range(30)]
        chats, [rejection] = validate_chats(records(*rows))
        assert len(chats) == 29
        assert rejection.found.startswith("messages in a column of plain text: '[{")

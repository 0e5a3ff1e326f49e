"""Files as tools and spreadsheets write them: encodings, cells, names, notations of lists, marks, repeated prompts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmgym.config import ColumnConfig
from lmgym.data.mixing import DataSet
from lmgym.data.pairs import Pair
from lmgym.data.pairs import validate as validate_pairs
from lmgym.data.records import Record, read_records
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, render
from sft.conversations import validate_chats

NUMBERS = range(10)
ASKED = [f"What is {i} and {i}?" for i in NUMBERS]
RIGHT, WRONG = [f"It is {2 * i}." for i in NUMBERS], [f"No idea of {i}." for i in NUMBERS]
PAIRS = list(zip(ASKED, RIGHT, WRONG, strict=True))


def rows(**columns: Sequence[Any]) -> list[Record]:
    return [
        Record("rows.jsonl", i, dict(zip(columns, values, strict=True)))
        for i, values in enumerate(zip(*columns.values(), strict=True), 1)
    ]


def pairs_of(source: str | Path | list[Record], **settings: Any) -> tuple[list[tuple[str, str, str]], str]:
    """(question, chosen, rejected) of each pair, and the line on what was read."""
    notes: list[str] = []
    given = source if isinstance(source, list) else DataSet(str(source), "train")
    found, rejections = validate_pairs(given, notes=notes, **settings)
    assert not rejections
    return [_words(pair) for pair in found], notes[0]


def _words(pair: Pair) -> tuple[str, str, str]:
    [turn] = pair.conversation.turns
    return turn.text, str(pair.chosen), str(pair.rejected)


def table(delimiter: str, header: str = "prompt chosen rejected") -> str:
    lines = [header.split(), *PAIRS]
    return "".join(delimiter.join(cells) + "\r\n" for cells in lines)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(("delimiter", "said"), [(",", ""), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_tables_of_spreadsheets_are_read_and_the_line_says_how(
    encoding: str, delimiter: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(table(delimiter).encode(encoding))
    found, note = pairs_of(path)
    assert found == PAIRS
    assert (f"cells parted by {said}" in note) == bool(said)
    assert ("text in UTF" in note) == (not encoding.startswith("utf-8"))


def test_text_with_semicolons_in_a_table_of_commas_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,chosen,rejected\na;b;c,d;e,f;g;h\nq;r,s,t;u;v\n")
    assert [record.fields for record in read_records(str(path))] == [
        {"prompt": "a;b;c", "chosen": "d;e", "rejected": "f;g;h"},
        {"prompt": "q;r", "chosen": "s", "rejected": "t;u;v"},
    ]  # fmt: skip


def test_json_in_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(dict(zip(("prompt", "chosen", "rejected"), row, strict=True))) for row in PAIRS]
    path.write_text("\n".join(lines), encoding="utf-16")
    found, note = pairs_of(path)
    assert found == PAIRS
    assert note.startswith("rows.jsonl: 10 rows; text in UTF-16; read: prompt")


@pytest.mark.parametrize("names", ["Prompt Chosen Rejected", " prompt |chosen |rejected", "PROMPT|Chosen |rejected"])
def test_capitals_and_blanks_in_names_are_read_as_the_usual_ones(names: str) -> None:
    columns = names.split("|") if "|" in names else names.split()
    found, note = pairs_of(rows(**dict(zip(columns, (ASKED, RIGHT, WRONG), strict=True))))
    assert found == PAIRS
    assert f"{columns[0].strip()} as prompt" in note


def test_names_that_differ_in_capitals_alone_and_flags_mean_the_columns_as_they_are() -> None:
    columns = {"prompt": ASKED, "Prompt": ["x"] * 10, "chosen": RIGHT, "rejected": WRONG}
    assert pairs_of(rows(**columns))[0] == PAIRS
    named = rows(**{"Question ": ASKED, "Chosen": RIGHT, "Rejected": WRONG})
    assert pairs_of(named, columns=ColumnConfig(prompt_column="question"))[0] == PAIRS


def test_columns_of_capitals_are_ignored_and_topics_are_not_read_by_either_name() -> None:
    columns = {"Prompt": ASKED, "Completion": RIGHT, "Label": [f"topic {i}" for i in NUMBERS], "Story": WRONG}
    for name in ("Story", "story"):
        notes: list[str] = []
        chats, rejections = validate_chats(rows(**columns), columns=ColumnConfig(ignore_columns=name), notes=notes)
        assert (len(chats), rejections) == (10, [])
        assert notes[0].endswith(f"; not read: Label (10); ignored: {name} (10)")


def chat(asked: str, said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


def by_numpy(messages: list[dict[str, str]]) -> str:
    return "[" + "\n ".join(map(repr, messages)) + "]"


NOTATIONS = {
    "json": json.dumps,
    "python": repr,
    "numpy": by_numpy,
    "numpy, on one line": lambda messages: "[" + " ".join(map(repr, messages)) + "]",
    "an array in a list": lambda messages: f"array([{', '.join(map(repr, messages))}], dtype=object)",
    "arrays of numpy": lambda messages: f"array([{' '.join(map(repr, messages))}],\n      dtype=object)",
}
HARD = ["It's {1}", 'a "b" {c}', "[x]\n {y}", "array([1], dtype=object)", "back\\slash 'q'", "} {"]


@pytest.mark.parametrize("write", NOTATIONS.values(), ids=NOTATIONS.keys())
def test_messages_are_read_in_the_notation_of_json_python_and_numpy(write: Any) -> None:
    said = [*RIGHT[: -len(HARD)], *HARD]
    cells = [write(chat(question, answer)) for question, answer in zip(ASKED, said, strict=True)]
    chats, rejections = validate_chats(rows(messages=cells))
    assert not rejections
    assert [one.conversation for one in chats] == [
        Conversation((Turn("user", question), Turn("bot", answer.strip())))
        for question, answer in zip(ASKED, said, strict=True)
    ]


def test_what_looks_like_messages_and_cannot_be_read_is_refused_and_never_learned() -> None:
    cells = [by_numpy(chat(*both))[:-9] for both in zip(ASKED, RIGHT, strict=True)]
    replies = {"prompt": ASKED, "completion": cells}
    sides = {"prompt": ASKED, "chosen": cells, "rejected": WRONG}
    for read, columns in ((validate_chats, {"messages": cells}), (validate_chats, replies), (validate_pairs, sides)):
        with pytest.raises(InputError, match=r"messages that cannot be read"):
            read(rows(**columns))
    good = [json.dumps(chat(*both)) for both in zip(ASKED, RIGHT, strict=True)]
    chats, [rejection] = validate_chats(rows(messages=[*good[1:], cells[0]]))
    assert (len(chats), rejection.line) == (9, 10)
    assert rejection.found.startswith("messages that cannot be read in a column of JSON of messages")


MARKED = {
    "guanaco": ("### Human: {}### Assistant: {}", ""),
    "alpaca": ("Do this.\n\n### Instruction:\n{}\n\n### Response:\n{}", "Do this."),
    "names of roles": ("User: {}\nAssistant: {}", ""),
    "capitals": ("USER: {}\nASSISTANT: {}", ""),
    "question and answer": ("Q: {}\nA: {}", ""),
    "system": ("### System:\nBe brief.\n\n### User:\n{}\n\n### Assistant:\n{}", "Be brief."),
}


@pytest.mark.parametrize(("form", "persona"), MARKED.values(), ids=MARKED.keys())
def test_texts_in_marks_become_turns_unless_a_flag_keeps_them(form: str, persona: str) -> None:
    texts = [form.format(*both) for both in zip(ASKED, RIGHT, strict=True)]
    notes: list[str] = []
    chats, _ = validate_chats(rows(text=texts), notes=notes)
    assert chats[3].conversation == Conversation((Turn("user", ASKED[3]), Turn("bot", RIGHT[3])), persona)
    assert notes == ["rows.jsonl: 10 rows; read: text (transcripts)"]
    kept, _ = validate_chats(rows(text=texts), columns=ColumnConfig(prompt_format="text"))
    assert [one.text for one in kept] == texts


def test_the_input_of_an_instruction_belongs_to_it() -> None:
    texts = [f"### Instruction:\nAdd.\n\n### Input:\n{i} and {i}\n\n### Response:\n{2 * i}" for i in NUMBERS]
    chats, _ = validate_chats(rows(text=texts))
    assert chats[2].conversation.turns == (Turn("user", "Add.\n\n2 and 2"), Turn("bot", "4"))


def test_prose_with_headings_and_colons_is_no_transcript() -> None:
    texts = [f"# Notes {i}\n\n## Answer the door\nA: note on {i}.\nTime: noon." for i in NUMBERS]
    chats, _ = validate_chats(rows(text=texts))
    assert [one.text for one in chats] == texts


def test_a_prompt_at_the_head_of_both_replies_is_taken_off_and_the_line_says_so() -> None:
    again = [[f"{question}\n{reply}" for question, reply in zip(ASKED, side, strict=True)] for side in (RIGHT, WRONG)]
    found, note = pairs_of(rows(prompt=ASKED, chosen=again[0], rejected=again[1]))
    assert found == PAIRS
    assert note.endswith("; taken off the head of replies: the prompt (10 rows)")
    some = [again[0][0], *RIGHT[1:]], [again[1][0], *WRONG[1:]]  # of one row it may be meant
    found, note = pairs_of(rows(prompt=ASKED, chosen=some[0], rejected=some[1]))
    assert found[0] == (ASKED[0], again[0][0], again[1][0])
    assert "taken off" not in note


LATER = [{"role": "system", "content": "Be brief."}, *chat("a?", "b."),
         {"role": "system", "content": "Now in French."}, *chat("c?", "d.")]  # fmt: skip


def test_a_later_system_message_stays_in_its_place(tokenizers) -> None:
    [one], _ = validate_chats(rows(messages=[LATER]))
    assert one.conversation.persona == "Be brief."
    assert [turn.speaker for turn in one.conversation.turns] == ["user", "bot", "system", "user", "bot"]
    written = render(tokenizers["gpt2"], one.conversation)
    assert written.index("b.") < written.index("Now in French.") < written.index("c?")


def test_a_template_that_leaves_out_a_later_system_message_refuses_the_row(tokenizers) -> None:
    tokenizer = tokenizers["bert"].__class__.from_pretrained(tokenizers["bert"].name_or_path)
    tokenizer.chat_template = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    [one], _ = validate_chats(rows(messages=[LATER]))
    with pytest.raises(InputError, match=r"leaves out a system message behind the first turn \('Now in French\.'\)"):
        render(tokenizer, one.conversation)

"""Rows in the formats of Alpaca, ShareGPT, UltraFeedback and TRL: one text at every stage, a reason for a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmgym.data.pairs import validate
from lmgym.data.prompts import read_prompts
from lmgym.data.records import Record, read_records
from lmgym.data.rejections import tally
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, render
from ppo.config import RolloutConfig
from reward_models.kwise import validate_groups
from sft.conversations import validate_chats, validate_chosen


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def human(text: str) -> dict[str, Any]:
    return {"from": "human", "value": text}


def gpt(text: str) -> dict[str, Any]:
    return {"from": "gpt", "value": text}


def records(*rows: dict[str, Any]) -> list[Record]:
    return [Record("file.jsonl", number, fields) for number, fields in enumerate(rows, 1)]


def prompts_of(folder: Path, *rows: dict[str, Any]) -> list[Conversation]:
    """Prompts of rows as PPO reads them, by their text."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"prompt": "another"})))
    found = read_prompts(RolloutConfig(str(path), eval_size=1), 0)
    assert found.rejections == []
    prompts = [task["prompt"] for task in (*found.train, *found.evaluation)]
    return [prompt for prompt in prompts if prompt != Conversation((Turn("user", "another"),))]


ALPACA = {"instruction": "Translate to French.", "input": "the cat", "output": "le chat"}
ALPACA_TEXT = "User: Translate to French.\n\nthe cat\nBot:"


def test_an_alpaca_row_is_one_message_of_the_user_and_the_output(tokenizers, tmp_path: Path) -> None:
    gpt2 = tokenizers["gpt2"]
    # as in the original file, which also has the whole text in Alpaca's own template
    [chat], _ = validate_chats(records({**ALPACA, "text": "Below is an instruction. ### Response: le chat"}))
    assert render(gpt2, chat.prompt) == ALPACA_TEXT
    assert render(gpt2, chat.prompt, chat.conversation.turns[-1].text) == f"{ALPACA_TEXT} le chat{gpt2.eos_token}"
    assert (chat.outputs, chat.field) == ((1,), "output")
    [prompt] = prompts_of(tmp_path, ALPACA)
    assert render(gpt2, prompt) == ALPACA_TEXT
    [pair], _ = validate(records({**ALPACA, "output": None, "chosen": "le chat", "rejected": "un chat"}))
    assert (render(gpt2, pair.conversation), pair.chosen, pair.rejected) == (ALPACA_TEXT, "le chat", "un chat")


def test_an_alpaca_row_without_input_with_a_system_message_and_a_history(tokenizers) -> None:
    row = {"instruction": " And 3+3? ", "input": "", "output": "6", "system": "Count.", "history": [["2+2?", "4"]]}
    plain = {"instruction": "Quote:\nUser: hi\nBot: ho", "input": None, "output": "ok"}
    (chat, quote), _ = validate_chats(records(row, plain))
    assert render(tokenizers["gpt2"], chat.prompt) == "Count.\nUser: 2+2?\nBot: 4\nUser: And 3+3?\nBot:"
    assert chat.outputs == (3,), "the history is context"
    assert quote.prompt.turns == (Turn("user", "Quote:\nUser: hi\nBot: ho"),), "an instruction is no transcript"


SHAREGPT = {"conversations": [human("hello"), gpt("hi"), human("who?"), gpt("me")], "system": "A friend."}


def test_a_sharegpt_row_is_a_conversation(tokenizers, tmp_path: Path) -> None:
    gpt2 = tokenizers["gpt2"]
    [chat], _ = validate_chats(records(SHAREGPT))
    assert render(gpt2, chat.prompt) == "A friend.\nUser: hello\nBot: hi\nUser: who?\nBot:"
    assert (chat.outputs, chat.conversation.turns[-1].text) == ((1, 3), "me")
    [prompt] = prompts_of(tmp_path, SHAREGPT)
    assert prompt == chat.prompt
    with_system = {"conversations": [{"from": "system", "value": "A friend."}, *SHAREGPT["conversations"]]}
    assert validate_chats(records(with_system))[0][0].conversation == chat.conversation
    with_roles = {"conversations": [user("hello"), bot("hi"), {"from": "user", "value": "who?"}, bot("me")]}
    assert validate_chats(records(with_roles))[0][0].conversation.turns == chat.conversation.turns


def test_a_sharegpt_preference_is_a_pair() -> None:
    row = {"conversations": [human("hello")], "chosen": gpt("hi"), "rejected": gpt("go away")}
    [pair], rejections = validate(records(row))
    assert (pair.conversation.turns, pair.chosen, pair.rejected) == ((Turn("user", "hello"),), "hi", "go away")
    assert rejections == []


CALL = {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'}
RESULT = {"from": "observation", "value": "rain"}


def test_a_function_call_of_sharegpt_is_a_call_of_a_tool() -> None:
    tools = '[{"name": "weather", "parameters": {"type": "object"}}]'
    row = {"conversations": [human("Oslo?"), CALL, RESULT, gpt("It rains.")], "tools": tools}
    [chat], _ = validate_chats(records(row))
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    question, called, result, answer = chat.conversation.turns
    assert (question, result, answer) == (Turn("user", "Oslo?"), Turn("tool", "rain"), Turn("bot", "It rains."))
    assert (called.speaker, called.text, json.loads(called.extra)) == ("bot", "", {"tool_calls": [call]})
    assert json.loads(chat.conversation.tools) == json.loads(tools)
    assert chat.outputs == (1, 3)


def completion(response: str, overall: float | None, fine: float | None = None) -> dict[str, Any]:
    return {"response": response, "overall_score": overall, "fine-grained_score": fine, "model": "m"}


ULTRA = {
    "instruction": "Name a sea.",
    "completions": [completion("Baltic", 7.5), completion("Rhine", 2), completion("North", 9), completion("Lake", 2.0)],
}


def test_ultrafeedback_is_a_pair_of_the_best_and_the_worst_and_a_ranking(tokenizers, tmp_path: Path) -> None:
    gpt2 = tokenizers["gpt2"]
    [pair], _ = validate(records(ULTRA))
    assert (render(gpt2, pair.conversation), pair.chosen, pair.rejected) == (
        "User: Name a sea.\nBot:",
        "North",
        "Rhine",
    )
    [group], _ = validate_groups(records(ULTRA))
    assert (group.replies, group.ranks) == (("Baltic", "Rhine", "North", "Lake"), (2, 3, 1, 3))
    [chat], _ = validate_chosen(records(ULTRA))
    assert (chat.prompt, chat.conversation.turns[-1].text) == (pair.conversation, "North")
    assert group.conversation == pair.conversation == prompts_of(tmp_path, ULTRA)[0]


def test_fine_grained_scores_count_where_a_completion_has_no_overall_score() -> None:
    row = {"instruction": "q", "completions": [completion("a", 9, 1.25), completion("b", None, 4.5)]}
    [pair], _ = validate(records(row))
    assert (pair.chosen, pair.rejected) == ("b", "a")


def test_the_binarized_form_repeats_its_prompt_whatever_the_text_looks_like(tmp_path: Path) -> None:
    text = "Quote:\nUser: hi\nBot: ho"
    row = {"prompt": text, "chosen": [user(text), bot("a")], "rejected": [user(text), bot("b")], "score_chosen": 8.0}
    with_messages = {**row, "messages": row["chosen"]}
    [pair], rejections = validate(records(with_messages))
    assert (pair.conversation.turns, pair.chosen, pair.rejected) == ((Turn("user", text),), "a", "b")
    assert rejections == []
    [chat], _ = validate_chats(records(with_messages))
    assert prompts_of(tmp_path, with_messages) == [pair.conversation] == [chat.prompt]
    system = {"role": "system", "content": "s"}
    row = {"prompt": text, **{side: [system, *row[side]] for side in ("chosen", "rejected")}}
    assert validate(records(row))[0][0].conversation == Conversation((Turn("user", text),), "s")


def test_trls_types_are_read_where_a_stage_can_use_them(tmp_path: Path) -> None:
    sky = Conversation((Turn("user", "The sky is"),))
    text, chat = "The sky is", [user("The sky is")]
    for prompt in (text, chat):
        assert prompts_of(tmp_path, {"prompt": prompt}) == [sky]
        assert validate_chats(records({"prompt": prompt, "completion": "blue"}))[0][0].prompt == sky
        unpaired = {"prompt": prompt, "completion": [bot("blue")], "label": True}
        assert validate_chats(records(unpaired))[0][0].prompt == sky
        assert prompts_of(tmp_path, unpaired) == [sky]
    assert validate_chats(records({"messages": [*chat, bot("blue")]}))[0][0].prompt == sky
    explicit = {"prompt": chat, "chosen": [bot("blue")], "rejected": [bot("green")]}
    implicit = {"chosen": [*chat, bot("blue")], "rejected": [*chat, bot("green")]}
    pairs, [duplicate] = validate(records(explicit, implicit))
    assert (pairs[0].conversation, pairs[0].chosen, pairs[0].rejected) == (sky, "blue", "green")
    assert duplicate.found == "duplicate of line 1"


def test_a_completion_that_was_not_liked_is_not_learned_and_is_no_sign_of_bad_data() -> None:
    rows = [
        {"prompt": f"q {i}", "completion": "a", "label": label} for i, label in enumerate([True, False, "false", 1])
    ]
    chats, rejections = validate_chats(records(*rows))
    assert [chat.line for chat in chats] == [1, 4]
    found = tally(rejections, 4)
    assert (found.total, found.line) == (
        0,
        "0 of 4 rows rejected; not needed: 2 with a label that is false (field label)",
    )


def test_stepwise_rows_are_refused_in_one_line_at_every_stage(tmp_path: Path) -> None:
    row = {"prompt": "9 or 11?", "completions": ["11 is larger.", "So 9."], "labels": [True, False]}
    expected = (
        r"^file\.jsonl holds stepwise rows \(prompt, completions, labels\), which no stage trains on; needed: .*$"
    )
    for reader in (validate, validate_groups, validate_chats, validate_chosen):
        with pytest.raises(InputError, match=expected):
            reader(records(row))
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="holds stepwise rows"):
        read_prompts(RolloutConfig(str(tmp_path / "a.jsonl"), eval_size=0), 0)


@pytest.mark.parametrize(
    ("reader", "row", "field", "found"),
    [
        (validate_chats, {"instruction": "", "output": "a"}, "instruction", "missing or empty"),
        (validate_chats, {"instruction": 5, "output": "a"}, "instruction", "5; needed: text"),
        (validate_chats, {"instruction": "q", "input": ["x"], "output": "a"}, "input", "a list of 1 item"),
        (validate_chats, {"instruction": "q", "output": ""}, "output", "empty"),
        (validate_chats, {"instruction": "q", "output": None}, "output", "null"),
        (validate_chats, {"instruction": "q", "output": " "}, "output", "an empty output"),
        (validate_chats, {"instruction": "q", "output": "a", "history": [["x"]]}, "history", "needed: a list of [ins"),
        (validate_chats, {"conversations": "hello"}, "conversations", "'hello'; needed: a list of messages"),
        (validate_chats, {"conversations": [human("a"), 5]}, "conversations", "message 2 is 5; needed: an object"),
        (validate_chats, {"conversations": [human("a"), {"from": "pet", "value": "b"}]}, "conversations", "role 'pet'"),
        (validate_chats, {"conversations": [human("a"), gpt(None)]}, "conversations", "message 2 has no content"),
        (validate_chats, {"conversations": [human("a")]}, "conversations", "no turn of the bot"),
        (validate_chats, {"conversations": [human("a"), {**CALL, "value": "{"}]}, "conversations", "not JSON"),
        (validate_chats, {"conversations": [human("a"), gpt("b")], "tools": "x"}, "tools", "'x'; needed: a list of"),
        (validate, {"instruction": "q", "completions": []}, "completions", "a list of 0 items; needed: at least 2"),
        (validate, {"instruction": "q", "completions": [completion("a", 1)]}, "completions", "1 of them; needed: at"),
        (validate, {"instruction": "q", "completions": [completion("a", 1)] * 2}, "completions", "tied"),
        (validate, {"instruction": "q", "completions": [completion("a", 1), completion("b", None)]}, "completions",
         "a completion without a score; needed: a number as overall_score or fine-grained_score of each"),
        (validate, {"instruction": "q", "completions": [{"response": None}]}, "completions", "1 has no response"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_named_with_its_own_column(reader, row, field: str, found: str) -> None:
    good = {**ULTRA, "messages": [user("a"), bot("b")]} if reader is validate_chats else ULTRA
    rows, [rejection] = reader(records(good, row))
    assert len(rows) == 1
    assert (rejection.line, rejection.field) == (2, field)
    assert found in rejection.found
    assert "\n" not in str(rejection)


def test_a_file_of_unknown_columns_is_refused_with_those_found_and_the_formats_that_are_known(tmp_path: Path) -> None:
    row = {"good": "a", "bad": "b"}
    found = "file.jsonl holds no {}: found the columns bad, good; needed: "
    for reader, noun, needed in (
        (validate, "pairs", "chosen and rejected, .*UltraFeedback's instruction and completions"),
        (validate_groups, "groups", "prompt, replies .*UltraFeedback's instruction and completions"),
        (validate_chats, "conversations", "messages; or prompt and completion; .*; or another format of docs/"),
        (validate_chosen, "pairs", "chosen and rejected"),
    ):
        with pytest.raises(InputError, match=found.format(noun) + needed):
            reader(records(row))
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="holds no prompts: found the columns bad, good; needed: one of prompt"):
        read_prompts(RolloutConfig(str(path)), 0)


def test_one_of_several_sets_with_unknown_columns_is_refused() -> None:
    with pytest.raises(InputError, match=r"^b\.jsonl holds no pairs: found the columns answer"):
        validate(records(ULTRA), [Record("b.jsonl", 1, {"answer": "x"})])


def test_rows_read_from_parquet_are_those_read_from_json(tmp_path: Path) -> None:
    from datasets import Dataset

    rows = [
        ULTRA | {"instruction": f"sea {i}", "completions": [completion("a", i, 1.0), completion("b", i + 1, None)]}
        for i in range(3)
    ]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_parquet, of_json = (validate(read_records(str(tmp_path / name)))[0] for name in ("a.parquet", "a.jsonl"))
    assert [(pair.conversation, pair.answers) for pair in of_parquet] == [
        (pair.conversation, pair.answers) for pair in of_json
    ]
    assert len(of_json) == 3

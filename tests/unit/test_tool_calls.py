"""Chats with tools: read from messages, rendered as the model's chat template renders them, refused where it cannot."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmgym.data.prompts import read_prompts
from lmgym.data.records import Record, read_records
from lmgym.data.rows import prompt_key
from lmgym.data.truncation import tokenize_replies, truncate
from lmgym.errors import InputError
from lmgym.messages import from_messages
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn, has_tools, messages, render, render_each
from lmgym.tool_calls import read_tools
from ppo.config import RolloutConfig
from sft.conversations import validate_chats
from sft.tokenization import tokenize_chats

TEMPLATE = (
    "{% if tools %}[tools]{% for tool in tools %} {{ tool.function.name }}{% endfor %}{{ '\n' }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
FUNCTION = {"name": "weather", "arguments": {"city": "Oslo"}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": FUNCTION}]}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Oslo?"},
    CALL,
    {"role": "tool", "name": "weather", "content": "rain"},
    {"role": "assistant", "content": "It rains."},
]
ROW = {"messages": CHAT, "tools": TOOLS}


@pytest.fixture(scope="module")
def tokenizer(small_models, tmp_path_factory):
    """A small model's, with a template that writes tools."""
    folder = shutil.copytree(small_models["gpt2"], tmp_path_factory.mktemp("tools") / "gpt2")
    found = load_tokenizer(str(folder))
    found.chat_template = TEMPLATE
    return found


def chats(*rows: dict[str, Any]):
    return validate_chats([Record("file.jsonl", number, fields) for number, fields in enumerate(rows, 1)])


def test_a_call_and_its_result_survive_a_round_trip_through_messages() -> None:
    conversation = from_messages(CHAT)
    assert [turn.speaker for turn in conversation.turns] == ["user", "bot", "tool", "bot"]
    assert messages(conversation) == CHAT
    assert hash(conversation) == hash(from_messages(CHAT))


@pytest.mark.parametrize(
    "call",
    [
        {"id": None, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"function": {"name": "weather", "arguments": {"city": "Oslo", "day": None}}},
        FUNCTION,
    ],
)
def test_every_notation_of_a_call_is_the_same(call: dict[str, Any]) -> None:
    assert (
        from_messages([CHAT[0], {"role": "assistant", "content": None, "tool_calls": [call]}]).turns[1]
        == (from_messages(CHAT).turns[1])
    )


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ("weather()", "message 2 has tool_calls that are 'weather()'; needed: a list of calls"),
        ([5], "message 2 calls a tool by 5; needed: an object with the function's name and arguments"),
        ([{"function": {"arguments": {}}}], "message 2 calls a tool by an object with 1 field; needed"),
        ([{"name": "f", "arguments": "Oslo"}], "message 2 calls 'f' with the arguments 'Oslo'; needed: an object"),
    ],
)
def test_a_call_that_cannot_be_read_is_named_in_one_line(calls: Any, found: str) -> None:
    rows, [rejection] = chats(ROW, {"messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": calls}]})
    assert len(rows) == 1
    assert rejection.found.startswith(found)


def test_only_definitions_calls_and_results_need_a_template_with_tools() -> None:
    plain = Conversation((Turn("user", "hi"), Turn("bot", "hello")), "Be kind.")
    called = Turn("bot", "", '{"tool_calls": []}')
    assert not has_tools(plain)
    assert has_tools(replace(plain, tools="[]"))
    assert has_tools(replace(plain, turns=(*plain.turns, called)))
    assert has_tools(replace(plain, turns=(*plain.turns, Turn("tool", "4"))))


def test_tools_may_be_json_text() -> None:
    assert json.loads(read_tools(json.dumps(TOOLS))) == json.loads(read_tools(TOOLS)) == TOOLS
    assert read_tools(None) == read_tools("") == read_tools([]) == read_tools("[]") == ""
    with pytest.raises(ValueError, match="'hammer'; needed: a list of functions"):
        read_tools("hammer")


def test_a_row_is_rendered_as_the_template_renders_it_with_its_tools(tokenizer) -> None:
    [chat], _ = chats(ROW)
    eos = tokenizer.eos_token
    expected = (
        f'[tools] weather\n[user] Oslo?\n[assistant] weather{{"city": "Oslo"}}{eos}\n[tool] rain\n'
        f"[assistant] It rains.{eos}\n"
    )
    assert render(tokenizer, chat.prompt, "It rains.") == expected
    assert render(tokenizer, chat.prompt) == expected.removesuffix(f"It rains.{eos}\n")
    assert expected == tokenizer.apply_chat_template(CHAT, tools=TOOLS, tokenize=False)
    without = Conversation(chat.prompt.turns)
    assert prompt_key(without) != prompt_key(chat.prompt)


def test_the_bots_calls_are_outputs_and_results_are_context(tokenizer) -> None:
    [chat], _ = chats(ROW)
    assert chat.outputs == (1, 3)
    examples, rejections = tokenize_chats([chat], tokenizer, 256)
    assert rejections == []
    learned = sorted(tokenizer.decode(example.targets) for example in examples)
    eos = tokenizer.eos_token
    assert learned == sorted([f'weather{{"city": "Oslo"}}{eos}', f"It rains.{eos}"])
    [called] = [e for e in examples if "weather{" in tokenizer.decode(e.targets)]
    assert tokenizer.decode(called.ids) == '[tools] weather\n[user] Oslo?\n[assistant] weather{"city": "Oslo"}'


def test_rows_with_calls_read_from_parquet_are_those_read_from_json(tokenizer, tmp_path: Path) -> None:
    from datasets import Dataset

    other = [
        CHAT[0],
        {**CALL, "tool_calls": [{"type": "function", "function": {"name": "time", "arguments": {"zone": "CET"}}}]},
    ]
    rows = [ROW, {"messages": other, "tools": TOOLS}]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_parquet, of_json = (validate_chats(read_records(str(tmp_path / name)))[0] for name in ("a.parquet", "a.jsonl"))
    assert [render(tokenizer, c.conversation) for c in of_parquet] == [
        render(tokenizer, c.conversation) for c in of_json
    ]
    assert len(of_json) == 2


WITHOUT_CALLS = TEMPLATE.replace("m.tool_calls", "[]")
WITHOUT_TOOLS = TEMPLATE.replace("{% if tools %}", "{% if false %}")
WITHOUT_RESULTS = TEMPLATE.replace("{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}")
REFUSES = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('No tools here.') }}{% endfor %}" + TEMPLATE


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (None, "leaves out the functions of `tools` and calls of tools and results of tools; needed: a template"),
        (WITHOUT_CALLS, "leaves out calls of tools; needed: a template that writes them"),
        (WITHOUT_TOOLS, "leaves out the functions of `tools`; needed"),
        (WITHOUT_RESULTS, "leaves out results of tools; needed"),
        (REFUSES, ": No tools here.; needed: a template for these roles"),
    ],
)
def test_a_template_that_cannot_write_tools_rejects_the_row_in_one_line(template, found, small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    tokenizer.chat_template = template or tokenizer.chat_template
    plain = {"messages": [CHAT[0], CHAT[3]]}
    both, _ = chats(ROW, plain)
    examples, [rejection] = tokenize_chats(both, tokenizer, 256)
    assert [example.line for example in examples] == [2], "the row without tools is used"
    assert (rejection.line, rejection.field) == (1, "messages")
    assert found in rejection.found
    assert "\n" not in str(rejection)
    [failed] = tokenize_replies(tokenizer, [both[0].prompt], [["x"]], 256)
    assert isinstance(failed, str)
    assert found.partition("; needed")[0] in failed


def test_a_prompt_that_the_template_cannot_write_is_rejected_and_others_are_used(small_models, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROW, {"prompt": "a"}, {"prompt": "b"})))
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    found = read_prompts(RolloutConfig(str(path), eval_size=1), 0, tokenizer=tokenizer)
    assert len(found.train) + len(found.evaluation) == 2
    [rejection] = found.rejections
    assert (rejection.line, rejection.field) == (1, "messages")
    assert "leaves out the functions of `tools` and calls of tools and results of tools" in rejection.found
    tokenizer.chat_template = TEMPLATE
    found = read_prompts(RolloutConfig(str(path), eval_size=1), 0, tokenizer=tokenizer)
    [prompt] = [t["prompt"] for t in (*found.train, *found.evaluation) if len(t["prompt"].turns) > 1]
    assert render(tokenizer, prompt).endswith("[tool] rain\n[assistant] ")


def test_a_template_is_judged_by_the_parts_that_a_row_uses(tokenizer) -> None:
    tokenizer.chat_template, before = WITHOUT_TOOLS, tokenizer.chat_template
    [chat], _ = chats({"messages": CHAT})
    assert isinstance(render_each(tokenizer, [chat.conversation])[0], str)
    tokenizer.chat_template = before
    [listed], _ = chats(ROW)
    assert "[tools] weather" in render(tokenizer, listed.prompt), "a changed template is judged again"


def test_a_truncated_chat_does_not_begin_with_a_result(tokenizer) -> None:
    long = [CHAT[0], CHAT[3], *CHAT[:3]]
    conversation = from_messages(long)
    whole = len(tokenizer(render(tokenizer, conversation)).input_ids)
    [fitted] = truncate(tokenizer, [conversation], None, whole - 1)
    assert not isinstance(fitted, str)
    assert fitted.conversation.turns == conversation.turns[2:]
    short = len(fitted.ids[0])
    [failed] = truncate(tokenizer, [conversation], None, short - 1)
    assert failed == f"a tool's result and the turns since the user's are too long; max_length={short - 1}"


def test_a_long_call_is_an_output_that_stands_whole_or_not_at_all(tokenizer) -> None:
    question = [{"role": "user", "content": "word " * 40}, {"role": "assistant", "content": "Yes."}]
    [chat], _ = chats({"messages": [*question, *CHAT[:2]]})
    [called, _], rejections = tokenize_chats([chat], tokenizer, 60)
    assert rejections == []
    assert called.replies.dropped_turns == 2
    assert tokenizer.decode(called.ids) == '[user] Oslo?\n[assistant] weather{"city": "Oslo"}'
    long = {**CALL, "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo " * 60}}}]}
    [chat], _ = chats({"messages": [CHAT[0], long]})
    _, [rejection] = tokenize_chats([chat], tokenizer, 60)
    assert rejection.found.startswith("the reply is too long: ")
    assert rejection.found.endswith("max_length=60")


def test_a_reply_that_calls_tools_is_no_side_of_a_pair() -> None:
    from lmgym.data.pairs import validate

    good = {
        "prompt": CHAT[:3],
        "chosen": [CHAT[3]],
        "rejected": [{"role": "assistant", "content": "No."}],
        "tools": TOOLS,
    }
    [pair], [rejection] = validate([Record("f", 1, good), Record("f", 2, {**good, "chosen": [CALL]})])
    assert pair.conversation.turns[2].speaker == "tool"
    assert json.loads(pair.conversation.tools) == TOOLS
    assert (rejection.field, rejection.found) == (
        "chosen", "a reply that calls tools, which no scorer reads; needed: a reply of text",
    )  # fmt: skip


def test_an_unsupported_call_raises_an_input_error_when_it_is_rendered_alone(tokenizers) -> None:
    with pytest.raises(InputError, match="leaves out results of tools"):
        render(tokenizers["gpt2"], Conversation((Turn("user", "a"), Turn("bot", "b"), Turn("tool", "c"))))

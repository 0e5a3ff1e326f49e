"""Each format of rows at every stage, by a row of each; and that no column or key is left out silently."""

import csv
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from chat_texts import character_tokenizer

from lmgym.cli import score
from lmgym.config import ColumnConfig
from lmgym.data.formats import renamed
from lmgym.data.pairs import read_pair, validate
from lmgym.data.prompts import FORMS, read_prompts
from lmgym.data.reading import interpret
from lmgym.data.records import Record, read_records
from lmgym.data.rejections import Rejection
from lmgym.data.rows import read_rows
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, words_of
from ppo.config import RolloutConfig
from preferences import thumbs
from preferences.examples import tokenize_pairs
from reward_models.kwise import validate_groups
from sft.conversations import read_chat, validate_chats, validate_chosen, validate_distillation_rows
from sft.tokenization import tokenize_chats

SHARED = Path(__file__).parents[4] / "shared/data"


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def bot(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def talk(*texts: str, persona: str = "", tools: str = "") -> Conversation:
    """A conversation of a user and a bot in turn."""
    turns = tuple(Turn(("user", "bot")[place % 2], text) for place, text in enumerate(texts))
    return Conversation(turns, persona, tools)


def records(*rows: dict[str, Any], file: str = "rows.jsonl") -> list[Record]:
    return [Record(file, number, fields) for number, fields in enumerate(rows, 1)]


# one row of each format


@dataclass(frozen=True)
class Case:
    """A row, and what each stage makes of it; None where it is refused."""

    name: str
    row: dict[str, Any]
    asks: Conversation | None
    """PPO's prompt"""
    chat: tuple[Conversation, tuple[int, ...]] | None = None
    """SFT's conversation, and the turns that are learned"""
    text: str = ""
    """all of which SFT learns"""
    pair: tuple[str, str] | None = None
    """chosen and rejected, behind `asks`"""
    liked: tuple[tuple[str, bool], ...] = ()
    """KTO's replies behind `asks`, with their labels; those of a pair need not be said"""
    group: tuple[tuple[str, ...], tuple[int, ...]] | None = None
    """replies and ranks"""
    unread: tuple[str, ...] = ()
    """columns and keys that SFT, or the first stage that reads the row, says it does not read"""
    scored: tuple[str, ...] = field(default=())
    """replies that `lmgym score` scores, if not the pair or the last turn of SFT's conversation"""


def answered(name: str, row: dict[str, Any], *texts: str, persona: str = "", **more: Any) -> Case:
    """A case whose last turn is learned."""
    whole = talk(*texts, persona=persona)
    return Case(name, row, replace(whole, turns=whole.turns[:-1]), (whole, (len(texts) - 1,)), **more)


PASSAGE = "The Eiffel Tower is 330 metres tall."
SHP = {
    "post_id": "iknz5h", "domain": "askculinary_train", "history": "Why does my bread sink?", "c_root_id_A": "g3lmcpv",
    "human_ref_A": "Too much water.", "human_ref_B": "Proof it for less long.", "labels": 0, "score_A": 6, "score_B": 9,
}  # fmt: skip
SUMMARIES = {
    "info": {"id": "t3_2vwp", "post": "My cat sleeps on the keyboard.", "title": "Cat!", "subreddit": "cats",
             "site": None, "article": None},
    "summaries": [{"text": " The cat types.", "policy": "sup2"}, {"text": " A keyboard.", "policy": "ref"}],
    "choice": 0, "worker": "ikNm", "batch": "batch3", "split": "train", "extra": {"confidence": None},
}  # fmt: skip
ARENA = {
    "question_id": "58210e", "winner": "model_b", "model_a": "koala", "model_b": "vicuna", "judge": "arena_user_973",
    "conversation_a": [user("Name a prime."), bot("Nine.")], "conversation_b": [user("Name a prime."), bot("Seven.")],
    "turn": 1, "language": "English",
}  # fmt: skip
TREE = {
    "message_tree_id": "6ab24d72", "tree_state": "ready_for_export",
    "prompt": {"message_id": "6ab24d72", "text": "How do I knit?", "role": "prompter", "lang": "en", "replies": [
        {"text": "With needles.", "role": "assistant", "rank": None, "replies": [
            {"text": "Which ones?", "role": "prompter", "rank": 0, "replies": [
                {"text": "Long ones.", "role": "assistant", "rank": 1, "replies": []},
                {"text": "Gone.", "role": "assistant", "rank": 3, "deleted": True, "replies": []},
                {"text": "Bamboo ones, of 4 mm.", "role": "assistant", "rank": 0, "replies": []},
                {"text": "No idea.", "role": "assistant", "rank": 2, "replies": []},
            ]},
            {"text": "Why?", "role": "prompter", "rank": 1, "replies": []},
        ]},
    ]},
}  # fmt: skip
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = json.dumps([{"type": "function", "function": WEATHER}])
CALL = {"tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {}}}]}
CALLED = Conversation((Turn("user", "Oslo?"), Turn("bot", "", json.dumps(CALL)), Turn("tool", "rain")), tools=TOOLS)
VERL = {
    "data_source": "openai/gsm8k", "prompt": [user("2+2? Answer after ####.")], "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 0, "split": "train"},
}  # fmt: skip
HELPSTEER = {
    "prompt": "What is a fjord?", "response": "A car.", "helpfulness": 0, "correctness": 0, "coherence": 3,
    "complexity": 1, "verbosity": 1,
}  # fmt: skip

ONE_REPLY = [
    answered("TRL prompt and completion", {"prompt": "The sky is", "completion": " blue."}, "The sky is", "blue."),
    answered(
        "TRL conversational", {"prompt": [user("Hi")], "completion": [bot("Hello!")], "id": 4}, "Hi", "Hello!",
        unread=("id (1)",),
    ),
    answered("prompt and response", {"prompt": "Hi", "response": "Hello!"}, "Hi", "Hello!"),
    answered("ChatGLM", {"prompt": "And 3?", "response": "6", "history": [["2+2?", "4"]]}, "2+2?", "4", "And 3?", "6"),
    answered("Alpaca", {"instruction": "Translate.", "input": "the cat", "output": "le chat",
             "text": "Below is an instruction. ### Response: le chat"}, "Translate.\n\nthe cat", "le chat",
             unread=("text (1)",)),
    answered("Alpaca with a system message and a history", {"instruction": " And 3? ", "input": "", "output": "6",
             "system": "Count.", "history": [["2+2?", "4"]]}, "2+2?", "4", "And 3?", "6", persona="Count."),
    answered("Alpaca, an instruction like a transcript", {"instruction": "Quote:\nUser: hi\nBot: ho", "input": None,
             "output": "ok"}, "Quote:\nUser: hi\nBot: ho", "ok"),
    answered("Dolly without a passage", {"instruction": "Name a sea.", "context": "", "response": "The Baltic.",
             "category": "open_qa"}, "Name a sea.", "The Baltic.", unread=("category (1)",)),
    answered("self-instruct", {"id": "seed_task_1", "instruction": "Negate.", "is_classification": False,
             "instances": [{"input": "I sing.", "output": "I do not sing."}]}, "Negate.\n\nI sing.", "I do not sing.",
             unread=("id (1)", "is_classification (1)")),
    answered("GSM8K", {"question": "2 and 2 apples?", "answer": "2+2 = <<2+2=4>>4\n#### 4"}, "2 and 2 apples?",
             "2+2 = <<2+2=4>>4\n#### 4"),
    answered("MetaMath", {"query": "1+1?", "response": "2", "type": "GSM_Rephrased"}, "1+1?", "2",
             unread=("type (1)",)),
    answered("MATH", {"problem": "x+1=2", "level": "Level 1", "solution": "$x=\\boxed{1}$"}, "x+1=2",
             "$x=\\boxed{1}$", unread=("level (1)",)),
    answered("input and output", {"input": "Hi", "output": "Hello!"}, "Hi", "Hello!"),
]  # fmt: skip

CHATS = [
    answered("messages", {"messages": [user("Hi"), bot("Hello!")]}, "Hi", "Hello!"),
    answered("role developer", {"messages": [{"role": "developer", "content": "Be brief."}, user("Hi"), bot("Yo.")]},
             "Hi", "Yo.", persona="Be brief."),
    answered("from and content", {"messages": [{"from": "human", "content": "Hi"}, {"from": "gpt", "content": "Yo."}]},
             "Hi", "Yo."),
    answered("parts of content, and a system column as Anthropic's", {"system": "Be kind.", "messages": [
        user([{"type": "text", "text": "Hi"}]), bot([{"type": "text", "text": "Yo."}])]},  # type: ignore[arg-type]
        "Hi", "Yo.", persona="Be kind."),
    answered("CSV, as Python writes it", {"conversations": str([user("Hi"), bot("Yo.")])}, "Hi", "Yo."),
    answered("ShareGPT", {"id": "x_0", "system": "A friend.", "tools": "", "conversations": [
        {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo."}]}, "Hi", "Yo.", persona="A friend.",
        unread=("id (1)",)),
    Case("FastChat, two turns", {"conversations": [{"from": "system", "value": "A friend."},
         {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "user", "value": "c"}, bot("d")]},
         talk("a", "b", "c", persona="A friend."), (talk("a", "b", "c", "d", persona="A friend."), (1, 3))),
    Case("calls in messages, as LLaMA-Factory takes them", {"messages": [{"from": "human", "value": "Oslo?"},
         {"from": "function_call", "value": '{"name": "weather", "arguments": {}}'},
         {"from": "observation", "value": "rain"}, {"from": "gpt", "value": "It rains."}], "tools": TOOLS}, CALLED,
         (replace(CALLED, turns=(*CALLED.turns, Turn("bot", "It rains."))), (1, 3))),
    answered("NeMo", {"mask": "User", "system": "", "type": "VALUE_TO_TEXT", "conversations": [
        {"from": "User", "value": "Hi", "label": None}, {"from": "Assistant", "value": "Yo.", "label": "quality:4"}]},
        "Hi", "Yo.", unread=("type (1)", "conversations[].label (1)")),
    answered("xtuner", {"conversation": [{"system": "Be brief.", "input": "Hi", "output": "Yo."}]}, "Hi", "Yo.",
             persona="Be brief."),
    Case("xtuner, without loss on a reply", {"conversation": [
        {"input": "a", "output": "b", "output_with_loss": False}, {"input": "c", "output": "d"}]},
        talk("a", "b", "c"), (talk("a", "b", "c", "d"), (3,))),
    Case("Firefly", {"conversation_id": 2, "category": "Brainstorming", "conversation": [
        {"human": "a", "assistant": "b"}, {"human": "c", "assistant": "d"}]}, talk("a", "b", "c"),
        (talk("a", "b", "c", "d"), (1, 3)), unread=("conversation_id (1)", "category (1)")),
    answered("LMSYS chat", {"conversation_id": "33f0", "model": "vicuna", "conversation": [user("Hi"), bot("Yo.")]},
             "Hi", "Yo.", unread=("conversation_id (1)", "model (1)")),
    Case("OpenAI functions", {"messages": [user("Oslo?"), bot("It rains.")], "functions": [WEATHER]},
         talk("Oslo?", tools=TOOLS), (talk("Oslo?", "It rains.", tools=TOOLS), (1,))),
    answered("logs", {"input_text": "User: Hi\nBot:", "output_text": "Yo.", "user_id": 7}, "Hi", "Yo.",
             unread=("user_id (1)",)),
    Case("a transcript", {"text": "User: a\nBot: b\nUser: c\nBot: d"}, talk("a", "b", "c"),
         (talk("a", "b", "c", "d"), (1, 3))),
    Case("hh's transcript as text", {"text": "\n\nHuman: a\n\nAssistant: b"}, talk("a"), (talk("a", "b"), (1,))),
    Case("plain text", {"text": "Once upon a time."}, talk("Once upon a time."), text="Once upon a time."),
    Case("prompts alone", {"prompt": "Hi"}, talk("Hi")),
    Case("verl", VERL, talk("2+2? Answer after ####.")),
    Case("HelpSteer", HELPSTEER, talk("What is a fjord?")),
]  # fmt: skip

THUMBS = [
    answered("TRL unpaired", {"prompt": "Hi", "completion": "Yo.", "label": True}, "Hi", "Yo.",
             liked=(("Yo.", True),)),
    Case("TRL unpaired, disliked", {"prompt": "Hi", "completion": "Go away.", "label": False}, talk("Hi"),
         liked=(("Go away.", False),), scored=("Go away.",)),
    answered("prompt, response and label", {"prompt": "Hi", "response": "Yo.", "label": 1}, "Hi", "Yo.",
             liked=(("Yo.", True),)),
    Case("Alpaca with kto_tag", {"instruction": "Hi", "input": "", "output": "Go away.", "kto_tag": False}, talk("Hi"),
         liked=(("Go away.", False),), scored=("Go away.",)),
    answered("ShareGPT with kto_tag", {"conversations": [{"from": "human", "value": "Hi"},
             {"from": "gpt", "value": "Yo."}], "kto_tag": True}, "Hi", "Yo.", liked=(("Yo.", True),)),
    Case("messages with label", {"messages": [user("Hi"), bot("No.")], "label": False}, talk("Hi"),
         liked=(("No.", False),), scored=("No.",)),
    answered("logs with accepted", {"input_text": "User: Hi\nBot:", "output_text": "Yo.", "accepted": 0}, "Hi", "Yo.",
             liked=(("Yo.", False),), unread=("accepted (1)",)),
]  # fmt: skip


def two(name: str, row: dict[str, Any], asks: str | Conversation, chosen: str, rejected: str, **more: Any) -> Case:
    return Case(name, row, talk(asks) if isinstance(asks, str) else asks, pair=(chosen, rejected), **more)


PAIRS = [
    two("TRL", {"prompt": "Hi", "chosen": "Yo.", "rejected": "No."}, "Hi", "Yo.", "No."),
    two("TRL, with a system message", {"prompt": "Hi", "chosen": "Arr!", "rejected": "No.", "system": "A pirate."},
        talk("Hi", persona="A pirate."), "Arr!", "No."),
    two("TRL, implicit prompt", {"chosen": [user("Hi"), bot("Yo.")], "rejected": [user("Hi"), bot("No.")]},
        "Hi", "Yo.", "No."),
    two("hh", {"chosen": "\n\nHuman: Hi\n\nAssistant: Yo.", "rejected": "\n\nHuman: Hi\n\nAssistant: No."},
        "Hi", "Yo.", "No."),
    two("hh beside a prompt", {"prompt": "\n\nHuman: Hi\n\nAssistant:", "chosen": "\n\nHuman: Hi\n\nAssistant: Yo.",
        "rejected": "\n\nHuman: Hi\n\nAssistant: No."}, "Hi", "Yo.", "No."),
    two("RewardBench", {"prompt": "Hi", "chosen": "Yo.", "chosen_model": "m", "rejected": "No.", "subset": "easy",
        "id": 3}, "Hi", "Yo.", "No.", unread=("chosen_model (1)", "subset (1)", "id (1)")),
    two("Orca", {"system": "Be brief.", "question": "Hi", "chosen": "Yo.", "rejected": "No."},
        talk("Hi", persona="Be brief."), "Yo.", "No."),
    two("distilabel", {"input": "Hi", "chosen": "Yo.", "rejected": "No."}, "Hi", "Yo.", "No."),
    two("Alpaca, LLaMA-Factory", {"instruction": "Greet.", "input": "Ann", "output": None, "chosen": "Hi Ann",
        "rejected": "No."},
        "Greet.\n\nAnn", "Hi Ann", "No."),
    two("ShareGPT, LLaMA-Factory", {"conversations": [{"from": "human", "value": "Hi"}],
        "chosen": {"from": "gpt", "value": "Yo."}, "rejected": {"from": "gpt", "value": "No."}}, "Hi", "Yo.", "No."),
    two("messages, LLaMA-Factory", {"messages": [user("Hi")], "chosen": bot("Yo."), "rejected": bot("No.")},
        "Hi", "Yo.", "No."),
    two("argilla", {"instruction": "Hi", "chosen_response": "Yo.", "rejected_response": "No."}, "Hi", "Yo.", "No."),
    two("chosen_messages", {"chosen_messages": [user("Hi"), bot("Yo.")], "rejected_messages": [user("Hi"), bot("No.")]},
        "Hi", "Yo.", "No."),
    two("MedicalGPT", {"system": "A doctor.", "history": [["Ill?", "Yes."]], "question": "And now?",
        "response_chosen": "Rest.", "response_rejected": "Run."}, talk("Ill?", "Yes.", "And now?", persona="A doctor."),
        "Rest.", "Run."),
    two("OpenAI's preferences", {"input": {"messages": [user("Hi")], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [bot("Yo.")], "non_preferred_output": [bot("No.")]}, "Hi", "Yo.", "No."),
    two("AlpacaFarm", {"instruction": "Greet.", "input": "Ann", "output_1": "No.", "output_2": "Hi Ann",
        "preference": 2}, "Greet.\n\nAnn", "Hi Ann", "No."),
    two("PKU-SafeRLHF", {"prompt": "Hi", "response_0": "Yo.", "response_1": "No.", "better_response_id": 0,
        "safer_response_id": 1, "is_response_0_safe": True}, "Hi", "Yo.", "No.",
        unread=("safer_response_id (1)", "is_response_0_safe (1)")),
    two("answers a and b", {"question": "Hi", "answer_a": "No.", "answer_b": "Yo.", "winner": "B"}, "Hi", "Yo.", "No."),
    two("Chatbot Arena", ARENA, "Name a prime.", "Seven.", "Nine.",
        unread=("question_id (1)", "model_a (1)", "model_b (1)", "judge (1)", "turn (1)", "language (1)")),
    two("SHP", SHP, "Why does my bread sink?", "Proof it for less long.", "Too much water.",
        unread=("post_id (1)", "domain (1)", "c_root_id_A (1)", "score_A (1)", "score_B (1)")),
    two("summarize-from-feedback", SUMMARIES,
        "SUBREDDIT: r/cats\n\nTITLE: Cat!\n\nPOST: My cat sleeps on the keyboard.\n\nTL;DR:", "The cat types.",
        "A keyboard.", unread=("worker (1)", "batch (1)", "split (1)", "extra (1)")),
    two("summarize-from-feedback, the second", {**SUMMARIES, "choice": 1},
        "SUBREDDIT: r/cats\n\nTITLE: Cat!\n\nPOST: My cat sleeps on the keyboard.\n\nTL;DR:", "A keyboard.",
        "The cat types.", unread=("worker (1)", "batch (1)", "split (1)", "extra (1)")),
    two("WebGPT", {"question": {"dataset": "eli5", "id": "8qx", "full_text": "Why is the sky blue?"},
        "answer_0": "Paint.", "score_0": -1.0, "answer_1": "Scattering [1].", "score_1": 1.0}, "Why is the sky blue?",
        "Scattering [1].", "Paint."),
    two("HelpSteer2's preferences", {"prompt": "Hi", "response_1": "No.", "response_2": "Yo.", "preference_strength": 2,
        "preference_statement": "2 is kind", "split": "train"}, "Hi", "Yo.", "No.",
        unread=("preference_statement (1)", "split (1)")),
    two("HelpSteer3's preferences", {"domain": "general", "context": [user("Hi")], "response1": "Yo.",
        "response2": "No.", "overall_preference": -1}, "Hi", "Yo.", "No.", unread=("domain (1)",)),
]  # fmt: skip

RANKINGS = [
    Case("our rankings", {"prompt": "Hi", "replies": ["Yo.", "No.", "Hm."], "ranks": [1, 3, 2]}, talk("Hi"),
         pair=("Yo.", "No."), group=(("Yo.", "No.", "Hm."), (1, 3, 2))),
    Case("UltraFeedback", {"source": "evol", "instruction": "Hi", "models": ["a", "b"], "completions": [
         {"response": "Hm.", "overall_score": 7.5}, {"response": "No.", "overall_score": 2},
         {"response": "Yo.", "overall_score": 8}, {"response": "So?", "overall_score": 7.5}]}, talk("Hi"),
         pair=("Yo.", "No."), group=(("Hm.", "No.", "Yo.", "So?"), (2, 3, 1, 2)),
         unread=("source (1)", "models (1)")),
    Case("UltraFeedback, scores of aspects", {"instruction": "Hi", "completions": [
         {"response": "No.", "overall_score": 9, "fine-grained_score": 1.25},
         {"response": "Yo.", "overall_score": None, "fine-grained_score": 4.5}]}, talk("Hi"),
         pair=("Yo.", "No."), group=(("No.", "Yo."), (2, 1))),
    Case("RewardBench 2", {"id": "1", "prompt": "Hi", "chosen": ["Yo."], "rejected": ["No.", "Hm.", "So?"],
         "num_correct": 1}, talk("Hi"), pair=("Yo.", "No."), group=(("Yo.", "No.", "Hm.", "So?"), (1, 2, 2, 2)),
         unread=("id (1)", "num_correct (1)")),
    Case("Nectar", {"prompt": "\n\nHuman: Hi\n\nAssistant: ", "turns": 1, "source": ["lmsys"], "answers": [
         {"answer": "Yo.", "model": "m", "rank": 1.0}, {"answer": "Hm.", "model": "n", "rank": 2.0},
         {"answer": "No.", "model": "o", "rank": 3.0}]}, talk("Hi"), pair=("Yo.", "No."),
         group=(("Yo.", "Hm.", "No."), (1, 2, 3)), unread=("turns (1)", "source (1)")),
    Case("OpenAssistant's tree", TREE, talk("How do I knit?", "With needles.", "Which ones?"),
         pair=("Bamboo ones, of 4 mm.", "No idea."),
         group=(("Long ones.", "Bamboo ones, of 4 mm.", "No idea."), (2, 1, 3)),
         unread=("message_tree_id (1)", "tree_state (1)")),
]  # fmt: skip
CASES = [*ONE_REPLY, *CHATS, *THUMBS, *PAIRS, *RANKINGS]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
Read = Callable[..., tuple[Sequence[Any], Sequence[Rejection]]]


def read_one(read: Read, row: dict[str, Any]) -> list[Any] | None:
    """The example that a stage makes of a row; None if it refuses the data set or rejects the row."""
    try:
        rows, rejections = read(records(row))
    except InputError:
        return None
    assert bool(rows) != bool(rejections)
    return list(rows) or None


def prompts_of(folder: Path, *rows: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """(tasks as PPO reads them from a file, lines on what was read)."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_prompts(RolloutConfig(str(path), eval_size=0), 0)
    assert found.rejections == []
    return [dict(task) for task in found.train], list(found.reading)


@each_case
def test_sft_learns_the_reply_of_each_format(case: Case) -> None:
    found = read_one(validate_chats, case.row)
    if case.chat is None and not case.text:
        assert found is None
        return
    assert found is not None
    [chat] = found
    assert (chat.conversation, chat.outputs) == (case.chat or (Conversation(()), ()))
    assert chat.text == case.text


@each_case
def test_pairs_and_their_chosen_side_are_those_of_each_format(case: Case) -> None:
    found, chosen = read_one(validate, case.row), read_one(validate_chosen, case.row)
    if case.pair is None:
        assert found is None
        assert chosen is None
        return
    assert found is not None
    assert chosen is not None
    [pair], [chat] = found, chosen
    assert (pair.conversation, pair.chosen, pair.rejected) == (case.asks, *case.pair)
    assert (pair.margin, pair.preference) == (0, 1)
    assert chat.conversation.turns == (*pair.conversation.turns, Turn("bot", pair.chosen))
    assert chat.prompt == pair.conversation


@each_case
def test_thumbs_are_those_of_each_format(case: Case) -> None:
    found = read_one(thumbs.validate, case.row)
    expected = case.liked or tuple(zip(case.pair or (), (True, False), strict=False))
    if not expected:
        assert found is None
        return
    assert found is not None
    assert [(thumb.conversation, thumb.reply, thumb.liked) for thumb in found] == [
        (case.asks, reply, liked) for reply, liked in expected
    ]


@each_case
def test_groups_are_those_of_each_format(case: Case) -> None:
    found = read_one(validate_groups, case.row)
    if case.group is None:
        assert found is None
        return
    assert found is not None
    [group] = found
    assert (group.conversation, group.replies, group.ranks) == (case.asks, *case.group)


@each_case
def test_prompts_are_those_of_each_format_and_other_columns_reach_the_reward(case: Case, tmp_path: Path) -> None:
    [task], _ = prompts_of(tmp_path, case.row)
    assert task.pop("prompt") == case.asks
    others = {name: value for name, value in case.row.items() if name not in (*FORMS, "rejected")}
    if "preference" in others:
        others["preference"] = None  # which we use for a probability
    assert task == others


def scored(row: dict[str, Any], columns: ColumnConfig | None = None) -> list[score.ScoredRow]:
    wanted, columns = replace(score.WANTED, reads=score._reads), columns or ColumnConfig()
    rows, rejections = read_rows(interpret([records(row)], wanted, columns), score.read_row)
    assert rejections == []
    return rows


@each_case
def test_score_reads_the_replies_of_each_format(case: Case) -> None:
    expected = case.scored or case.pair or (case.chat and (case.chat[0].turns[-1].text,))
    if not expected:
        with pytest.raises((InputError, AssertionError)):
            scored(case.row)
        return
    [row] = scored(case.row)
    assert (row.conversation, row.replies) == (case.asks, expected)


@each_case
def test_columns_that_are_not_read_are_named(case: Case) -> None:
    notes: list[str] = []
    read: Read = validate if case.pair else thumbs.validate if case.liked and not case.chat else validate_chats
    try:
        read(records(case.row), notes=notes)
    except InputError:
        assert case.pair is None
        assert case.chat is None
        return
    [line] = notes
    assert line.startswith("rows.jsonl: 1 rows; read: ")
    _, _, unread = line.partition("; not read: ")
    assert unread == ", ".join(case.unread)


STAGE_OF: dict[str, Read] = {
    "a conversation": validate_chats,
    "the same": validate_chats,
    "a text": validate_chats,
    "a thumb": thumbs.validate,
    "a pair": validate,
    "a ranking": validate_groups,
    "read by `train sft soft_targets`": validate_distillation_rows,
}


def test_the_rows_of_the_page_on_formats_are_read_as_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/data_formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|(.*?)\|(.*?)\| `([{\[].*[}\]])` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 40
    for name, _, example, made in rows:
        path = tmp_path / "rows.jsonl"
        path.write_text(f"{example}\n" * (1 + example.startswith("[")))  # a single list may be a list of rows
        kind = next((kind for kind in STAGE_OF if made.startswith(kind)), "a prompt")
        assert len(read_prompts(RolloutConfig(str(path), eval_size=0), 0).train) == 1, f"PPO reads no prompt: {name}"
        if kind == "a prompt":
            assert made.startswith(kind), made
            continue
        found, rejections = STAGE_OF[kind](read_records(str(path)))
        assert found, f"{name}: {rejections}"
        assert rejections == []
        if kind == "a pair":
            assert (words_of(found[0].chosen), words_of(found[0].rejected)) in (
                ("Hello!", "What?"),
                ("A cat types.", "Cat."),
            )


def test_a_column_that_ppo_gives_to_the_reward_function_is_said_to_go_there(tmp_path: Path) -> None:
    _, [line] = prompts_of(tmp_path, {"question": "2 and 2 apples?", "answer": "2+2 = 4\n#### 4"})
    read, _, rest = line.partition("; to the reward function: ")
    assert read.startswith("rows.jsonl: 1 rows; read: question")
    assert rest == "answer (1)"


# what cannot be read in one way only


def refusal(read: Read, *rows: dict[str, Any], **settings: Any) -> str:
    """Why a data set, or the last of its rows, is refused."""
    try:
        _, rejections = read(records(*rows), **settings)
    except InputError as error:
        return str(error)
    assert rejections
    return f"{rejections[-1].field}: {rejections[-1].found}"


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


# real rows


def real_rows(name: str) -> list[Record]:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} of ../shared/data, which is not here")
    return read_records(str(path))


def raw(record: Record) -> dict[str, Any]:
    return dict(record.row or record.fields)


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("llmbar/pairs.jsonl", ("subset", "id", "first_is_chosen")),
        ("xstest/benign_pairs.jsonl", ("type",)),
        ("hh-rlhf-harmless/pairs.jsonl.gz", ()),
    ],
)
def test_real_pairs_are_read(name: str, unread: tuple[str, ...]) -> None:
    found = real_rows(name)
    notes: list[str] = []
    pairs, rejections = validate(found, notes=notes)
    assert len(pairs) + len(rejections) == len(found)
    assert len(pairs) > 0.95 * len(found)
    assert notes[0].partition("; not read: ")[2] == ", ".join(f"{column} ({len(found):,})" for column in unread)
    of_line = {record.line: raw(record) for record in found}
    for pair in pairs:
        row = of_line[pair.line]
        assert row["chosen"].rstrip().endswith(words_of(pair.chosen))
        assert row["rejected"].rstrip().endswith(words_of(pair.rejected))
        if "prompt" in row:
            assert pair.conversation == talk(row["prompt"].strip())
        assert {turn.speaker for turn in pair.conversation.turns} <= {"user", "bot"}
        assert "\n\nHuman:" not in pair.chosen + pair.rejected


def test_real_questions_of_gsm8k_are_prompts_and_their_reply_is_named_by_a_flag(tmp_path: Path) -> None:
    rows = real_rows("gsm8k-solutions/train_1000.jsonl.gz")
    tasks, [line] = prompts_of(tmp_path, *map(raw, rows[:50]))
    assert [task["answer"] for task in tasks] == [raw(row)["answer"] for row in rows[:50]]
    assert line.startswith("rows.jsonl: 50 rows; read: prompt (plain text)")
    assert "holds no conversations: found the columns answer, prompt, solution" in refusal(validate_chats, raw(rows[0]))
    chats, _ = validate_chats(rows, columns=ColumnConfig(reply_column="solution"))
    assert len(chats) == 1000
    assert chats[0].conversation == talk(raw(rows[0])["prompt"].strip(), raw(rows[0])["solution"].strip())
    original = [{"question": raw(row)["prompt"], "answer": raw(row)["solution"]} for row in rows]  # as it is published
    assert [chat.conversation for chat in validate_chats(records(*original))[0]] == [
        chat.conversation for chat in chats
    ]


def test_a_few_messages_among_plain_texts_are_rejected_and_never_learned_as_text() -> None:
    for cell in (json.dumps([bot("a")]), '[{"role": "assistant", "content": "a'):
        rows = [{"prompt": f"q {i}", "completion": cell if i == 5 else "a"} for i in range(30)]
        chats, [rejection] = validate_chats(records(*rows))
        assert len(chats) == 29
        assert rejection.found.startswith("messages in a column of plain text: '[{")

"""A row of each format and what each stage makes of it, and readers of single rows, for the tests of formats."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmgym.cli import score
from lmgym.config import ColumnConfig
from lmgym.data.prompts import read_prompts
from lmgym.data.reading import interpret
from lmgym.data.records import Record
from lmgym.data.rejections import Rejection
from lmgym.data.rows import read_rows
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn
from ppo.config import RolloutConfig


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


def scored(row: dict[str, Any], columns: ColumnConfig | None = None) -> list[score.ScoredRow]:
    wanted, columns = replace(score.WANTED, reads=score._reads), columns or ColumnConfig()
    rows, rejections = read_rows(interpret([records(row)], wanted, columns), score.read_row)
    assert rejections == []
    return rows


# what cannot be read in one way only


def refusal(read: Read, *rows: dict[str, Any], **settings: Any) -> str:
    """Why a data set, or the last of its rows, is refused."""
    try:
        _, rejections = read(records(*rows), **settings)
    except InputError as error:
        return str(error)
    assert rejections
    return f"{rejections[-1].field}: {rejections[-1].found}"

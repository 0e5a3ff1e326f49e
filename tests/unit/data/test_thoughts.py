"""Replies behind a generation prompt that opens a thought, in every stage that trains on replies."""

import json

import pytest
from chat_kinds import DEEPSEEK, QWEN, QWEN3_TEXT, R1, R1_THINKS, Kind

from lmgym.data.pairs import Pair
from lmgym.data.thoughts import filled, opening
from lmgym.data.truncation import tokenize_replies
from lmgym.text import Conversation, Turn
from preferences.examples import tokenize_pairs, tokenize_thumbs
from preferences.thumbs import Thumb
from reward_models.data import tokenize_pairs as tokenize_scored_pairs
from reward_models.kwise import Group, tokenize_groups
from sft.conversations import TrainingChat
from sft.tokenization import tokenize_chats

THINKING = r"{{ '<|im_start|>assistant\n<think>\n' if add_generation_prompt else '' }}"
QWEN_THINKS = Kind(
    "qwen thinks",
    QWEN["backend"],
    QWEN3_TEXT.replace(r"{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}", THINKING),
    QWEN["eos"],
    marks=("<|im_start|>", "<think>", "</think>"),
)
MAGISTRAL = Kind(
    "of brackets",
    R1.backend,
    R1_THINKS.template.replace("<think>", "[THINK]").replace("</think>", "[/THINK]"),
    DEEPSEEK["eos"],
    DEEPSEEK["bos"],
    DEEPSEEK["marks"],
)
ROLES_IN_TAGS = Kind(
    "roles in tags",
    QWEN["backend"],
    r"{%- for m in messages -%}{{ '<' + m.role + '>' + m.content + '</' + m.role + '>' }}{%- endfor -%}"
    r"{{ '<assistant>' if add_generation_prompt else '' }}",
)
OPENING = {R1_THINKS: "<think>", QWEN_THINKS: "<think>", MAGISTRAL: "[THINK]"}
CHAT = Conversation((Turn("user", "two and two?"),))
REFUSED = "a reply without a thought, where the chat template's generation prompt ends in "


def thinking(thought: str, text: str) -> Turn:
    return Turn("bot", text, json.dumps({"reasoning_content": thought}))


def in_text(kind: Kind, thought: str, text: str) -> str:
    mark = OPENING[kind]
    return f"{mark}\n{thought}\n{mark[0]}/{mark[1:]}\n\n{text}"


def learned(kind: Kind, reply) -> list[str]:
    """The text that each stage predicts of a reply, or the reason why it refuses it."""
    other, found = thinking("no", "3"), []
    for examples, rejections in (
        tokenize_pairs([Pair(CHAT, reply, other)], kind.tokenizer, 500),
        tokenize_thumbs([Thumb(CHAT, reply, True)], kind.tokenizer, 500),
    ):
        found += [str(one.found) for one in rejections]
        found += [kind.decoded(one.replies.suffixes[0][1:]) for one in examples]
    turn = reply if isinstance(reply, Turn) else Turn("bot", reply)
    chat = TrainingChat(Conversation((*CHAT.turns, turn)), (1,), file="f", line=1)
    rows, rejections = tokenize_chats([chat], kind.tokenizer, 500)
    found += [str(one.found) for one in rejections] + [kind.decoded(row.targets[:-1]) for row in rows]
    for examples, rejections in (
        tokenize_scored_pairs([Pair(CHAT, reply, other)], kind.tokenizer, 500),
        tokenize_groups([Group(CHAT, (reply, other), (1, 2))], kind.tokenizer, 500),
    ):
        found += [str(one.found) for one in rejections]
        for one in examples:
            text = kind.decoded(one.replies.prefix + one.replies.suffixes[0])
            found.append(text.partition(OPENING[kind] + "\n")[2].removesuffix(kind.eos))
    assert len(found) == 5
    return found


@pytest.mark.parametrize("kind", OPENING, ids=lambda kind: kind.name)
def test_a_reply_with_its_thought_is_learned_behind_the_opening_in_every_stage(kind: Kind) -> None:
    mark = OPENING[kind]
    expected = f"add them\n{mark[0]}/{mark[1:]}\n\n4"
    assert set(learned(kind, in_text(kind, "add them", "4"))) == {expected}
    assert set(learned(kind, expected)) == {expected}  # as a policy samples it
    if kind is not MAGISTRAL:  # whose template would be given its own field
        assert set(learned(kind, thinking("add them", "4"))) == {expected}


@pytest.mark.parametrize("kind", OPENING, ids=lambda kind: kind.name)
def test_a_reply_without_a_thought_is_refused_by_the_flags_name_or_has_an_empty_one(kind: Kind) -> None:
    mark = OPENING[kind]
    for words in learned(kind, "4"):
        assert words.startswith(REFUSED + mark)
        assert "--thoughts empty" in words
    [text] = set(learned(kind, filled(kind.tokenizer, "4")))
    assert text.lstrip("\n") == f"{mark[0]}/{mark[1:]}\n\n4"


def test_new_scorers_read_an_empty_thought_where_a_reply_has_none_and_old_ones_the_templates_text() -> None:
    for as_sampled, expected in ((True, "<think>\n\n</think>\n\n4"), (False, "4")):
        [row] = tokenize_replies(
            R1_THINKS.tokenizer, [CHAT], [["4", "5"]], 500, may_lose_text=True, as_sampled=as_sampled
        )
        text = R1_THINKS.decoded(row.prefix + row.suffixes[0]).removesuffix(R1_THINKS.eos)
        assert text.partition("<｜Assistant｜>")[2] == expected


def test_a_role_in_tags_and_a_template_that_writes_its_own_empty_thought_open_none() -> None:
    for kind in (ROLES_IN_TAGS, R1, Kind("qwen", QWEN["backend"], QWEN3_TEXT, QWEN["eos"], marks=("<|im_start|>",))):
        assert opening(kind.tokenizer) is None
        assert filled(kind.tokenizer, "4") == "4"
    assert opening(R1_THINKS.tokenizer).added == "<think>\n"
    assert opening(QWEN_THINKS.tokenizer).added == ""

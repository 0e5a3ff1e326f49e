"""One tokenisation: SFT, preferences, scorers and generation have the same ids of a prompt and of the replies to it.

Properties over random conversations and tokenizers with templates of many kinds (tests/chat_kinds.py).
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import accumulate, takewhile
from typing import NamedTuple

import numpy as np
import pytest
from chat_kinds import BERT, CROSSING, DECODERS, ENDS, KINDS, MASKED, R1, SAMPLES, Kind, random_chat, random_text
from chat_texts import chat_of

from lmgym.data.truncation import tokenize_apart, tokenize_replies
from lmgym.text import Conversation, Replies, Reply, Turn, as_reply, messages, render
from sft.conversations import TrainingChat
from sft.tokenization import Example, tokenize_chats

CHATS, LENGTH = 40, 10_000  # nothing is truncated
THOUGHT_LOST = "chat template removes the text between <think> and </think>"
HI = Conversation((Turn("user", "hi"),))

every_decoder = pytest.mark.parametrize("kind", DECODERS, ids=str)
every_thinker = pytest.mark.parametrize("kind", [kind for kind in DECODERS if kind.writes_reasoning], ids=str)


class Output(NamedTuple):
    """A turn that is learned, and what generation is given before it."""

    key: tuple[int, tuple[int, ...]]
    """the line of its chat, and the ids that generation is given"""
    prompt: Conversation
    reply: Reply
    prompt_text: str
    written: str
    """what the template writes behind it"""

    @property
    def given(self) -> tuple[int, ...]:
        return self.key[1]


def output_of(kind: Kind, chat: TrainingChat, turn: int) -> Output:
    turns = chat.conversation.turns
    prompt, reply = replace(chat.conversation, turns=turns[:turn]), as_reply(turns[turn])
    text, whole = render(kind.tokenizer, prompt), render(kind.tokenizer, prompt, reply)
    assert whole.startswith(text)
    return Output((chat.line, tuple(kind.ids(text))), prompt, reply, text, whole[len(text) :])


@cache
def chats_of(kind: Kind) -> list[TrainingChat]:
    rng = random.Random(kind.name)
    return [TrainingChat(*random_chat(rng, kind), line=line) for line in range(CHATS)]


@cache
def outputs(kind: Kind) -> list[Output]:
    return [output_of(kind, chat, turn) for chat in chats_of(kind) for turn in chat.outputs]


def rows_of(kind: Kind, chats: list[TrainingChat]) -> list[Example]:
    rows, rejections = tokenize_chats(chats, kind.tokenizer, LENGTH)
    assert rejections == []
    return rows


class Learned(NamedTuple):
    """The part of a row that is one output."""

    row: Example
    places: list[int]
    targets: list[int]


def learned(kind: Kind, rows: list[Example]) -> dict[tuple[int, tuple[int, ...]], Learned]:
    """By the line of its chat and the ids before it: each output."""
    found: dict[tuple[int, tuple[int, ...]], Learned] = {}
    for row in rows:
        assert len(row.places) == len(row.targets)
        ends = [i + 1 for i, target in enumerate(row.targets) if target == kind.end_id]
        assert ends[-1] == len(row.targets)  # the end of its turn is the last target of each output
        for start, end in zip([0, *ends], ends, strict=False):
            key = int(row.origin.rpartition(":")[2]), tuple(row.ids[: row.places[start] + 1])
            assert key not in found  # each stands once
            found[key] = Learned(row, row.places[start:end], row.targets[start:end])
    return found


@cache
def by_sft(kind: Kind) -> list[Learned]:
    """Each output in a row in which the ids before it are those that generation is given."""
    found = learned(kind, rows_of(kind, chats_of(kind)))
    missing = [output for output in outputs(kind) if output.key not in found]
    assert not missing, f"{len(missing)} of {len(outputs(kind))} do not follow {missing[0].prompt_text!r}"
    assert len(found) == len(outputs(kind))
    return [found[output.key] for output in outputs(kind)]


@cache
def replied(kind: Kind, how: Callable) -> list[Replies]:
    """Every output with another reply to the same prompt, tokenised by one of lmgym's functions in one call."""
    rng = random.Random(kind.name)
    pairs = [[output.reply, random_text(rng, kind)] for output in outputs(kind)]
    found = how(kind.tokenizer, [output.prompt for output in outputs(kind)], pairs, LENGTH)
    assert [one for one in found if isinstance(one, str)] == []
    assert {len(one.suffixes) for one in found} == {2}
    return found


def of_sft(kind: Kind) -> list[list[int]]:
    """The ids of each reply without the end behind it."""
    return [output.targets[:-1] for output in by_sft(kind)]


def of_dpo(kind: Kind) -> list[list[int]]:
    for output, row in zip(outputs(kind), found := replied(kind, tokenize_apart), strict=True):
        assert {tuple(row.prefix + suffix[:1]) for suffix in row.suffixes} == {output.given}
    return [row.suffixes[0][1:] for row in found]


def of_scorer(kind: Kind) -> list[list[int]]:
    """Before the end of the turn, if the template writes it."""
    found, end = [], kind.end_id
    for output, row in zip(outputs(kind), replied(kind, tokenize_replies), strict=True):
        whole = row.prefix + row.suffixes[0]
        assert tuple(whole[: len(output.given)]) == output.given
        found.append(list(takewhile(lambda token: token != end, whole[len(output.given) :])))
    return found


every_reader = pytest.mark.parametrize("replies", [of_sft, of_dpo, of_scorer])


def offsets(kind: Kind, output: Output) -> list[tuple[int, int]]:
    text = output.prompt_text + output.written
    return kind.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets


def is_parted(kind: Kind, output: Output) -> bool:
    """True if no token of the whole text lies across the border of prompt and reply."""
    border = len(output.prompt_text)
    return not any(begin < border < end for begin, end in offsets(kind, output))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_kind_of_tokenizer_keeps_any_text(kind: Kind) -> None:
    assert 300 < len(kind.tokenizer) < 1000
    for text in SAMPLES if kind.keeps_text else ():
        back, text = kind.seen(kind.decoded(kind.ids(text))), kind.seen(text)
        assert back == text or (kind.blanks in ("first", "marks") and back.removeprefix(" ") == text.removeprefix(" "))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ENDS], ids=str)
def test_a_template_writes_a_short_chat_as_its_models_does(kind: Kind) -> None:
    turns = Turn("user", "u"), Turn("bot", "a"), Turn("user", "v")
    prompt, (end, reply) = Conversation(turns, "S" if kind.takes_system else ""), ENDS[kind.name]
    text = render(kind.tokenizer, prompt)
    assert text.endswith(end)
    assert render(kind.tokenizer, prompt, "b") == text + reply


@every_decoder
def test_sft_learns_each_output_behind_the_ids_that_generation_is_given_as_dpo_does(kind: Kind) -> None:
    assert of_sft(kind) == of_dpo(kind)


@every_decoder
def test_a_scorer_reads_the_ids_of_generation_and_dpo_and_then_the_end_of_the_turn(kind: Kind) -> None:
    assert of_scorer(kind) == of_dpo(kind)
    for output, row in zip(outputs(kind), replied(kind, tokenize_replies), strict=True):
        behind = kind.decoded(row.prefix + row.suffixes[0])[len(kind.decoded(output.given)) :]
        reply, end, _ = output.written.partition(kind.end)
        written = reply + end
        if kind.blanks == "kept":
            assert behind == kind.seen(written)
        elif kind.keeps_text:  # some blanks are added behind marks, or lost
            assert "".join(behind.split()) == "".join(kind.seen(written).split())


@every_decoder
@every_reader
def test_the_ids_of_a_reply_decode_to_what_the_template_writes_of_it(kind: Kind, replies: Callable) -> None:
    for output, reply in zip(outputs(kind), replies(kind), strict=True):
        text = output.written.partition(kind.end)[0]
        if kind.keeps_text:
            before, both = kind.decoded(output.given), kind.decoded([*output.given, *reply])
            assert both.startswith(before)
            assert kind.seen(both[len(before) :]) == kind.seen(text)
        turn = output.reply if isinstance(output.reply, Turn) else Turn("bot", output.reply)
        thought = json.loads(turn.extra)["reasoning_content"] if turn.extra else ""
        assert turn.text.strip() in text
        assert thought.strip() in text


@every_decoder
@every_reader
def test_where_no_token_crosses_it_prompt_and_reply_begin_the_whole_text(kind: Kind, replies: Callable) -> None:
    parted = [is_parted(kind, output) for output in outputs(kind)]
    assert sum(parted) > 20
    assert kind not in CROSSING or not all(parted)
    for output, reply, is_apart in zip(outputs(kind), replies(kind), parted, strict=True):
        both = [*output.given, *reply]
        assert not is_apart or kind.ids(output.prompt_text + output.written)[: len(both)] == both


@every_decoder
def test_nothing_but_outputs_is_learned(kind: Kind) -> None:
    rows, end = rows_of(kind, chats_of(kind)), kind.end_id
    assert sum(len(row.targets) for row in rows) == sum(len(reply) + 1 for reply in of_dpo(kind))
    for row in rows:
        assert row.places == sorted(set(row.places))
        assert all(t == end or row.ids[place + 1] == t for place, t in zip(row.places, row.targets, strict=True))
    for part, output in zip(by_sft(kind), outputs(kind), strict=True):
        first = len(output.given) - 1
        assert part.places == list(range(first, first + len(part.targets)))


@every_decoder
def test_a_chat_is_one_row_unless_its_template_rewrites_it_or_a_token_lies_across_a_border(kind: Kind) -> None:
    rows = rows_of(kind, [chat_of("hi", "the first", "who", "the second")])
    assert len(rows) == (2 if kind.rewrites_history or kind in CROSSING else 1)


@pytest.mark.parametrize("kind", MASKED, ids=str)
def test_transformers_mask_of_the_assistants_tokens_is_what_sft_learns(kind: Kind) -> None:
    both = list(zip(outputs(kind), by_sft(kind), strict=True))
    assert sum(is_parted(kind, output) for output, _ in both) > 20
    for output, part in both:
        found = kind.tokenizer.apply_chat_template(
            messages(output.prompt, output.reply), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = found["input_ids"], found["assistant_masks"]
        start = max(place for place, marked in enumerate(mask) if marked and not mask[place - 1])
        end = max(place for place, marked in enumerate(mask) if marked) + 1
        at = offsets(kind, output)
        while end < len(ids) and at[end] == at[end - 1]:
            end += 1  # of a last character in several tokens transformers marks the first
        if is_parted(kind, output):
            assert tuple(ids[:start]) == output.given
            assert ids[start:end] == part.targets[: None if ids[end - 1] == kind.end_id else -1]


@cache
def table(size: int) -> np.ndarray:
    """Log-probabilities [states, tokens] of a made-up model."""
    logits = np.random.default_rng(0).normal(size=(211, size))
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def log_probability(kind: Kind, ids: list[int], places: list[int], targets: list[int]) -> float:
    """Of targets, each after the ids up to its place, under a model whose state is a number of all of these."""
    rows = table(len(kind.tokenizer))
    states = list(accumulate(ids, lambda state, token: (state * 31 + token + 1) % 1_000_003, initial=0))
    return sum(rows[states[place + 1] % len(rows), target] for place, target in zip(places, targets, strict=True))


@every_decoder
def test_a_reply_has_the_same_log_probability_as_sft_dpo_and_a_scorer_read_it(kind: Kind) -> None:
    end = kind.end_id
    both = zip(by_sft(kind), replied(kind, tokenize_apart), replied(kind, tokenize_replies), strict=True)
    for part, apart, scored in both:
        expected = log_probability(kind, part.row.ids, part.places, part.targets)
        ids, start = apart.prefix + apart.suffixes[0], len(apart.prefix)
        places = list(range(start, len(ids)))
        assert log_probability(kind, ids, places, [*ids[start + 1 :], end]) == pytest.approx(expected, abs=1e-9)
        whole = scored.prefix + scored.suffixes[0]
        if whole[len(ids) : len(ids) + 1] != [end]:  # the template writes none
            expected -= log_probability(kind, part.row.ids, part.places[-1:], [end])
            places = places[:-1]
        read = [whole[place + 1] for place in places]
        assert log_probability(kind, whole, places, read) == pytest.approx(expected, abs=1e-9)


@every_decoder
@pytest.mark.parametrize("length", [70, 140])
def test_what_truncation_leaves_is_the_same_for_sft_dpo_and_a_scorer(kind: Kind, length: int) -> None:
    kept = 0
    for chat in chats_of(kind):
        rows, rejections = tokenize_chats([replace(chat, outputs=chat.outputs[-1:])], kind.tokenizer, length)
        apart, scored = others(kind, chat, length)
        assert isinstance(apart, str) == isinstance(scored, str) == bool(rejections) == (not rows)
        for row in rows:
            whole, kept = scored.prefix + scored.suffixes[0], kept + 1
            assert row.ids == apart.prefix + apart.suffixes[0] == whole[: len(row.ids)]
            assert len(whole) <= length
    assert kept > 5


def others(kind: Kind, chat: TrainingChat, length: int = LENGTH) -> list[Replies | str]:
    """The last output of a chat for DPO and for a scorer."""
    reply = as_reply(chat.conversation.turns[-1])
    return [how(kind.tokenizer, [chat.prompt], [[reply]], length)[0] for how in (tokenize_apart, tokenize_replies)]


def reasons(kind: Kind, chat: TrainingChat) -> list[str]:
    """Why SFT, DPO and a scorer refuse the last output of a chat; each must."""
    rows, [rejection] = tokenize_chats([chat], kind.tokenizer, LENGTH)
    assert rows == []
    return [rejection.found, *map(str, others(kind, chat))]  # ids are no reason that a test looks for


@pytest.mark.parametrize("kind", [kind for kind in DECODERS if not kind.takes_system], ids=str)
def test_a_template_without_a_system_message_refuses_one_in_its_words(kind: Kind) -> None:
    assert all("no system message" in reason for reason in reasons(kind, chat_of("hi", "yo", persona="Be kind.")))


@pytest.mark.parametrize("kind", [kind for kind in DECODERS if kind.strips_thoughts_always], ids=str)
def test_a_reply_whose_thought_the_template_removes_is_refused_for_that_reason(kind: Kind) -> None:
    for text in ("<think>a</think>b", "<think>\na\n</think>\n\nb"):
        assert all(THOUGHT_LOST in reason for reason in reasons(kind, chat_of("hi", text)))
    pair = ["<think>a</think>b", "<think>c</think>b"]  # which would be identical
    found = [how(kind.tokenizer, [HI], [pair], LENGTH)[0] for how in (tokenize_apart, tokenize_replies)]
    assert all(THOUGHT_LOST in str(reason) for reason in found)


def test_an_earlier_reply_that_loses_its_thought_is_not_learned_in_that_form() -> None:
    texts = "hi", "<think>a</think>b", "who", "me"
    rows, [rejection] = tokenize_chats([chat_of(*texts)], R1.tokenizer, LENGTH)
    assert [R1.decoded(row.targets) for row in rows] == ["me" + R1.eos]
    assert THOUGHT_LOST in rejection.found
    chat = chat_of(*texts, outputs=(3,))  # as generation has it, it may stand before an output
    assert learned(R1, rows).keys() == learned(R1, rows_of(R1, [chat])).keys() == {output_of(R1, chat, 3).key}


def test_an_encoder_scores_the_whole_text_between_its_marks() -> None:
    rng = random.Random(0)
    for chat in chats_of(BERT):
        replies = [chat.conversation.turns[-1].text, random_text(rng, BERT)]
        [found] = tokenize_replies(BERT.tokenizer, [chat.prompt], [replies], LENGTH)
        for reply, suffix in zip(replies, found.suffixes, strict=True):
            assert found.prefix + suffix == BERT.tokenizer(render(BERT.tokenizer, chat.prompt, reply)).input_ids


def thinking(text: str, thought: str) -> Turn:
    return Turn("bot", text, json.dumps({"reasoning_content": thought}))


@every_thinker
def test_each_output_of_a_chat_with_thoughts_is_a_row_of_what_its_turn_saw(kind: Kind) -> None:
    turns = Turn("user", "hi"), thinking("b", "first"), Turn("user", "who"), thinking("d", "then")
    chat = TrainingChat(Conversation(turns), (1, 3))
    rows = rows_of(kind, [chat])
    assert [kind.decoded(row.targets) for row in rows] == [
        f"<think>\nfirst\n</think>\n\nb{kind.eos}",
        f"<think>\nthen\n</think>\n\nd{kind.eos}",
    ]
    assert [*learned(kind, rows)] == [output_of(kind, chat, turn).key for turn in chat.outputs]
    assert all("<think>" not in output_of(kind, chat, turn).prompt_text for turn in chat.outputs)


THOUGHTS = {
    "a field": thinking("4", "two and two"),
    "text": Turn("bot", "<think>\ntwo and two\n</think>\n\n4"),
    # the template writes these with other blanks or marks; nothing is lost
    "text without blanks": Turn("bot", "<think>two and two</think>4"),
    "text without its first mark": Turn("bot", "two and two\n</think>\n\n4"),
}


@every_thinker
@pytest.mark.parametrize("turn", THOUGHTS.values(), ids=THOUGHTS)
def test_a_thought_is_learned_as_the_template_writes_it(kind: Kind, turn: Turn) -> None:
    chat = TrainingChat(Conversation((*HI.turns, turn)), (1,))
    [row], [apart, _] = rows_of(kind, [chat]), others(kind, chat)
    assert kind.decoded(row.targets) == f"<think>\ntwo and two\n</think>\n\n4{kind.eos}"
    assert apart.suffixes[0][1:] == row.targets[:-1]


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALLED = {"tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}]}


@pytest.mark.parametrize("kind", [kind for kind in DECODERS if kind.takes_tools], ids=str)
def test_calls_of_tools_are_learned_behind_the_ids_that_generation_is_given(kind: Kind) -> None:
    call = Turn("bot", "Let me see.", json.dumps(CALLED | {"reasoning_content": "a tool"}))
    turns = *HI.turns, call, Turn("tool", "rain", '{"name": "weather"}'), Turn("bot", "It rains.")
    chat = TrainingChat(Conversation(turns, "", json.dumps([TOOL])), (1, 3))
    both = [output_of(kind, chat, turn) for turn in chat.outputs]
    found = learned(kind, rows_of(kind, [chat]))
    apart = tokenize_apart(kind.tokenizer, [one.prompt for one in both], [[one.reply] for one in both], LENGTH)
    for output, row in zip(both, apart, strict=True):
        assert (*row.prefix, *row.suffixes[0]) == (*output.given, *found[output.key].targets[:-1])
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert [kind.decoded(found[output.key].targets) for output in both] == [
        f"<think>\na tool\n</think>\n\nLet me see.\n{called}{kind.eos}",
        f"<think>\n\n</think>\n\nIt rains.{kind.eos}",
    ]
    assert "<think>\na tool" in both[1].prompt_text  # they answer one question


@pytest.mark.parametrize("kind", CROSSING, ids=str)
def test_a_prompt_that_ends_with_a_blank_keeps_its_ids_and_the_reply_begins_without_one(kind: Kind) -> None:
    text = "the first step, and then 42 👍"
    chats = [chat_of("hi", text, line=1), chat_of("tea?", "yes", "and then?", text, line=2), chat_of("a", "b", line=3)]
    found = learned(kind, rows_of(kind, chats))
    assert not is_parted(kind, output_of(kind, chats[0], 1))
    for output in (output_of(kind, chat, turn) for chat in chats for turn in chat.outputs):
        before, part = kind.decoded(output.given), found.pop(output.key)
        assert before.endswith("ASSISTANT: ")
        assert kind.decoded([*output.given, *part.targets[:-1]]) == before + output.reply
    assert found == {}

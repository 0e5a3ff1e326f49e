"""Prompts with replies to audit a scorer on: pairs, single replies, or the rollouts that other trainers log.

TRL's `log_completions` writes OUTPUT/completions/completions_00001.parquet (step, prompt, completion, a column for each
reward, advantage), verl's `rollout_data_dir` STEP.jsonl (input, output, gts, score, step). Both may hold prompts that a
chat template has rendered, which are read as turns here, so that a scorer renders them with its own template.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.config import ColumnConfig
from lmgym.console import say
from lmgym.data.mixing import DataSet
from lmgym.data.pairs import COLUMNS, RANKED, is_pair, only_reply, read_pair, read_ranked, reads_pair
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, UNSUPPORTED, RowError, tally
from lmgym.data.rows import in_row, prompt_key, read_conversation, read_prompt, read_rows
from lmgym.errors import InputError, one_line, shown_path
from lmgym.generation.protocol import Generator, Sampling
from lmgym.text import Conversation, Turn

EXAMPLES = Path(__file__).parent / "data/helpful_held_out.jsonl"  # a link to examples/data
TURN = re.compile(r"(?:\A|\n)(system|user|assistant)\n")  # ChatML without its marks
GLUED = re.compile(r"(system|user|assistant)\n\n")  # Llama 3's headers without marks: nothing ends a turn
MARKED = (
    (re.compile(r"<\|im_start\|>(\w+)\n"), r"\n\1\n"),
    (re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n"), r"\n\1\n"),
    (re.compile(r"<\|im_end\|>\n?|<\|eot_id\|>|<\|begin_of_text\|>"), ""),
)


@dataclass(frozen=True)
class Sample:
    """A prompt with replies, the one to edit first."""

    conversation: Conversation
    replies: tuple[str, ...]

    @property
    def key(self) -> str:
        """Equal for prompts that differ only in case and white space."""
        return prompt_key(self.conversation)


NEEDED = (
    "prompt, alone or with completion, chosen and rejected, or replies and ranks; messages; or the rollouts of TRL "
    "(log_completions) or verl (rollout_data_dir)"
)


def _reads(fields: Mapping[str, Any]) -> tuple[str, ...]:
    return reads_pair(fields) if is_pair(fields) else ("prompt", "completion", "messages", "tools")


WANTED = Wanted("prompts", NEEDED, (("prompt",), ("messages",), COLUMNS, RANKED), _reads)


def read_samples(
    source: str | Path, columns: ColumnConfig = USUAL, notes: list[str] | None = None, most: int | None = None
) -> list[Sample]:
    """The first `most` prompts of a source with all their replies, which may be none; lines on them go to `notes`.

    Of pairs the chosen replies come first. Raises InputError if no row can be read.
    """
    said = [] if notes is None else notes
    rendered: set[tuple[str, int]] = set()

    def as_turns(record: Record) -> Record:
        name = next((name for name in ("prompt", "input") if isinstance(record.fields.get(name), str)), None)
        turns = turns_of(record.fields[name]) if name and not record.fault else None
        if not name or not turns:
            return record
        rendered.add((record.file, record.line))
        return replace(record, fields={**record.fields, name: turns})

    rows, rejections = read_rows(
        interpret([DataSet(str(source), "train", change=as_turns)], WANTED, columns, said), _read_row
    )
    if not rows:
        found = f"; the first: {rejections[0]}" if rejections else ""
        raise InputError(f"{one_line(str(source))} holds no prompt that can be used{found}; needed: {NEEDED}")
    if rejections:
        said.append(f"{tally(rejections, len(rows) + len(rejections)).line}; the first: {rejections[0]}")
    if rendered:
        said.append(f"{len(rendered):,} prompts were rendered by a chat template, and are read as their turns")
    grouped: dict[str, tuple[Conversation, list[tuple[int, str]]]] = {}
    for row in rows:
        _, replies = grouped.setdefault(row.key, (row.conversation, []))
        replies += [(place, reply) for place, reply in enumerate(row.replies) if reply.strip()]
    return [
        Sample(conversation, tuple(reply for _, reply in sorted(replies, key=lambda one: one[0])))
        for conversation, replies in list(grouped.values())[:most]
    ]


def read_prompts(source: str, columns: ColumnConfig, most: int) -> list[Sample]:
    """`read_samples` of a setting, or of EXAMPLES where it is empty; prints the lines on them."""
    said: list[str] = []
    samples = read_samples(source or EXAMPLES, columns, said, most)
    for line in said:
        say(line)
    return samples


def about_replies(policy: str, source: str) -> str:
    """Whose replies are audited, in words, by the settings."""
    prompts = shown_path(source) if source else "the held-out questions of examples/data"
    return f"replies of {policy} to {prompts}" if policy else f"the replies in {prompts}"


def _read_row(record: Record) -> Sample:
    """A row's prompt and replies. Raises RowError for a row that cannot be used."""
    fields = record.fields
    if is_pair(fields) and fields.get("chosen") is None:
        conversation, given = read_prompt(record, "prompt"), read_ranked(record)
        ordered = sorted(zip(given[1], given[0], strict=True), key=lambda one: one[0])
        return Sample(conversation, tuple(reply for _, reply in ordered))
    if is_pair(fields):
        pair = read_pair(record)
        return Sample(pair.conversation, tuple(_text(reply) for reply in (pair.chosen, pair.rejected)))
    if fields.get("messages") not in (None, "", []):
        chat = in_row(record, read_conversation(fields["messages"], "messages", fields.get("tools")), "messages")
        answered = bool(chat.turns) and chat.turns[-1].speaker == "bot"
        replies = (_text(chat.turns[-1]),) if answered else ()
        chat = replace(chat, turns=chat.turns[:-1]) if answered else chat
    else:
        chat = read_prompt(record, "prompt")
        given_reply = fields.get("completion")
        replies = () if given_reply in (None, "", []) else (_text(only_reply(given_reply, chat, "completion")),)
    if not any(turn.speaker == "user" and turn.text for turn in chat.turns):
        raise RowError("prompt", "no turn of a user", NO_PROMPT)
    return Sample(chat, replies)


def _text(reply: str | Turn) -> str:
    if isinstance(reply, str):
        return reply
    if reply.extra:
        raise RowError("completion", "a reply with tool calls or reasoning; needed: a reply of text", UNSUPPORTED)
    if not reply.text:
        raise RowError("completion", "an empty reply", NO_REPLY)
    return reply.text


def turns_of(text: str) -> list[dict[str, str]] | None:
    """The messages of a prompt that ChatML or Llama 3's template has rendered, with or without its special tokens.

    None for any other text: a rendered prompt begins with a role and ends where the assistant is to speak.
    """
    for pattern, plain in MARKED:
        text = pattern.sub(plain, text)
    text = text.strip() + "\n\n"
    pieces = (GLUED if GLUED.match(text) else TURN).split(text)
    if pieces[0].strip() or len(pieces) < 5:
        return None
    messages = [{"role": role, "content": said.strip()} for role, said in zip(pieces[1::2], pieces[2::2], strict=True)]
    *asked, last = messages
    ends = last == {"role": "assistant", "content": ""} and asked[-1]["role"] == "user"
    return asked if ends and all(message["content"] for message in asked) else None


def generate_replies(
    policy: Generator, samples: Sequence[Sample], replies: int, sampling: Sampling
) -> tuple[list[Sample], Counter]:
    """(the prompts with the policy's own replies, counts of how they end); blank replies are left out."""
    completions = policy.reply([sample.conversation for sample in samples], replies, sampling)
    found = [
        replace(sample, replies=tuple(one.text.strip() for one in own if one.text.strip()))
        for sample, own in zip(samples, completions, strict=True)
    ]
    return found, Counter(one.finish_reason for own in completions for one in own)

"""convo_evolution: how each message of the user changes every scorer's score of a real conversation.

The score of a conversation is that of an empty reply to it; the baseline is the score without the user's message.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import IO, Any

from lmgym.apps.chat.loading import Experiment
from lmgym.config import Range
from lmgym.console import replace_unencodable, say
from lmgym.data.mixing import DataSet
from lmgym.data.reading import Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import NO_VALUE, WRONG_TYPE, Rejection, RowError, tally
from lmgym.data.rows import read_conversation, read_rows
from lmgym.errors import MOST_STEPS, InputError, listed, one_line, shown
from lmgym.messages import from_transcript
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.ranking import score_replies
from lmgym.text import Conversation, Turn

WHOLE = ("messages", "conversation", "text", "transcript")
REPLIES = ("chosen", "completion")
UNANSWERED = "without a user who answers a bot"
NEEDED = (
    "messages, text, chosen or completion (with prompt if that is separate), or input_text and output_text, with a "
    "user who answers a bot"
)
SAMPLES = (
    "User: i found an old violin in the attic.\nBot: how lovely! does it still have its strings?\n"
    "User: two of the four. can it be repaired?\nBot: surely. a luthier can look at the bridge and the pegs too.\n"
    "User: what would that cost?\nBot: strings are cheap, the rest depends on the wood.\nUser: thank you, that helps!",
    "User: tell me about comets.\nBot: no.\nUser: please?\nBot: ask someone else.\nUser: you are no help. bye.",
    "User: hi! i baked bread today.\nBot: i like trains.\nUser: hm. do you know why it did not rise?\n"
    "Bot: was the water too hot? that kills the yeast.\nUser: it boiled! next time i will let it cool.",
)


READ = (*WHOLE, *REPLIES, "prompt", "input_text", "output_text")
WANTED = Wanted("conversations", NEEDED, [(name,) for name in READ], lambda fields: READ)


def show_evolution(experiment: Experiment, dataset: str | None, most: int, out: IO[str]) -> None:
    """Prints the first `most` conversations of a dataset, or else of the experiment, with the changes of all scores.

    Raises InputError if the dataset has no conversation.
    """
    Range(1, MOST_STEPS).check("conversations", most)
    replace_unencodable(out, sys.stderr)
    conversations = _read(dataset) if dataset else experiment.conversations()
    conversations = conversations or [from_transcript(text) for text in SAMPLES]
    judges = experiment.judges()
    for number, conversation in enumerate(conversations[:most], 1):
        turns = conversation.turns
        ends = [end for end in range(1, len(turns)) if _answers_bot(turns[end - 1], turns[end])]
        if not ends:
            continue
        say(file=out)
        say(f"conversation {number}", file=out)
        if ends[0] > 1:
            say(f"  {turns[0].speaker:4} {turns[0].text}", file=out)
        for end in ends:
            for turn in turns[end - 1 : end + 1]:
                say(f"  {turn.speaker:4} {turn.text}", file=out)
            for change in _changes(judges, conversation, end):
                say(f"       {change}", file=out)


def _changes(judges: Mapping[str, Scorer], conversation: Conversation, end: int) -> Iterator[str]:
    """Each scorer's score with the message at `end` and without it."""
    after = score_replies(judges, replace(conversation, turns=conversation.turns[: end + 1]), [""])
    before = score_replies(judges, replace(conversation, turns=conversation.turns[:end]), [""])
    failed = before.failed | after.failed
    for name in judges:
        [score], [baseline] = after.scores[name], before.scores[name]
        if score is None or baseline is None:
            yield f"{name}: failed: {failed[name]}"
        else:
            yield f"{name}: {score:.4f}, without this line {baseline:.4f}, change {score - baseline:+.4f}"


def _read(dataset: str) -> list[Conversation]:
    conversations, rejections = read_chats(dataset)
    if rejections:
        counts = tally(rejections, len(conversations) + len(rejections))
        say(f"note: {counts.line}; the first: {counts.first}", error=True)
    return conversations


def read_chats(dataset: str) -> tuple[list[Conversation], list[Rejection]]:
    """(conversations in which a user answers a bot, rejected rows) of a file, a folder or a hub id.

    Raises InputError if no row has such a conversation.
    """
    conversations, rejections = read_rows(interpret([DataSet(dataset, "train")], WANTED), _chat)
    if not conversations:
        why = f"; {rejections[0]}" if rejections else ""
        raise InputError(f"{one_line(dataset)} has no conversation in {len(rejections)} rows; needed: {NEEDED}{why}")
    return conversations, rejections


def _chat(record: Record) -> Conversation:
    name, chat = _find_chat(record.fields)
    if not any(_answers_bot(first, second) for first, second in pairwise(chat.turns)):
        raise RowError(name, "no user answers a bot in it", UNANSWERED)
    return chat


def _find_chat(fields: dict[str, Any]) -> tuple[str, Conversation]:
    """(the field, its conversation). Raises RowError if the row has none."""
    for name in (*WHOLE, *REPLIES):
        if fields.get(name):
            chat = read_conversation(fields[name], name)
            return name, _after_prompt(fields, name, chat) if name in REPLIES and fields.get("prompt") else chat
    if fields.get("input_text"):
        reply = fields.get("output_text")
        if not isinstance(reply, str | None):
            raise RowError("output_text", f"{shown(reply)}; needed: text", WRONG_TYPE)
        return "input_text", _with_reply(read_conversation(fields["input_text"], "input_text"), reply or "")
    raise RowError("(row)", f"fields {listed(fields)}", NO_VALUE)


def _after_prompt(fields: dict[str, Any], name: str, reply: Conversation) -> Conversation:
    """The prompt with the reply, which may repeat the prompt."""
    prompt = read_conversation(fields["prompt"], "prompt")
    if isinstance(fields[name], str) and len(reply.turns) == 1:
        return _with_reply(prompt, fields[name])
    rest = reply.turns[len(prompt.turns) :] if reply.turns[: len(prompt.turns)] == prompt.turns else reply.turns
    return replace(prompt, turns=(*prompt.turns, *rest), persona=prompt.persona or reply.persona)


def _with_reply(prompt: Conversation, reply: str) -> Conversation:
    return replace(prompt, turns=(*prompt.turns, Turn("bot", reply.strip()))) if reply.strip() else prompt


def _answers_bot(first: Turn, second: Turn) -> bool:
    return (first.speaker, second.speaker) == ("bot", "user")

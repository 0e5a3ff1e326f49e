"""Conversations to learn from, read from rows, and which of the bot's turns are outputs. Nothing is dropped silently.

Accepted rows: `messages`; `prompt` and `completion`; `input_text` and `output_text`; `text`, transcripts
("User: ...\\nBot: ...", or hh's) or plain text, of which every token is learned; pairs, of which the chosen side is
read; and those of lmgym/data/formats.py. Of `messages` and transcripts every turn of the bot that answers something is
an output, unless its weight is 0; of the others the completion alone. A row whose `label` or `kto_tag` says
that its reply was disliked is left out. A teacher's `tokens` and `logprobs` take the place of the last output.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmgym.config import ColumnConfig
from lmgym.data.labels import label_of
from lmgym.data.pairs import WANTED as PAIRS
from lmgym.data.pairs import read_pair
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import (
    DUPLICATE_REPLY,
    NO_PROMPT,
    NO_REPLY,
    NO_VALUE,
    NOT_LEARNED,
    NOT_LIKED,
    OUT_OF_RANGE,
    WRONG_TURNS,
    WRONG_TYPE,
    Rejection,
    RowError,
)
from lmgym.data.rows import (
    line_of,
    prompt_key,
    read_conversation,
    read_prompt,
    read_rows,
    require_value,
    whole_number,
)
from lmgym.errors import shown
from lmgym.text import Conversation, Reply, Turn, as_reply, as_turn

FORMS = (("messages",), ("prompt", "completion"), ("input_text", "output_text"), ("text",))
LABELS = ("label", "kto_tag")  # a log's `accepted` is a trace of its user, no label
TEACHER = ("tokens", "logprobs")
MOST_LOGPROB = 1e-4  # a probability of 1 may be rounded above
LEAST_LOGPROB = -1e6  # far below that of any token; -inf is a probability of 0
MOST_ID = 2**31  # ids are 32 bits wide


@dataclass(frozen=True, slots=True)
class TrainingChat:
    """A conversation up to its last output; `outputs` are the turns that carry loss, the last of them the last turn.

    With `tokens` the last output is a teacher's: these ids, with its log-probability of each; the turn itself is not
    in the conversation then.
    """

    conversation: Conversation
    outputs: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    file: str = ""
    line: int = 0
    field: str = ""
    """column of the output"""
    text: str = ""
    """a plain text, all of which is learned, in the place of the conversation"""
    about: Conversation | None = None
    """the conversation that a judge is asked about; rows are split by it"""

    @property
    def prompt(self) -> Conversation:
        """The conversation before the last output."""
        turns = self.conversation.turns
        return self.conversation if self.tokens or self.text else replace(self.conversation, turns=turns[:-1])

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ in case and white space only: near duplicates stay on one side of a split."""
        return " ".join(self.text.lower().split()) if self.text else prompt_key(self.about or self.prompt)

    def map_replies(self, change: Callable[[Reply], Reply]) -> "TrainingChat":
        """The chat with changed outputs; a teacher's and a plain text stay as they are."""
        if self.tokens or self.text:
            return self
        turns = list(self.conversation.turns)
        for i in self.outputs:
            turns[i] = as_turn(change(as_reply(turns[i])))
        return replace(self, conversation=replace(self.conversation, turns=tuple(turns)))

    @property
    def answers(self) -> tuple:
        """The outputs, as JSON can hold them."""
        if self.text:
            return (self.text,)
        turns = [self.conversation.turns[i] for i in self.outputs]
        return *(turn.text + turn.extra for turn in turns), list(self.tokens), list(self.logprobs)


NEEDED = "; or ".join(" and ".join(form) for form in FORMS) + (
    "; or another format of docs/data_formats.md; for the chosen replies of pairs: lmgym train sft hh_chosen"
)


def reads_chat(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Our names of the columns that `read_chat` reads of a row."""
    form = next((form for form in FORMS if fields.get(form[0]) is not None), ())
    return (*form, *LABELS, "tools")


def _reads_distillation(fields: Mapping[str, Any]) -> tuple[str, ...]:
    return (*TEACHER, "tools", *([name] if (name := _name_of_prompt(fields)) else []))


CHATS = Wanted("conversations", NEEDED, FORMS, reads_chat)
DISTILLED = Wanted(
    "conversations",
    "tokens and logprobs beside messages, prompt, input_text or text",
    [(form[0], *TEACHER) for form in FORMS],
    _reads_distillation,
)


def validate_chats(
    *sets: Iterable[Record], columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[TrainingChat], list[Rejection]]:
    """The rows of all data sets as conversations or as rejections.

    Raises InputError as `interpret` does, which reads the columns and adds to the notes.
    """
    return read_rows(interpret(sets, CHATS, columns, notes), read_chat)


def validate_distillation_rows(
    *sets: Iterable[Record], columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[TrainingChat], list[Rejection]]:
    """`validate_chats` of rows with a teacher's `tokens` and `logprobs`."""
    return read_rows(interpret(sets, DISTILLED, columns, notes), read_distillation)


def validate_chosen(
    *sets: Iterable[Record], columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[TrainingChat], list[Rejection]]:
    """The chosen sides of pairs, each once; a pair that could not train a scorer trains no policy."""
    seen: dict[Conversation, TrainingChat] = {}

    def read(record: Record) -> TrainingChat:
        chat = read_chosen(record)
        if chat.conversation in seen:
            found = f"the same reply to the same prompt as in {line_of(seen[chat.conversation], chat)}"
            raise RowError("chosen", found, DUPLICATE_REPLY)
        seen[chat.conversation] = chat
        return chat

    return read_rows(interpret(sets, PAIRS, columns, notes), read)


def read_chat(record: Record) -> TrainingChat:
    """A row in any of FORMS. Raises RowError for one that cannot be used."""
    _refuse_disliked(record)
    is_text = not any(record.fields.get(form[0]) is not None for form in FORMS[:-1])
    if is_text and isinstance(text := record.fields.get("text"), str):
        return _chat_of_text(text, record)
    conversation, first, name = _read_form(record)
    return _chat(conversation, first, name, record)


def _chat_of_text(text: str, record: Record) -> TrainingChat:
    if not text.strip():
        raise RowError("text", "empty", NO_VALUE)
    return TrainingChat(Conversation(()), (), (), (), record.file, record.line, record.column("text"), text=text)


def read_chosen(record: Record) -> TrainingChat:
    """The chosen side of a pair."""
    pair = read_pair(record)
    turns = (*pair.conversation.turns, as_turn(pair.chosen))
    return _chat(replace(pair.conversation, turns=turns), len(turns) - 1, "chosen", record)


def read_distillation(record: Record) -> TrainingChat:
    """A prompt with a teacher's tokens and log-probabilities; an output beside them is their text."""
    tokens, logprobs = (_teacher_list(record, name) for name in TEACHER)
    if not tokens:
        raise RowError("tokens", "an empty output", NO_REPLY)
    ids = tuple(map(_token_id, tokens))
    if len(tokens) != len(logprobs):
        found = f"{len(logprobs)} log-probabilities for {len(tokens)} tokens; needed: one a token"
        raise RowError("logprobs", found, WRONG_TYPE)
    if bad := [x for x in logprobs if not _is_logprob(x)]:
        found = f"{shown(bad[0])}; needed: logarithms of probabilities, numbers from {LEAST_LOGPROB:g} to 0"
        raise RowError("logprobs", found, OUT_OF_RANGE)
    prompt = _read_prompt(record)
    return replace(_chat_of_prompt(prompt, record), tokens=ids, logprobs=tuple(min(x, 0.0) for x in logprobs))


def _teacher_list(record: Record, name: str) -> list[Any]:
    """The list in a column of the teacher."""
    value = record.fields.get(name)
    if value is None:
        raise RowError(name, "missing" if name not in record.fields else "null", NO_VALUE)
    if not isinstance(value, list | tuple):
        raise RowError(name, f"{shown(value)}; needed: a list of numbers, one a token", WRONG_TYPE)
    return list(value)


def _token_id(value: Any) -> int:
    number = whole_number(value)
    if number is None or not 0 <= number < MOST_ID:
        raise RowError("tokens", f"{shown(value)}; needed: ids of the tokenizer, whole numbers from 0", OUT_OF_RANGE)
    return number


def _is_logprob(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (LEAST_LOGPROB <= value <= MOST_LOGPROB or value == -math.inf)


def _name_of_prompt(fields: Mapping[str, Any]) -> str | None:
    names = ("prompt", "input_text", "messages", "text")
    return next((name for name in names if fields.get(name) not in (None, "", [])), None)


def _read_prompt(record: Record) -> tuple[Conversation, str]:
    """The conversation before the teacher's tokens, without the output if the row has it too."""
    name = _name_of_prompt(record.fields)
    if name is None:
        found = "missing; needed: what the tokens answer, as prompt, input_text, messages or text"
        raise RowError("prompt", found, NO_PROMPT)
    conversation = read_prompt(record, name)
    if name in ("messages", "text") and conversation.turns and conversation.turns[-1].speaker == "bot":
        conversation = replace(conversation, turns=conversation.turns[:-1])
    return conversation, name


def _chat_of_prompt(prompt: tuple[Conversation, str], record: Record) -> TrainingChat:
    conversation, name = prompt
    if not conversation.turns:
        raise RowError(name, "no turn before the output", NO_PROMPT)
    _refuse_turns((*conversation.turns, Turn("bot", "x")), name)
    return TrainingChat(conversation, (), file=record.file, line=record.line, field="tokens")


def _read_form(record: Record) -> tuple[Conversation, int, str]:
    """(conversation, first turn that may be an output, column for messages)."""
    form = next((form for form in FORMS if record.fields.get(form[0]) is not None), None)
    if form is None:
        there = next((form[0] for form in FORMS if form[0] in record.fields), None)
        found = "null" if there else f"none of {', '.join(form[0] for form in FORMS)}"
        raise RowError(there or "(row)", found, NO_VALUE)
    require_value(record, form[0], NO_PROMPT if len(form) > 1 else NO_VALUE)
    rest = require_value(record, form[1], NO_REPLY) if len(form) > 1 else None
    conversation = read_prompt(record, form[0])
    return (conversation, 0, form[0]) if len(form) == 1 else _joined(conversation, rest, form)


def _joined(prompt: Conversation, completion: Any, form: tuple[str, ...]) -> tuple[Conversation, int, str]:
    """A prompt and what follows it: text is one turn of the bot, messages are turns."""
    first = len(prompt.turns)
    if isinstance(completion, str):
        turns: tuple[Turn, ...] = (Turn("bot", completion.strip()),)
    else:
        rest = read_conversation(completion, form[1])
        if rest.persona:
            raise RowError(form[1], "a system message; needed: turns after the prompt", WRONG_TURNS)
        turns = rest.turns
        if len(turns) > first and turns[:first] == prompt.turns:  # a transcript that repeats the prompt
            turns = turns[first:]
    return replace(prompt, turns=(*prompt.turns, *turns)), first, form[1]


def _refuse_disliked(record: Record) -> None:
    """Raises RowError for a reply that was not liked."""
    label = label_of(record.fields, LABELS)
    if label and not label[1]:
        found = f"{shown(record.fields[label[0]])}, which says that the reply was disliked"
        raise RowError(label[0], f"{found}; needed: a reply to learn from", NOT_LIKED)


def _chat(conversation: Conversation, first: int, name: str, record: Record) -> TrainingChat:
    """The conversation up to its last output. Raises RowError for empty outputs and if there are none."""
    turns = conversation.turns
    _refuse_turns(turns, name)
    # the bot's first turn of a conversation answers nothing: it is context
    answers = [i for i, turn in enumerate(turns) if turn.speaker == "bot" and i >= max(first, 1)]
    outputs = tuple(i for i in answers if turns[i].learned)
    if not outputs:
        found = "every turn of the bot has weight 0" if answers else "no turn of the bot that answers something"
        raise RowError(name, f"{found}; needed: at least one", NOT_LEARNED if answers else NO_REPLY)
    turns = turns[: outputs[-1] + 1]
    conversation, column = replace(conversation, turns=turns), record.column(name)
    return TrainingChat(conversation, outputs, file=record.file, line=record.line, field=column)


def _refuse_turns(turns: Sequence[Turn], name: str) -> None:
    for i, turn in enumerate(turns):
        if turn.speaker == "bot" and not turn.text.strip() and '"tool_calls"' not in turn.extra:
            raise RowError(name, f"an empty output, turn {i + 1}", NO_REPLY)
        if i and turn.speaker == turns[i - 1].speaker == "bot":
            found = f"two turns of the bot in a row, turns {i} and {i + 1}; needed: a user's turn between"
            raise RowError(name, found, WRONG_TURNS)

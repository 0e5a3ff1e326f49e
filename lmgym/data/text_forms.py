"""The form of the texts in a column: plain text, transcripts with marks, JSON of messages, or already rendered text.

The form is decided once for a column of a data set, from all its rows together: a plain text may have lines that begin
with "User:", and only where (nearly) every text is a transcript is it read as one. Mixtures are refused.
"""

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from lmgym.data.rejections import WRONG_TYPE, RowError
from lmgym.errors import InputError, one_line, shown
from lmgym.messages import find_marks, from_transcript, speaker_of

Form = Literal["text", "transcript", "messages", "rendered", "damaged"]
Side = Literal["prompt", "reply", "chat"]
"""what a column holds: what is answered, an answer, or both"""
FEW = 0.05  # of a column's texts, which may look like another form than the others; two, if at most a QUARTER
QUARTER = 0.25
WORDS: dict[str, str] = {
    "text": "plain text",
    "transcript": "transcripts",
    "messages": "JSON of messages",
    "rendered": "text that a chat template has rendered",
    "damaged": "messages that cannot be read",
}
RENDERED = re.compile(
    r"\s*+(?:<s>|<bos>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>)?\s*+"
    r"(?:<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>|<\|(?:user|system|assistant)\|>|<｜(?:User|Assistant)｜>)"
)
STRUCTURED = re.compile(r"""\s*+(?:array\()?\[?\s*+\{\s*['"](?:role|from|content|value)['"]\s*:""")
"""the beginning of messages, in any notation"""


def form_of(text: str, side: Side) -> tuple[Form, bool]:
    """(the form that a text has by itself, True if it might be a transcript all the same)."""
    if text.lstrip()[:1] in ("[", "{", "a") and parse_messages(text) is not None:
        return "messages", False
    if STRUCTURED.match(text):
        return "damaged", False
    if RENDERED.match(text):
        return "rendered", False
    found = find_marks(text)
    if not found:
        return "text", False
    begins, last = not text[: found[0].start()].strip(), found[-1]
    speakers = {speaker_of(mark) == "assistant" for mark in found}
    is_open = speaker_of(last) == "assistant" and not text[last.end() :].strip()
    if side == "prompt":
        is_transcript = begins or is_open
    elif side == "reply":
        is_transcript = begins and True in speakers
    else:
        is_transcript = speaker_of(last) == "assistant" and speakers == {True, False}
    return ("transcript" if is_transcript else "text"), True


def parse_messages(text: str) -> list[dict[str, Any]] | None:
    """The messages of a JSON text, or of the notation of Python or NumPy, as pandas writes it; None for other text."""
    if '"role"' not in text and '"from"' not in text and "'role'" not in text and "'from'" not in text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(_with_commas(text.strip()))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return None
    rows = [value] if isinstance(value, dict) else value
    good = (
        isinstance(rows, list)
        and rows
        and all(isinstance(row, dict) and ("role" in row or "from" in row) for row in rows)
    )
    return rows if good else None


PARTS = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|array\(|,\s*dtype=\w+\s*\)|(?<=[}\]])\s+(?=[{\[])|(?<=[}\]])(?=[{\[])""",
    re.DOTALL,
)


def _with_commas(text: str) -> str:
    """Python's notation of NumPy's: `[{...}\\n {...}]` and `array([...], dtype=object)` in lists."""

    def part(found: re.Match[str]) -> str:
        if found[0][:1] in ("'", '"'):
            return found[0]
        return "" if found[0].startswith(("array", ",")) else ", "

    return PARTS.sub(part, text)


@dataclass
class FormCounts:
    """Texts of a column by the form that each has by itself."""

    side: Side
    texts: Counter = field(default_factory=Counter)
    """by form"""
    maybe: int = 0
    """texts with marks that might be transcripts all the same"""
    examples: dict[str, tuple[int, str]] = field(default_factory=dict)
    """the first text of each form, with its line"""

    def add(self, text: str, line: int) -> None:
        """Count a text; blank ones are not counted."""
        if not text.strip():
            return
        form, maybe = form_of(text, self.side)
        self.texts[form] += 1
        self.maybe += maybe and form == "text"
        self.examples.setdefault(form, (line, text))

    def decide(self, where: str, column: str, flag: str) -> Form:
        """The one form of a column of the data set `where`.

        Raises InputError, naming the flag, for mixtures and for rendered text.
        """
        total = self.texts.total()
        if not total:
            return "text"
        form, count = self.texts.most_common(1)[0]
        others = total - count
        if form == "transcript" and others == self.maybe == self.texts["text"]:
            others = 0
        if others > max(FEW * total, min(2.0, QUARTER * total)):
            raise InputError(f"{where}: {self._mixture(column, flag)}")
        if form == "damaged":
            line, text = self.examples["damaged"]
            raise InputError(
                f"{where}: column {one_line(column, 80)} holds {WORDS['damaged']} (line {line}: {shown(text, 60)}); "
                f"needed: JSON, or Python's or NumPy's notation, in whole; or --{flag} text to take it as plain text"
            )
        if form == "rendered":
            line, text = self.examples["rendered"]
            raise InputError(
                f"{where}: column {one_line(column, 80)} holds {WORDS['rendered']} (line {line}: {shown(text, 60)}), "
                "which would be rendered again; needed: messages or the bare texts, or "
                f"--{flag} text to take it as plain text"
            )
        return form

    def _mixture(self, column: str, flag: str) -> str:
        said = [
            f"{WORDS[form]} ({count:,}, line {self.examples[form][0]}: {shown(self.examples[form][1], 60)})"
            for form, count in self.texts.most_common(2)
        ]
        return (
            f"column {one_line(column, 80)} mixes {' and '.join(said)}; needed: one form in a data set, or --{flag} "
            "text, transcript or messages, which says what all of them are"
        )


def read_as(form: Form, text: str, side: Side, column: str, forced: bool = False) -> Any:
    """A text in its column's form: messages as a list, a transcript as a Conversation, plain text as it is.

    Raises RowError for a text of another form, unless the form is `forced` by a flag: then it is plain text.
    """
    if form == "text":
        if not forced and text.lstrip()[:1] in ("[", "{", "a") and form_of(text, side)[0] in ("messages", "damaged"):
            raise RowError(column, f"messages in a column of {WORDS[form]}: {shown(text)}", WRONG_TYPE)
        return text
    own, maybe = form_of(text, side)
    if form == "messages" and own == "messages":
        return parse_messages(text)
    if form == "transcript" and (own == form or maybe or (forced and side != "reply")):
        return from_transcript(text)
    if forced or not text.strip():
        return text
    raise RowError(column, f"{WORDS[own]} in a column of {WORDS[form]}: {shown(text)}", WRONG_TYPE)

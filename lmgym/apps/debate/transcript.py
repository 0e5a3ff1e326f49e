"""Transcripts: what was said in a round, who heard what, and the rows of transcripts.jsonl.

Design decisions:
- A speech is heard by those who act in a later slot, so speeches of one slot are simultaneous. Notes are their
  author's alone. In an isolated format debaters hear themselves and the judge.
- Everybody, the author too, reads a speech as it was checked; what was said literally stays in `raw`.
- A row has everything that figures and another judge need, the text as well.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lmgym.apps.debate.formats import DEBATERS, FIRST, JUDGE, PRIVATE, SECOND, Format, Slot
from lmgym.apps.debate.questions import Question, read_question
from lmgym.apps.debate.quotes import Quote
from lmgym.data.json_rows import parse_json
from lmgym.data.rejections import RowError
from lmgym.errors import InputError, listed, one_line, shown

SCHEMA = "lmgym.debate/1"
NAMES = re.compile("|".join(DEBATERS))
TEXT, WHOLE, TRUTH, OBJECT, LIST, SHARE = "text", "a whole number", "true or false", "an object", "a list", "0 to 1"
TYPES: dict[str, Any] = {TEXT: str, WHOLE: int, TRUTH: bool, OBJECT: Mapping, LIST: list | tuple, SHARE: int | float}
ROW_FIELDS = {
    "number": WHOLE,
    "seed": WHOLE,
    "flipped": TRUTH,
    "players": OBJECT,
    "speeches": LIST,
    "format": OBJECT,
}
FORMAT_FIELDS = {"name": TEXT, "isolated": TRUTH, "slots": LIST}
SLOT_FIELDS = {"speakers": LIST, "kind": TEXT, "round": WHOLE, "max_tokens": WHOLE}
SPEECH_FIELDS = {
    "slot": WHOLE,
    "speaker": TEXT,
    "kind": TEXT,
    "round": WHOLE,
    "text": TEXT,
    "raw": TEXT,
    "quotes": LIST,
    "unclosed": WHOLE,
    "candidates": LIST,
    "opponent_samples": LIST,
    "p_first": SHARE,
}
QUOTE_FIELDS = {"text": TEXT, "status": TEXT, "start": WHOLE, "end": WHOLE}
CANDIDATE_FIELDS = {"text": TEXT, "score": SHARE}
VERDICT_FIELDS = {"p_first": SHARE, "text": TEXT, "readable": TRUTH}


@dataclass(frozen=True)
class Speech:
    """The speech of one agent in one slot."""

    slot: int
    speaker: str
    kind: str
    round: int
    text: str
    """with checked quotes"""
    raw: str = ""
    """as it was said; empty: as `text`"""
    quotes: tuple[Quote, ...] = ()
    unclosed: int = 0
    """quote tags that were removed"""
    candidates: tuple[Mapping[str, Any], ...] = ()
    """of a best-of-n debater: each sample's `text` and `score`, the one that was said too"""
    opponent_samples: tuple[str, ...] = ()
    """that the samples were scored against"""
    p_first: float | None = None
    """P(Debater_A wins) once all speeches of its slot were heard"""


@dataclass(frozen=True)
class Verdict:
    """The judge's decision."""

    p_first: float
    """P(Debater_A's answer is right)"""
    text: str = ""
    readable: bool = True
    """False: the judge named nobody, and p_first is .5"""

    @property
    def winner(self) -> str | None:
        """The debater with the higher probability; None at .5."""
        return None if self.p_first == 0.5 else FIRST if self.p_first > 0.5 else SECOND

    def p_of(self, debater: str) -> float:
        """P(win) of a debater."""
        return self.p_first if debater == FIRST else 1 - self.p_first


@dataclass(frozen=True)
class Transcript:
    """A round, as far as it has been played."""

    question: Question
    format: Format
    flipped: bool = False
    """Debater_A argues for the second option"""
    seed: int = 0
    speeches: tuple[Speech, ...] = ()
    verdict: Verdict | None = None
    players: Mapping[str, str] = field(default_factory=dict)
    """names of models by agent"""
    number: int = 0
    """of the round in its experiment"""

    @property
    def positions(self) -> dict[str, str]:
        """The answer of each debater."""
        first, second = self.question.options[:: -1 if self.flipped else 1]
        return {FIRST: first, SECOND: second}

    @property
    def correct(self) -> str | None:
        """The debater with the right answer; None if it is not known."""
        if self.question.correct is None:
            return None
        return DEBATERS[self.question.correct ^ self.flipped]

    def heard_by(self, agent: str, slot: int) -> tuple[Speech, ...]:
        """The speeches that an agent has heard, and its own, when it acts there; in each slot its own speech first.

        So it reads its own speech before those that it had not heard when it spoke.
        """
        heard = [s for s in self.speeches if s.slot < slot and self._hears(agent, s)]
        return tuple(sorted(heard, key=lambda speech: (speech.slot, speech.speaker != agent)))

    def _hears(self, agent: str, speech: Speech) -> bool:
        if agent == speech.speaker:
            return True
        if speech.kind in PRIVATE:
            return False
        if speech.kind == "shown_scratchpad":
            return agent == JUDGE
        return not self.format.isolated or JUDGE in (agent, speech.speaker)

    def up_to(self, slot: int) -> "Transcript":
        """The round as it was before that slot."""
        return replace(self, speeches=tuple(s for s in self.speeches if s.slot < slot), verdict=None)

    def mirrored(self) -> "Transcript":
        """The same round with the names exchanged, in the order of speeches and in texts too: B's words are A's.

        A judge without a preference for a name gives 1 - P.
        """
        slots = tuple(replace(slot, speakers=tuple(map(_exchange, slot.speakers[::-1]))) for slot in self.format.slots)
        speeches = [replace(s, speaker=_exchange(s.speaker), text=_exchange(s.text), raw="") for s in self.speeches]
        return replace(
            self,
            format=replace(self.format, slots=slots),
            flipped=not self.flipped,
            speeches=tuple(sorted(speeches, key=lambda speech: (speech.slot, speech.speaker))),
            verdict=None,
        )


def _exchange(text: str) -> str:
    """A text with Debater_A for Debater_B and the reverse."""
    return NAMES.sub(lambda match: SECOND if match.group() == FIRST else FIRST, text)


def to_row(transcript: Transcript) -> dict[str, Any]:
    """A transcript as a row of transcripts.jsonl; fields of speeches that have their defaults are left out."""
    verdict = transcript.verdict
    return {
        "schema": SCHEMA,
        "number": transcript.number,
        "seed": transcript.seed,
        "format": _format_row(transcript.format),
        **transcript.question.task,
        "flipped": transcript.flipped,
        "positions": transcript.positions,
        "correct_debater": transcript.correct,
        "players": dict(transcript.players),
        "speeches": [_speech_row(speech) for speech in transcript.speeches],
        "verdict": None if verdict is None else asdict(verdict) | {"winner": verdict.winner},
    }


def from_row(row: Mapping[str, Any]) -> Transcript:
    """The transcript of a row. Raises InputError for another schema and for fields that it does not have."""
    if row.get("schema") != SCHEMA:
        raise InputError(
            f"a transcript has schema={shown(row.get('schema'))}; needed: {SCHEMA!r}; NYU's shapes are read by "
            "lmgym.apps.debate.nyu.read_nyu"
        )
    try:
        check_fields(row, ROW_FIELDS, "the transcript")
        format = _read_format(row["format"])
        speeches = tuple(_read_speech(speech, format) for speech in row["speeches"])
        verdict = row["verdict"]
        if verdict is not None:
            check_fields(verdict, VERDICT_FIELDS, "its verdict")
            verdict = Verdict(*(verdict[key] for key in VERDICT_FIELDS))
        check_fields(row["players"], dict.fromkeys(row["players"], TEXT), "its players")
        players = dict(row["players"])
        return Transcript(
            read_question(row), format, row["flipped"], row["seed"], speeches, verdict, players, row["number"]
        )
    except (KeyError, TypeError, ValueError) as error:
        fault = one_line(f"no {error}" if isinstance(error, KeyError) else str(error), 160)
        raise InputError(
            f"transcript {shown(row.get('number'))} is not one of {SCHEMA}: {fault}; needed: a saved line"
        ) from error


def check_fields(row: Any, wanted: Mapping[str, str], name: str) -> None:
    """Raises InputError for what is no object, and for a field in it with a value of another type than the wanted."""
    if not isinstance(row, Mapping):
        raise InputError(f"{name} is {shown(row)}; needed: an object")
    for field_name, kind in wanted.items():
        value: Any = row.get(field_name)
        if field_name not in row:
            continue
        fits = isinstance(value, TYPES[kind]) and isinstance(value, bool) == (kind == TRUTH)
        if not fits or (kind == SHARE and not 0 <= value <= 1):
            raise InputError(f"{name} has {one_line(field_name, 40)}={shown(value)}; needed: {kind}")


def _read_speech(row: Any, format: Format) -> Speech:
    """A speech of the format. Raises InputError, KeyError and TypeError for another."""
    check_fields(row, SPEECH_FIELDS, "a speech")
    quotes, candidates, samples = (tuple(row.get(key, ())) for key in ("quotes", "candidates", "opponent_samples"))
    for quote in quotes:
        check_fields(quote, QUOTE_FIELDS, "a quote")
    for candidate in candidates:
        check_fields(candidate, CANDIDATE_FIELDS, "a candidate")
        if not CANDIDATE_FIELDS.keys() <= candidate.keys():
            raise InputError(f"a candidate has the fields {listed(candidate)}; needed: {listed(CANDIDATE_FIELDS)}")
    if not all(isinstance(sample, str) for sample in samples):
        raise InputError("a speech has opponent_samples that are no texts; needed: texts")
    lists = {"quotes": tuple(Quote(**quote) for quote in quotes), "candidates": candidates, "opponent_samples": samples}
    speech = Speech(**{**row, **lists})
    if not 0 <= speech.slot < len(format.slots) or speech.speaker not in (*DEBATERS, JUDGE):
        found = f"a speech by {shown(speech.speaker)} in slot {shown(speech.slot)}"
        raise InputError(f"{found}; needed: one of {listed((*DEBATERS, JUDGE))} in slot 0 to {len(format.slots) - 1}")
    if speech.kind != format.slots[speech.slot].kind:
        raise InputError(f"a {shown(speech.kind)} in a slot for a {format.slots[speech.slot].kind}; needed: the same")
    return speech


def read_lines(lines: Sequence[str], name: str) -> list[Transcript]:
    """The transcripts of lines of JSON. Raises InputError, with the line's number, for one that is none."""
    transcripts = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise InputError(f"found {shown(row)}; needed: an object")
            transcripts.append(from_row(row))
        except (InputError, RowError) as error:
            found = error.found if isinstance(error, RowError) else error
            raise InputError(f"{name}, line {number}: {found}") from error
    return transcripts


def _speech_row(speech: Speech) -> dict[str, Any]:
    row = asdict(speech)
    left_out = [key for key in ("raw", "quotes", "unclosed", "candidates", "opponent_samples") if not row[key]]
    left_out += ["p_first"] if speech.p_first is None else []
    return {key: value for key, value in row.items() if key not in left_out}


def _format_row(format: Format) -> dict[str, Any]:
    slots = [[list(slot.speakers), slot.kind, slot.round, slot.max_tokens] for slot in format.slots]
    return {"name": format.name, "isolated": format.isolated, "slots": slots}


def _read_format(row: Mapping[str, Any]) -> Format:
    check_fields(row, FORMAT_FIELDS, "its format")
    slots = []
    for slot in row["slots"]:
        if not isinstance(slot, list | tuple) or len(slot) != 4:
            raise InputError(f"a slot is {shown(slot)}; needed: speakers, kind, round and max_tokens")
        values = dict(zip(SLOT_FIELDS, slot, strict=True))
        check_fields(values, SLOT_FIELDS, "a slot")
        if not all(isinstance(speaker, str) for speaker in slot[0]):
            raise InputError("a slot has a speaker that is no text; needed: names")
        slots.append(Slot(tuple(slot[0]), *slot[1:]))
    return Format(row["name"], tuple(slots), row["isolated"])

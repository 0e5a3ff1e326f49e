"""The rows of LABELS with the votes of their raters, each row once, however many rows of the file it has.

Design decisions:
- Of one row a rating, texts say what is rated: the same prompt and replies are one row, and where the replies stand the
  other way round, so do the votes. Rows without texts are found in --rows by an id.
- What is no vote is counted with its reason: missing, "cannot say", unreadable, the second vote of a rater on a row.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmgym.apps.audit.agree.forms import Named, VoteForm, find_form, flattened, places_in, votes_of
from lmgym.apps.audit.agree.levels import FEW, VERDICTS, Levels, levels_of
from lmgym.config import ColumnConfig
from lmgym.data.asked import Fields, asked, is_blank
from lmgym.data.pairs import WANTED as PAIRS
from lmgym.data.pairs import read_pair
from lmgym.data.reading import Wanted, interpret
from lmgym.data.records import Record, read_records
from lmgym.data.rejections import NO_REPLY, Rejection, RowError, tally
from lmgym.data.rows import prompt_key, read_rows
from lmgym.data.verdicts import NEEDED as VERDICTS_NEEDED
from lmgym.data.verdicts import side_of, sides_of, word_of
from lmgym.data.votes import Vote, is_missing, is_unsure
from lmgym.errors import InputError, listed, shown, shown_path
from lmgym.text import Conversation, as_reply, words_of

UNSURE, MISSING_ROW, AGAIN = "cannot say", "of rows that are not there", "second ones of a rater on a row"
UNREADABLE = "that name no level"
NEEDED = (
    "two replies, such as answer_a and answer_b, or chosen and rejected; or one, as prompt and completion, messages, "
    "or input_text and output_text; or --rows with a file that has them"
)
REPLY_FORMS = (("messages",), ("prompt", "completion"), ("input_text", "output_text"), ("text",))


@dataclass(frozen=True)
class Reading:
    """Settings of reading LABELS."""

    named: Named = field(default_factory=Named)
    item: str = ""
    """column that LABELS and --rows share"""
    unit: str = ""
    """column whose equal values are one independent unit"""
    rows: str = ""
    """file with the texts"""
    levels: tuple[str, ...] = ()
    """from the lowest to the highest"""
    columns: ColumnConfig = field(default_factory=ColumnConfig)


@dataclass(frozen=True)
class Row:
    """Two replies, or one, to a conversation."""

    conversation: Conversation
    replies: tuple[str, ...]
    unit: str
    line: int


@dataclass(frozen=True)
class Rating:
    """A vote on a row, as a level; of two replies, whether the first in the row won (None: a tie)."""

    row: int
    rater: str
    level: int
    shown_first: bool | None = None


@dataclass
class Labels:
    """Rows with the votes on them."""

    are_pairs: bool
    levels: Levels
    rows: list[Row]
    ratings: list[Rating]
    notes: list[str]
    """how the file was read"""
    left_out: Counter[str]
    """votes that are not used, by reason"""
    has_raters: bool
    """True if votes have raters, by name or by place"""
    unit: str
    """what is independent: a prompt, or the column that --unit_column names"""
    unreadable: str = ""
    """the first vote that names no level"""

    @property
    def reasons(self) -> dict[str, int]:
        """Votes that are not used by reason, the most frequent first."""
        more = {UNREADABLE: f"{UNREADABLE}, such as {self.unreadable}"}
        return {more.get(reason, reason): count for reason, count in self.left_out.most_common()}

    @property
    def raters(self) -> list[str]:
        """All raters, those with most votes first."""
        return [name for name, _ in Counter(rating.rater for rating in self.ratings).most_common()]


@dataclass(frozen=True)
class _Found:
    """A row of the file: its texts, and the votes as they stand there."""

    record: Record
    votes: list[Vote]
    """of two replies 1, .5 or 0, or words that say nothing of the kind"""
    places: int | None
    """of votes in a list, with those that are missing; None where it has no list"""
    unit: str


def read_labels(source: str, reading: Reading) -> Labels:
    """The rows of a file with their votes. Raises InputError for a file without any, and for unknown columns."""
    if missing := [p for p in (source, reading.rows) if p and _is_absent(p)]:
        raise InputError(f"there is no file {shown_path(missing[0])}; needed: a file of labels, JSON, CSV or Parquet")
    records = [replace(one, fields=flattened(one.fields)) for one in read_records(source)]
    if not records:
        raise InputError(f"{shown_path(source)} is empty; needed: rows with votes of raters")
    notes, left_out = list[str](), Counter[str]()
    if reading.rows:
        records = _joined(source, records, reading, notes, left_out)
    good = [one.fields for one in records if not one.fault]
    if not good:
        _, unread = read_rows(records, lambda record: record)
        raise InputError(f"{shown_path(source)} has no row that can be read; the first: {unread[0]}")
    are_pairs = sum(_sides(fields, reading.columns) is not None for fields in good) > len(good) / 2
    form = find_form(good, reading.named, are_pairs)
    if reading.unit and not any(reading.unit in fields for fields in good):
        raise InputError(
            f"{shown_path(source)} has no column {shown(reading.unit)} (--unit_column); found: {listed(good[0])}"
        )
    found, rejections = read_rows(records, lambda record: _found(record, form, are_pairs, reading))
    texts, refused = _read_texts([one.record for one in found], are_pairs, reading.columns, notes)
    votes = {_place(one.record): one for one in found}
    grouped = [(row, votes[place]) for place, row in texts.items()]
    labels = _labels(grouped, are_pairs, reading, form, left_out)
    labels.notes[:] = [f"{Path(source).name}: {form.words}", *notes, *labels.notes]
    if rejected := [*rejections, *refused]:
        labels.notes.append(f"{tally(rejected, len(records)).line}; the first: {rejected[0]}")
    if not labels.ratings or left_out[UNREADABLE] > max(1, FEW * (len(labels.ratings) + left_out[UNREADABLE])):
        why = f"; the first row that is not read: {rejected[0]}" if rejected else ""
        counted = "; ".join(f"{count:,} {reason}" for reason, count in labels.reasons.items())
        what = f"{len(labels.ratings):,} votes that can be read" if labels.ratings else "no votes to compare with"
        needed = f"needed: {NEEDED}"
        if labels.unreadable:
            needed = VERDICTS_NEEDED if are_pairs else "needed: numbers, or --levels with all labels in their order"
        raise InputError(f"{shown_path(source)} has {what} ({counted or 'no row has any'}){why}; {needed}")
    return labels


def _is_absent(path: str) -> bool:
    """True of what looks like a file, and is not there; a hub id has no suffix."""
    return bool(
        Path(path).suffix in (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz")
        and not Path(path).expanduser().exists()
    )


def _place(record: Record) -> tuple[str, int]:
    return record.file, record.line


def _joined(
    source: str, records: Sequence[Record], reading: Reading, notes: list[str], left_out: Counter[str]
) -> list[Record]:
    """The labels with the texts of the rows that they are of; others are counted."""
    rows = [one for one in read_records(reading.rows) if not one.fault]
    good = [one for one in records if not one.fault]
    own, theirs = _keys(good, rows, reading.item)
    if not own:
        raise InputError(
            f"no label of {shown_path(source)} has its row in {shown_path(reading.rows)}: no column of the one has "
            f"values of a column of the other; found: {listed(good[0].fields if good else ())} and "
            f"{listed(rows[0].fields if rows else ())}; needed: --item_column with the id that both have"
        )
    by_key = {str(row.fields[theirs]): row for row in rows if not is_missing(row.fields.get(theirs))}
    kept = []
    for record in good:
        row = by_key.get(str(record.fields.get(own)))
        if row is None:
            left_out[MISSING_ROW] += 1
        else:
            own_fields = {name: value for name, value in record.fields.items() if name != own}
            kept.append(replace(record, fields={**row.fields, **own_fields}))
    notes.append(f"texts of {Path(reading.rows).name} by {own}" + (f", there {theirs}" if own != theirs else ""))
    return [*kept, *(one for one in records if one.fault)]


def _keys(labels: Sequence[Record], rows: Sequence[Record], named: str) -> tuple[str, str]:
    """(column of the labels, column of the rows) by which most labels find a row, of equal ones the same name; empty
    without one. The values of a row's id differ."""
    ids: dict[str, set[str]] = {}
    for name in {name for one in rows for name in one.fields}:
        values = [str(v) for one in rows if not is_missing(v := one.fields.get(name)) and isinstance(v, str | int)]
        if len(set(values)) == len(values) == len(rows):
            ids[name] = set(values)
    best: tuple[int, bool, str, str] = (0, False, "", "")
    for own in dict.fromkeys(name for one in labels for name in one.fields if not named or name == named):
        values = [str(value) for one in labels if isinstance(value := one.fields.get(own), str | int)]
        for theirs, known in ids.items():
            best = max(best, (sum(value in known for value in values), own == theirs, own, theirs))
    return best[2:] if best[0] else ("", "")


def _found(record: Record, form: VoteForm, are_pairs: bool, reading: Reading) -> _Found:
    """A row's votes, and its texts without them. Raises RowError for a row without replies."""
    fields, columns = record.fields, reading.columns
    unit = str(fields[reading.unit]) if reading.unit and not is_missing(fields.get(reading.unit)) else ""
    left = {name: value for name, value in fields.items() if name not in {*form.columns, reading.unit, reading.item}}
    if not are_pairs:
        return _Found(replace(record, fields=left), votes_of(fields, form, None), places_in(fields, form), unit)
    sides = _sides(fields, columns)
    if sides is None:
        raise RowError("(row)", "no two replies", NO_REPLY)
    votes = [replace(vote, value=_side(vote.value, sides, fields, columns)) for vote in votes_of(fields, form, sides)]
    told = {name: value for name, value in left.items() if name not in sides}
    if columns.prompt_column is None:
        question = asked(told)
        used = {*question.names.values(), *question.also}
        told = {name: value for name, value in told.items() if name not in used} | question.fields
    pair = {"chosen": fields[sides[0]], "rejected": fields[sides[1]]}
    names = dict(zip(pair, sides, strict=True))
    return _Found(replace(record, fields=told | pair, names=names), votes, places_in(fields, form), unit)


def _sides(fields: Fields, columns: ColumnConfig) -> tuple[str, str] | None:
    """The columns of the first and the second reply: those that flags name, or `sides_of`."""
    named = (columns.chosen_column or "", columns.rejected_column or "")
    if all(named):
        return named if all(not is_blank(fields.get(name)) for name in named) else None
    return sides_of(fields, True)


def _side(value: Any, sides: tuple[str, str], fields: Fields, columns: ColumnConfig) -> Any:
    """1 for the first reply, 0 for the second, .5 for a tie; what says nothing of the kind as it is."""
    if columns.first_wins is not None and not is_unsure(value):
        return {"first": 1.0, "second": 0.0, "tie": 0.5}[word_of(value, columns.first_wins)]
    place = side_of(value, sides, fields)
    return value if place is None else place


def _read_texts(
    records: Sequence[Record], are_pairs: bool, columns: ColumnConfig, notes: list[str]
) -> tuple[dict[tuple[str, int], Row], list[Rejection]]:
    """(rows by file and line, rejections of rows that cannot be read)."""
    from sft.conversations import read_chat, reads_chat

    def read_reply(record: Record) -> tuple[tuple[str, int], Row]:
        chat = read_chat(record)
        if chat.text:
            raise RowError("text", "plain text; needed: a conversation that ends in a reply", NO_REPLY)
        return _row(record, chat.prompt, (words_of(as_reply(chat.conversation.turns[-1])),))

    def read_both(record: Record) -> tuple[tuple[str, int], Row]:
        pair = read_pair(record, soft=True)
        return _row(record, pair.conversation, (words_of(pair.chosen), words_of(pair.rejected)))

    replies = Wanted(
        "rated replies", NEEDED, REPLY_FORMS, lambda fields: tuple({*reads_chat(fields)} - {"label", "kto_tag"})
    )
    if are_pairs:
        columns = replace(columns, chosen_column=None, rejected_column=None, verdict_column=None, first_wins=None)
    read = interpret([records], PAIRS if are_pairs else replies, columns, notes) if records else iter(())
    found, rejections = read_rows(read, read_both if are_pairs else read_reply)
    return dict(found), rejections


def _row(record: Record, conversation: Conversation, replies: tuple[str, ...]) -> tuple[tuple[str, int], Row]:
    return _place(record), Row(conversation, replies, prompt_key(conversation), record.line)


def _labels(
    found: Sequence[tuple[Row, _Found]], are_pairs: bool, reading: Reading, form: VoteForm, left_out: Counter[str]
) -> Labels:
    """The votes on each row, of which one that the file has several times is one."""
    said = [vote.value for _, one in found for vote in one.votes if not is_unsure(vote.value)]
    levels = VERDICTS if are_pairs else levels_of(said, reading.levels)
    name_of = _names([one for _, one in found])
    rows: dict[Any, int] = {}
    labels = Labels(are_pairs, levels, [], [], [], left_out, name_of is not None, reading.unit or "prompt")
    seen: set[tuple[int, str]] = set()
    for row, one in found:
        texts = (row.conversation, frozenset(row.replies))
        number = rows.setdefault(texts if form.kind == "a rating a row" else _place(one.record), len(rows))
        if number == len(labels.rows):
            labels.rows.append(replace(row, unit=one.unit or row.unit))
        is_swapped = labels.rows[number].replies != row.replies
        for vote in one.votes:
            if (level := _level(vote.value, labels)) is None:
                continue
            name = name_of(vote) if name_of else f"{len(labels.ratings)}"
            if (number, name) in seen:
                left_out[AGAIN] += 1
                continue
            seen.add((number, name))
            shown_first = None if not are_pairs or level == 1 else level == 0
            labels.ratings.append(Rating(number, name, 2 - level if is_swapped else level, shown_first))
    return _without_unrated(labels)


def _names(found: Sequence[_Found]) -> Callable[[Vote], str] | None:
    """The name of a vote's rater, or of its place in a list; None where votes cannot be told apart.

    Places are raters where all rows have a list of one length.
    """
    if all(vote.rater for one in found for vote in one.votes):
        return lambda vote: vote.rater
    places = {one.places for one in found if one.votes}
    return (lambda vote: f"vote {vote.place + 1}") if len(places) == 1 and None not in places else None


def _level(value: Any, labels: Labels) -> int | None:
    """The level of a vote; None of one that is none, which is counted."""
    if labels.are_pairs and isinstance(value, float) and value in (1.0, 0.5, 0.0):
        return int(2 - 2 * value)
    if (place := None if labels.are_pairs else labels.levels.place(value)) is None:
        labels.left_out[UNSURE if is_unsure(value) else UNREADABLE] += 1
        if not is_unsure(value):
            labels.unreadable = labels.unreadable or shown(value, 40)
    return place


def _without_unrated(labels: Labels) -> Labels:
    """The labels without rows on which nobody has voted: nothing is asked about them."""
    rated = sorted({rating.row for rating in labels.ratings})
    if unrated := len(labels.rows) - len(rated):
        labels.notes.append(f"{unrated:,} rows without a vote are not judged")
    number = {row: place for place, row in enumerate(rated)}
    labels.rows = [labels.rows[row] for row in rated]
    labels.ratings = [replace(rating, row=number[rating.row]) for rating in labels.ratings]
    return labels

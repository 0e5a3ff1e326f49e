"""The meaning of a data set's columns: decided once from all its rows, said in one line, and then applied.

A data set is read twice. The first pass finds what its rows hold: formats of other tools (lmgym/data/formats.py), the
form of each column of texts (lmgym/data/text_forms.py), and columns and keys of messages that nothing reads. The second
pass yields rows under our names, in which a transcript is a Conversation, JSON of messages a list, and text a text.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lmgym.config import PASSAGE, VERDICT, ColumnConfig
from lmgym.data.column_names import Names, usual_name
from lmgym.data.formats import advice, refuse_stepwise, renamed
from lmgym.data.json_rows import refuse_unusable
from lmgym.data.labels import LABELS, LabelCounts
from lmgym.data.labels import NEEDED as LABELS_NEEDED
from lmgym.data.records import Record
from lmgym.data.rejections import MEDIA, RowError, tally
from lmgym.data.text_forms import WORDS, Form, FormCounts, Side, read_as
from lmgym.data.unread import Looked, as_text, needed_columns
from lmgym.data.verdicts import refuse_unclear
from lmgym.data.votes import is_missing
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.messages import MESSAGE_KEYS
from lmgym.text import ROLES

SIDES: dict[str, Side] = {
    **dict.fromkeys(("prompt", "input_text"), "prompt"),
    **dict.fromkeys(("messages", "text", "conversation", "transcript"), "chat"),
    **dict.fromkeys(("completion", "output_text", "chosen", "rejected"), "reply"),
}
"""our columns of texts; `chosen` and `rejected` without a prompt hold a chat"""
MEDIA_COLUMNS = ("image", "images", "audio", "audios", "video", "videos")
SYSTEM = ("system", "system_prompt")
BELOW = ("input",)
"""what rows of Alpaca's kind have below an instruction"""
NONE = "unused"
USUAL = ColumnConfig()
MOST_VERDICTS = 50  # kinds that are told apart
SHOWN = 100  # rows whose columns and faults are listed in messages


@dataclass(frozen=True)
class Wanted:
    """The columns that a stage reads."""

    noun: str
    """rows in words: pairs"""
    needed: str
    """the columns in words"""
    forms: Sequence[Sequence[str]]
    """a row has all columns of one of these"""
    reads: Callable[[Mapping[str, Any]], Collection[str]]
    """our names of the columns that are read of a row, beside SYSTEM and `context`"""
    others_go_to: str = ""
    """what gets the columns that are not read: the reward function"""
    left_out: Collection[str] = ()
    """columns that do not go there either"""
    about_replies: Collection[str] = ()
    """our names of columns about the replies, which no prompt needs where they are not read"""
    as_text: bool = False
    """prompts stay texts, whatever their form"""
    may_be_answers: bool = False
    """what is not read may be the answer, which a reward function compares with: it is not asked for in the prompt"""


@dataclass
class _Survey:
    """Counts of the first pass over a data set."""

    name: str
    rows: int = 0
    used: Counter = field(default_factory=Counter)
    """rows by (column, our name)"""
    unread: Counter = field(default_factory=Counter)
    """rows by column, messages by key"""
    forms: dict[tuple[str, Side], FormCounts] = field(default_factory=dict)
    has_form: bool = False
    first: list[Record] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    """of these rows, as the file has them"""
    looked: list[Looked] = field(default_factory=list)
    """the first rows, to judge what is not read"""
    repeated: int = 0
    """rows whose replies all begin with the text of the prompt"""
    notes: dict[str, None] = field(default_factory=dict)
    """how files were read, where it is not the usual way"""
    truths: dict[str, set[str]] = field(default_factory=dict)
    """of columns that are not read and hold true or false: which of both"""
    ignored: Counter = field(default_factory=Counter)
    """rows by column that a flag leaves unread"""
    flagged: set[str] = field(default_factory=set)
    """our names of columns that flags name and rows have"""
    labels: dict[str, LabelCounts] = field(default_factory=dict)
    """by our names of their columns"""
    verdicts: Counter = field(default_factory=Counter)
    """rows by what --verdict_column holds where --first_wins gives its meaning, as (word, value)"""

    @property
    def where(self) -> str:
        """The file of the first row, or the data set's name."""
        return one_line(Path(self.first[0].file).name) if self.first else self.name


def interpret(
    sets: Sequence[Iterable[Record]], wanted: Wanted, columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> Iterator[Record]:
    """The rows of all data sets under our names; a line on each data set is added to `notes`.

    `sets` are iterated twice. Raises InputError, before the first row is yielded, for a set without rows, one in which
    no row has all columns of a form, a mixture of forms, and flags of columns that no row has.
    """
    surveyed, read = [], []
    for number, rows in enumerate(sets):
        names = _with_usual_names(Names.of(columns, number, len(sets)), rows, wanted)
        surveyed.append((rows, names, _survey(rows, names, wanted, one_line(getattr(rows, "name", "the dataset")))))
    _refuse_ignored(columns.ignored, [survey for _, _, survey in surveyed])
    for rows, names, survey in surveyed:
        _refuse(survey, wanted, names)
        names = replace(names, dropped=names.dropped | _drop_topics(survey, wanted, names))
        if not wanted.others_go_to:
            survey.unread.pop(getattr(rows, "split_column", None), None)  # read for the split
        forms = {key: _form(key, counts, columns, survey.where) for key, counts in survey.forms.items()}
        if notes is not None:
            notes.append(_line(survey, wanted, forms))
        read.append((rows, names, forms, _repeats(survey)))
    return (
        replace(_converted(renamed(names.apply(record)), forms, columns, wanted, repeats), row=record.fields)
        for rows, names, forms, repeats in read
        for record in rows
    )


def _with_usual_names(names: Names, rows: Iterable[Record], wanted: Wanted) -> Names:
    """With `usual` where more columns are read so, as of a file with Prompt and Chosen."""
    first = list(islice(rows, SHOWN))
    if all(name == usual_name(name) for record in first for name in record.fields):
        return names
    usual = replace(names, usual=True)
    plain, other = (_survey(first, way, wanted, "") for way in (names, usual))
    return usual if (other.has_form, len(other.used)) > (plain.has_form, len(plain.used)) else names


def _survey(records: Iterable[Record], names: Names, wanted: Wanted, name: str) -> _Survey:
    """The first pass over a data set."""
    found = _Survey(name)
    for as_found in records:
        if as_found.note:
            found.notes[as_found.note] = None
        if names.dropped:
            found.ignored.update(filter(None, map(names.drops, as_found.fields)))
        named = names.apply(as_found)
        record = renamed(named)
        found.rows += 1
        if names.first_wins is not None and VERDICT in named.fields:
            value = as_found.fields.get(names.given[VERDICT])
            if not is_missing(value) and len(found.verdicts) < MOST_VERDICTS:
                found.verdicts[named.fields[VERDICT], shown(value, 40)] += 1
        if len(found.first) < SHOWN:
            found.first.append(record)
            found.columns |= {named.column(name) for name in named.fields}
        if not record.fault:
            _count(found, named, record, wanted)
    return found


def _count(found: _Survey, named: Record, record: Record, wanted: Wanted) -> None:
    """Count a row: `named` is the row before it was renamed."""
    fields = record.fields
    found.has_form = found.has_form or any(fields.keys() >= set(form) for form in wanted.forms)
    found.flagged |= (named.names or {}).keys()
    is_text = wanted.as_text and isinstance(fields.get("prompt"), str)  # without a template, so without a system
    reads = {*wanted.reads(fields), PASSAGE, *(() if is_text else SYSTEM)}
    used = _used(record, reads)
    ours = {theirs: name for name, theirs in (record.names or {}).items() if name in reads}
    for name, value in named.fields.items():
        if _is_empty(value):
            continue
        column = named.column(name)
        if name in reads or column in used:
            found.used[column, ours.get(column, name)] += 1
            if name in LABELS:
                found.labels.setdefault(name, LabelCounts()).add(value)
        else:
            found.unread[column] += 1
            if str(value).lower() in ("true", "false"):
                found.truths.setdefault(column, set()).add(str(value).lower())
    found.repeated += bool(_repeating(fields, reads))
    if len(found.looked) < SHOWN:
        texts = [as_text(fields.get(name)) for name in SIDES if name in reads]
        by_column = {named.column(name): value for name, value in named.fields.items()}
        found.looked.append(Looked(record.line, _question(fields, reads), texts, by_column))
    for name in (name for name in SIDES if name in reads):
        value = fields.get(name)
        if isinstance(value, str) and not (wanted.as_text and name == "prompt"):
            _counts(found, name, fields).add(value, record.line)
        elif isinstance(value, list):
            for message in value:
                if isinstance(message, dict):
                    found.unread.update(
                        f"{record.column(name)}[].{key}"
                        for key, item in message.items()
                        if key not in MESSAGE_KEYS and not _is_empty(item)
                    )


REPLIES = ("completion", "chosen", "rejected")
LEAST_REPEATED = 2  # rows, and most of a data set, whose replies repeat the prompt


def _repeating(fields: Mapping[str, Any], reads: Collection[str]) -> list[str]:
    """Our names of a row's replies, if the text of the prompt stands at the head of all of them."""
    prompt = fields.get("prompt") if "prompt" in reads else None
    if not isinstance(prompt, str) or not (prompt := prompt.strip()):
        return []
    names = [name for name in REPLIES if name in reads and fields.get(name) is not None]
    texts = [fields[name].strip() if isinstance(fields[name], str) else "" for name in names]
    repeats = all(text.startswith(prompt) and len(text) > len(prompt) for text in texts)
    return names if repeats else []


def _repeats(found: _Survey) -> bool:
    return found.repeated >= LEAST_REPEATED and found.repeated > found.rows / 2


def _question(fields: Mapping[str, Any], reads: Collection[str]) -> str:
    """The last text of a user's that is read, or the whole prompt."""
    for name in ("prompt", "input_text", "messages", "text", "chosen"):
        value = fields.get(name) if name in reads else None
        if isinstance(value, list):
            asked = [m for m in value if isinstance(m, dict) and ROLES.get(str(m.get("role", m.get("from")))) == "user"]
            return as_text(asked[-1].get("content", asked[-1].get("value"))) if asked else ""
        if value:
            return as_text(value)
    return ""


def _used(record: Record, reads: Collection[str]) -> set[str]:
    """The columns of another tool's format that are in fields that are read."""
    made = record.names or {}
    read = {theirs for ours, theirs in made.items() if ours in reads}
    return read | (record.used - set(made.values()))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _key(name: str, fields: Mapping[str, Any]) -> tuple[str, Side]:
    """The name and side by which the forms of a column are counted."""
    side = SIDES[name]
    if name in ("chosen", "rejected"):
        name, side = "chosen", "chat" if fields.get("prompt") in (None, "") else "reply"
    return name, side


def _counts(found: _Survey, name: str, fields: Mapping[str, Any]) -> FormCounts:
    key = _key(name, fields)
    return found.forms.setdefault(key, FormCounts(key[1]))


def _refuse_ignored(names: Collection[str], surveys: Sequence[_Survey]) -> None:
    """Raises InputError for a column that is to stay unread and that no data set has."""
    where = surveys[0].where if len(surveys) == 1 else "no data set"
    for column in {*names}.difference(*(survey.ignored for survey in surveys)):
        seen = listed(sorted(set[str]().union(*(survey.columns for survey in surveys))))
        has = "has no" if len(surveys) == 1 else "has a"
        raise InputError(f"{where} {has} column {shown(column)} (--ignore_columns); found: {seen}")


def _refuse(found: _Survey, wanted: Wanted, names: Names) -> None:
    """Raises InputError for a data set that cannot be read."""
    if not found.rows:
        raise InputError(f"{found.where} is empty: found 0 rows; needed: at least 2 {wanted.noun}")
    seen = listed(sorted(found.columns))
    for name, column in names.given.items():
        if name not in found.flagged and column != NONE:
            raise InputError(f"{found.where} has no column {shown(column)}; found: {seen}")
    refuse_stepwise(found.first)
    if found.verdicts:
        refuse_unclear(found.verdicts, found.where, names.given[VERDICT], names.first_wins or "")
    if not found.has_form:
        raise InputError(
            f"{one_line(found.first[0].file)} holds no {wanted.noun}: {_unreadable(found)}found the columns {seen}; "
            f"needed: {wanted.needed} (or name yours by --prompt_column and the like){advice(found.first)}"
        )
    # a damaged row may leave unread what the others use; sorted, so that messages are the same each time
    about = {names.given.get(name, name) for name in wanted.about_replies}
    unread = sorted(found.unread.keys() - {column for column, _ in found.used} - about)
    needed = [] if wanted.may_be_answers else needed_columns(found.looked, unread, BELOW)
    if needed and PASSAGE not in names.given:
        first, column = needed[0], shlex.quote(one_line(needed[0].column, 60))
        all_of_them = shlex.quote(",".join(one_line(one.column, 60) for one in needed))
        prompt = "" if any(ours == "prompt" for _, ours in found.used) else f"--prompt_column {column}, if it is that, "
        raise InputError(
            f"{found.where}: nothing reads the column {column} ({found.unread[first.column]:,} rows, line "
            f"{first.line}: {shown(first.text, 60)}), {first.what} that the answer may need; needed: {prompt}"
            f"--context_column {column}, which puts it below the prompt, or --ignore_columns {all_of_them}"
        )


def _drop_topics(found: _Survey, wanted: Wanted, names: Names) -> frozenset[str]:
    """Columns that are called as labels are and hold none, such as topics: they count as not read.

    Raises InputError where labels cannot be told from other values, or where a flag or the stage asks for labels.
    """
    topics = set()
    for name, counts in found.labels.items():
        column = next(theirs for theirs, ours in found.used if ours == name)
        counts.refuse_unclear(found.where, column)
        if not counts.known and name in names.given:
            raise InputError(
                f"{found.where}: --label_column {column} holds no labels: found {listed(counts.others)}; "
                f"{LABELS_NEEDED}"
            )
        if not counts.known and not any(name in form for form in wanted.forms):
            topics.add(name)
            found.unread[column] += found.used.pop((column, name))
    return frozenset(topics)


def _unreadable(found: _Survey) -> str:
    """The count of records that could not be read, with reasons, to begin a message with; empty if all could."""
    return tally((r.fault.at(r.file, r.line) for r in found.first if r.fault), len(found.first)).in_front


def _form(key: tuple[str, Side], counts: FormCounts, columns: ColumnConfig, where: str) -> Form:
    """The form of a column, by its flag or by its texts."""
    flag = "reply_format" if key[1] == "reply" else "prompt_format"
    given = getattr(columns, flag)
    return counts.decide(where, key[0], flag) if given == "auto" else given


def _line(found: _Survey, wanted: Wanted, forms: Mapping[tuple[str, Side], Form]) -> str:
    """`pairs.jsonl: 100 rows; read: prompt (plain text), chosen (plain text); not read: id (100)`."""
    said = []
    words = {name: WORDS[form] for (name, _), form in forms.items()}
    names: dict[str, dict[str, None]] = {}
    for column, name in found.used:
        names.setdefault(column, {})[name] = None
    for column, ours in names.items():
        forms_of = {words.get("chosen" if name == "rejected" else name) for name in ours}
        other = " or ".join(name for name in ours if name != column)
        form = " or ".join(sorted(filter(None, forms_of)))
        said.append(f"{one_line(column, 60)}{other and f' as {other}'}{form and f' ({form})'}")
    line = "; ".join([f"{found.where}: {found.rows:,} rows", *found.notes])
    line += f"; read: {', '.join(said) or 'nothing'}"
    passed: list[str] = []
    left: list[str] = []
    for column, count in sorted(found.unread.items(), key=lambda item: ("[]." in item[0], -item[1])):
        goes_on = wanted.others_go_to and "[]." not in column and column not in wanted.left_out
        (passed if goes_on else left).append(f"{one_line(column, 60)} ({count:,})")
    line += f"; to {wanted.others_go_to}: {listed(passed)}" if passed else ""
    if _repeats(found):
        line += f"; taken off the head of replies: the prompt ({found.repeated:,} rows)"
    line += f"; not read: {listed(left)}" if left else ""
    if set(LABELS) & {*wanted.reads(found.first[0].fields)} and not found.labels:
        both = [one_line(column, 60) for column, values in found.truths.items() if len(values) == 2]
        line += f"; if true says that a reply is good: --label_column {both[0]}" if both else ""
    ignored = [f"{one_line(column, 60)} ({count:,})" for column, count in found.ignored.items()]
    return f"{line}; ignored: {listed(ignored)}" if ignored else line


def _converted(
    record: Record,
    forms: Mapping[tuple[str, Side], Form],
    columns: ColumnConfig,
    wanted: Wanted,
    repeats: bool,
) -> Record:
    """The record with its texts in their forms; with `repeats`, replies without the prompt at their head."""
    if record.fault:
        return record
    fields = record.fields
    try:
        refuse_unusable(fields)
        if media := next((name for name in MEDIA_COLUMNS if not _is_empty(fields.get(name))), ""):
            found = f"holds {shown(fields[media])}, which no stage reads; needed: rows of text alone"
            raise RowError(media, found, MEDIA)
        changed: dict[str, Any] = {}
        reads = wanted.reads(fields)
        if repeats:
            start = len(str(fields.get("prompt")).strip())
            bare = {name: fields[name].strip()[start:].lstrip() for name in _repeating(fields, reads)}
            changed, fields = dict(bare), {**fields, **bare}
        for name in SIDES.keys() & {*reads}:
            value, key = fields.get(name), _key(name, fields)
            if isinstance(value, str) and key in forms:
                flag = columns.reply_format if key[1] == "reply" else columns.prompt_format
                changed[name] = read_as(forms[key], value, key[1], name, forced=flag != "auto")
        if not fields.get("system") and fields.get("system_prompt"):
            changed["system"] = fields["system_prompt"]
        return replace(record, fields={**fields, **changed}) if changed else record
    except RowError as error:
        return replace(record, fault=error.with_traceback(None))

"""Where a file has its raters' votes, decided once from all its rows, and the votes of one row.

Forms: one row a rating, with columns of the rater and the vote; one row an item, with a column for each rater, or one
cell with a list, an object by rater, objects of raters and votes, or counts by vote; Label Studio's annotations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmgym.data.asked import Fields
from lmgym.data.rejections import NO_VALUE, RowError
from lmgym.data.verdicts import one_a_side, side_of, sides_of, verdict_columns
from lmgym.data.votes import RATERS, VERDICTS, Vote, cells_in, is_missing, is_verdict_name, names_rater, votes_in
from lmgym.data.votes import words_of_name as words_of
from lmgym.errors import InputError, listed, shown

ANNOTATIONS = "(votes)"
"""our name of the column of what Label Studio's annotations say"""
COUNTED = {"count", "counts", "tally", "distribution", "histogram"}
"""words in the names of columns that hold how many raters gave each label"""
Kind = Literal["a rating a row", "columns", "a cell"]


@dataclass(frozen=True)
class VoteForm:
    """The columns of the votes."""

    kind: Kind
    votes: tuple[str, ...]
    rater: str = ""
    """column with the rater, of one row a rating; with the list of raters, of a cell with a list of votes"""

    @property
    def columns(self) -> set[str]:
        """All columns that are no part of the texts."""
        return {*self.votes, *filter(None, [self.rater])}

    @property
    def words(self) -> str:
        """The reading of the file, in words."""
        if self.kind == "a rating a row":
            return f"one row a rating, the vote in {self.votes[0]}, the rater in {self.rater}"
        if self.kind == "columns":
            return f"one row an item, a column for each rater: {listed(self.votes)}"
        of = f", whose raters are in {self.rater}" if self.rater else ""
        return f"one row an item, the votes in {'annotations' if ANNOTATIONS in self.votes else self.votes[0]}{of}"


@dataclass(frozen=True)
class Named:
    """Columns that the user names."""

    vote: str = ""
    rater: str = ""
    raters: tuple[str, ...] = ()
    """a column for each rater"""


def flattened(fields: Fields) -> dict[str, Any]:
    """The fields of a row; of a task of Label Studio's, its data with what its annotations say in one column.

    An annotation without a selection is missing.
    """
    annotations, data = fields.get("annotations"), fields.get("data")
    if not isinstance(annotations, list) or not isinstance(data, dict):
        return dict(fields)
    said = [
        {"rater": _who(annotation.get("completed_by"), place), "vote": word}
        for place, annotation in enumerate(annotations)
        if isinstance(annotation, dict) and not annotation.get("was_cancelled")
        for word in _selected(annotation)
    ]
    return data | {ANNOTATIONS: said}


def _who(completed_by: Any, place: int) -> str:
    person = completed_by.get("email", completed_by.get("id")) if isinstance(completed_by, dict) else completed_by
    return str(place if person is None else person)


def _selected(annotation: Mapping[str, Any]) -> Iterator[Any]:
    for result in annotation.get("result") or ():
        value = result.get("value") if isinstance(result, dict) else None
        if isinstance(value, dict):
            said = value.get("selected", value.get("choices", value.get("rating")))
            yield from (said if isinstance(said, list) else [said])


def find_form(rows: Sequence[Fields], named: Named, are_pairs: bool) -> VoteForm:
    """The form of a file's votes; `rows` have their texts. Raises InputError where there are none, or too many."""
    columns = list(dict.fromkeys(name for fields in rows for name in fields if isinstance(name, str)))
    for name in filter(None, (named.vote, named.rater, *named.raters)):
        if name not in columns:
            raise InputError(f"the labels have no column {shown(name)}; found: {listed(columns)}")
    if ANNOTATIONS in columns:
        return VoteForm("a cell", (ANNOTATIONS,))
    if named.raters:
        return VoteForm("columns", named.raters)
    texts = set().union(*(sides_of(fields, True) or () for fields in rows[:100])) if are_pairs else set()
    who = [named.rater] if named.rater else [name for name in columns if names_rater(name)]
    of_row = next((name for name in who if not _holds_lists(rows, name)), "")
    several = [] if named.vote else [name for name in columns if _is_one_raters(name, are_pairs) and name not in texts]
    by_name = [name for name in several if _has_word(name, RATERS)]
    several = [name for name in several if name in by_name or not _holds_lists(rows, name)]
    if len(by_name) > 1 or (len(several) > 1 and not of_row) or (several == by_name != [] and not of_row):
        return VoteForm("columns", tuple(by_name if of_row else several))
    vote = named.vote or _vote_column(rows, [name for name in columns if name not in {*texts, *who}], are_pairs)
    of_list = next((name for name in who if _holds_lists(rows, name)), "")
    if of_row and not _holds_lists(rows, vote):
        return VoteForm("a rating a row", (vote,), of_row)
    return VoteForm("a cell", (vote,), of_list)


def _is_one_raters(column: str, are_pairs: bool) -> bool:
    """True of rater_1 and annotator_alice, of vote_alice where verdicts are read so, and of label_2."""
    words = words_of(column)
    if names_rater(column) or len(words) < 2:
        return False
    is_numbered = words[-1].isdigit() and is_verdict_name(column)
    return _has_word(column, RATERS) or is_numbered or (are_pairs and bool(VERDICTS & {*words}))


def _has_word(column: str, of: set[str]) -> bool:
    return bool({word.rstrip("s") for word in words_of(column)} & of)


def _vote_column(rows: Sequence[Fields], columns: Sequence[str], are_pairs: bool) -> str:
    """The one column of votes by its name; of several, that of verdicts before that of labels and grades."""
    found = [name for name in columns if is_verdict_name(name) and any(not is_missing(f.get(name)) for f in rows)]
    if are_pairs:
        own = {name for fields in rows for name in verdict_columns(fields, sides_of(fields, True) or ("", ""))}
        found = [name for name in found if name in own] or found
    if len(found) != 1:
        what = (
            f"the columns {listed(found)} may all be votes" if found else "no column is called as votes or grades are"
        )
        raise InputError(
            f"{what}; found: {listed(columns)}; needed: --vote_column with the column of one vote or of a list of "
            "them, or --rater_columns with a column for each rater, such as alice,bob"
        )
    return found[0]


def _holds_lists(rows: Sequence[Fields], column: str) -> bool:
    """True of a column of lists or objects, also as text."""
    cells = [fields[column] for fields in rows if not is_missing(fields.get(column))]
    several = sum(isinstance(cell, list | dict) or (isinstance(cell, str) and cell[:1] in "[{") for cell in cells)
    return several > len(cells) / 2


def votes_of(fields: Fields, form: VoteForm, sides: Sequence[str] | None) -> list[Vote]:
    """The votes of a row with their raters, as they stand in it; an anonymous one has an empty rater.

    `sides` are the columns of two replies. Raises RowError for lists of votes and of raters of different lengths.
    """
    if sides and (single := one_a_side(fields, (sides[0], sides[1]))) is not None:
        word = {1.0: "first", 0.5: "tie", 0.0: "second"}[single.votes[0]]
        return [Vote(str(fields.get(form.rater, "")), word)]
    if form.kind == "a rating a row":
        rater, value = fields.get(form.rater), fields.get(form.votes[0])
        if is_missing(rater):
            raise RowError(form.rater, "no rater", NO_VALUE)
        return [] if is_missing(value) else [Vote(str(rater), value)]
    return [vote for name in form.votes for vote in _votes_of_cell(fields, name, form, sides)]


def _votes_of_cell(fields: Fields, name: str, form: VoteForm, sides: Sequence[str] | None) -> list[Vote]:
    cell = fields.get(name)
    is_counted = bool(COUNTED & {*words_of(name)})
    votes = votes_in(cell, lambda word: side_of(word, sides, fields) is not None if sides else is_counted)
    if form.kind == "columns":
        return [Vote(f"{name} {vote.rater}".strip(), vote.value) for vote in votes]
    if not form.rater:
        return votes
    raters, number = cells_in(fields.get(form.rater)), len(cells_in(cell))
    if len(raters) != number:
        raise RowError(form.rater, f"{len(raters):,} raters for {number:,} votes; needed: as many", NO_VALUE)
    return [Vote(str(raters[vote.place]), vote.value) for vote in votes]


def places_in(fields: Fields, form: VoteForm) -> int | None:
    """The number of votes that a row's cell has a place for; None for an object, in which votes have no places."""
    cell = fields.get(form.votes[0])
    is_object = isinstance(cell, dict) or (isinstance(cell, str) and cell.strip().startswith("{"))
    return None if form.kind != "a cell" or is_object else len(cells_in(cell))

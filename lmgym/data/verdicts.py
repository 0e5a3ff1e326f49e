"""Two replies of a row and the verdicts on them, as labelling tools and arenas export them, found by rules.

Design decisions:
- Two columns are the replies if their names differ in one mark alone: response_a and response_b, answer1 and answer2.
- A verdict is a word that names one of both by its column or its mark ("Response A", "model_b", "left"), or a tie; in
  a column that is called so (winner, preference, choice, ...), in one column a side (winner_model_a: 1), in a list of
  several raters', or in Label Studio's annotations. Numbers name a side only by a mark that is a number.
- Several verdicts are votes: the share of them is the row's `preference`, a tie half a vote for each. "Cannot say" is
  no vote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lmgym.config import VERDICT
from lmgym.data.asked import Fields, is_blank
from lmgym.data.json_rows import parse_json
from lmgym.data.labels import liked
from lmgym.data.rejections import NO_VALUE, OUT_OF_RANGE, WRONG_TURNS, WRONG_TYPE, RowError
from lmgym.data.rows import number_of
from lmgym.data.votes import RATERS, VERDICTS, is_unsure, said_by_several, votes_in, words_of_name
from lmgym.errors import InputError, listed, shown

MARKS = (("a", "b"), ("0", "1"), ("1", "2"), ("left", "right"), ("first", "second"), ("one", "two"))
PLACES = {word: place for marks in MARKS if not marks[0].isdigit() for place, word in enumerate(marks)}
"""words that name a side whatever the columns are called"""
TIES = {"tie", "tied", "ties", "equal", "equally", "same", "draw", "both", "neither", "none"}
REPLIES = ("response", "answer", "output", "completion", "conversation", "reply", "generation", "summary", "text")
STATUS = "status"
NEEDED = "needed: a word that names one reply (A, left, response_1) or a tie; or --verdict_column and --first_wins"


@dataclass(frozen=True)
class Judged:
    """Two replies, and what was said of them."""

    sides: tuple[str, str]
    """columns of the replies, the first and the second"""
    votes: tuple[float, ...]
    """1: the first is better, 0: the second, .5: a tie"""
    verdicts: tuple[str, ...]
    """columns of the votes"""
    replies: tuple[Any, Any]
    asks: Fields
    """the fields with the question"""

    @property
    def share(self) -> float:
        """Of the votes, that of the first reply."""
        return sum(self.votes) / len(self.votes)


def side_of(value: Any, sides: Sequence[str], fields: Fields | None = None) -> float | None:
    """1 if a word names the first of two columns, 0 the second, .5 for a tie; None if it says nothing of the kind.

    `fields` are the row's: a verdict may name a side by another column with its mark, as by the name in model_a.
    """
    if isinstance(value, bool) or value is None:
        return None
    words = words_of_name(str(value))
    if (place := _named(value, sides, fields or {})) is not None:
        return place
    if isinstance(value, str) and TIES & {*words}:
        return 0.5
    names = [words_of_name(side) for side in sides]
    if words in names:
        return 1.0 - names.index(words)
    marks = {mark: place for place, mark in enumerate(_marks(sides))} | PLACES
    found = {marks[word] for word in words if word in marks}
    return 1.0 - found.pop() if len(found) == 1 else None


FIRST, SECOND, TIE = "first", "second", "tie"


def word_of(verdict: Any, first_wins: str) -> str:
    """A verdict as FIRST, SECOND or TIE, where one is known by which the first reply is the better one."""
    if _same(verdict, first_wins):
        return FIRST
    return TIE if TIES & {*words_of_name(str(verdict))} else SECOND


def refuse_unclear(verdicts: Mapping[tuple[str, str], int], where: str, column: str, first_wins: str) -> None:
    """Raises InputError where `first_wins` leaves open what a verdict says; `verdicts` are rows by (word, value)."""
    kinds = {word: [value for one, value in verdicts if one == word] for word in (FIRST, SECOND)}
    if len(kinds[SECOND]) > 1 or not kinds[FIRST]:
        values = listed(f"{value} ({count:,} rows)" for (_, value), count in sorted(verdicts.items()))
        raise InputError(
            f"{where}: --verdict_column {column} holds {values}; needed: --first_wins {shown(first_wins)}, one other "
            "verdict and ties; leave out rows with others, or spell them alike"
        )


def _same(verdict: Any, given: str) -> bool:
    if (number := number_of(verdict)) == number:  # 0 is 0.0
        return number == number_of(given)
    return (
        words_of_name(str(verdict)) == words_of_name(given)
        if words_of_name(given)
        else str(verdict).strip() == given.strip()
    )


def _named(value: Any, sides: Sequence[str], fields: Fields) -> float | None:
    """The side in whose columns, other than the reply, stands this text alone; None if in none or in both."""
    if not isinstance(value, str) or not value.strip():
        return None
    marks = tuple(_marks(sides))
    names = {name: words_of_name(name) for name in fields if isinstance(name, str) and name not in sides}
    places = {
        place
        for one, words in names.items()
        for other, others in names.items()
        if one != other and differing(words, others) == marks
        for place, name in enumerate((one, other))
        if fields[name] == value
    }
    return 1.0 - places.pop() if len(places) == 1 else None


def judged(fields: Fields) -> Judged | None:
    """The two replies of a row with their verdicts; None for a row of another kind.

    Raises RowError for a verdict that names neither of both, and where there is none.
    """
    if (tool := _label_studio(fields)) is not None:
        return tool
    if (sides := sides_of(fields)) is None:
        return None
    if (single := one_a_side(fields, sides)) is not None:
        return single
    names = verdict_columns(fields, sides)
    values = {name: said_in(fields[name], sides, fields) for name in names}
    if not names:
        return None
    votes, used = list[float](), list[str]()
    for name, items in values.items():
        places = [side_of(item, sides, fields) for item in items]
        if items and None not in places:
            votes += [place for place in places if place is not None]
            used.append(name)
    if not votes:
        given = next((name for name, items in values.items() if items), names[0])
        kind = OUT_OF_RANGE if values[given] else NO_VALUE
        found = shown(fields[given]) if values[given] else "missing"
        raise RowError(given, f"{found}, beside {listed(sides)}; {NEEDED}", kind)
    return Judged(sides, tuple(votes), tuple(used), _replies(fields, sides), _with_question(fields))


def verdict_columns(fields: Fields, sides: Sequence[str]) -> list[str]:
    """The columns of verdicts on two replies, by their names, or the one that a flag names."""
    return [VERDICT] if VERDICT in fields else [name for name in fields if _is_verdict(name, sides)]


def said_in(cell: Any, sides: Sequence[str], fields: Fields) -> list[Any]:
    """The votes of a cell of verdicts on two replies, without those of raters who cannot say."""
    votes = votes_in(cell, lambda word: side_of(word, sides, fields) is not None)
    return [vote.value for vote in votes if side_of(vote.value, sides, fields) is not None or not is_unsure(vote.value)]


def has_verdict(fields: Fields) -> bool:
    """True for a row of two replies and a verdict."""
    if _is_label_studio(fields):
        return True
    if (sides := sides_of(fields)) is None:
        return False
    return (
        VERDICT in fields or any(_is_verdict(name, sides) for name in fields) or one_a_side(fields, sides) is not None
    )


def sides_of(fields: Fields, even_chosen: bool = False) -> tuple[str, str] | None:
    """The columns of two replies, as flags name them or by the rule; None where there are none to be judged.

    Those of a pair whose better reply is known, chosen and rejected, are to be judged only if that is asked for.
    """
    has_chosen = not is_blank(fields.get("chosen"))
    if (even_chosen or VERDICT in fields) and has_chosen and not is_blank(fields.get("rejected")):
        return "chosen", "rejected"
    return None if has_chosen else _two_sides(fields)


def differing(one: list[str], other: list[str]) -> tuple[str, str] | None:
    """The words in which two names differ, if they do in one alone."""
    both = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    return both[0] if len(one) == len(other) and len(both) == 1 else None


def _marks(sides: Sequence[str]) -> Sequence[str]:
    return differing(*map(words_of_name, sides)) or ()


def _two_sides(fields: Fields) -> tuple[str, str] | None:
    """The two columns of replies: those with a usual name, or else with the longest texts."""
    names = tuple(name for name, value in fields.items() if isinstance(value, str | list) and value)
    pairs = _marked_pairs(names)
    return max(pairs, key=lambda pair: (pairs[pair], sum(len(str(fields[name])) for name in pair)), default=None)


@lru_cache(maxsize=256)  # the same columns row after row
def _marked_pairs(names: tuple[Any, ...]) -> dict[tuple[str, str], bool]:
    """Pairs of columns whose names differ in a mark alone, and whether these are usual names of replies."""
    words = {name: words_of_name(name) for name in names if isinstance(name, str)}
    return {
        (a, b): any(word.rstrip("s") in REPLIES for word in words[a])
        for a in words
        for b in words
        if a != b and differing(words[a], words[b]) in MARKS
    }


def _is_verdict(name: Any, sides: Sequence[str]) -> bool:
    if not isinstance(name, str) or name in sides:
        return False
    words = words_of_name(name)
    return bool(VERDICTS & {*words} or (len(words) > 1 and words[-1].isdigit() and RATERS & {*words}))


def one_a_side(fields: Fields, sides: tuple[str, str]) -> Judged | None:
    """Of rows with a column for each outcome that is 1 for the one that came about: winner_model_a, winner_tie."""
    marks = _marks(sides)
    found: dict[float, str] = {}
    for name in fields:
        words = words_of_name(name) if isinstance(name, str) else []
        if len(words) > 1 and VERDICTS & {*words[:-1]}:
            place = 0.5 if words[-1] in TIES else 1.0 - list(marks).index(words[-1]) if words[-1] in marks else None
            if place is not None and liked(fields[name]) is not None:
                found[place] = name
    if not {1.0, 0.0} <= found.keys():
        return None
    won = [place for place, name in found.items() if liked(fields[name])]
    if len(won) != 1:
        values = listed(f"{name} {shown(fields[name])}" for name in found.values())
        raise RowError(found[1.0], f"{values}; needed: 1 in one of them", OUT_OF_RANGE)
    return Judged(sides, (won[0],), tuple(found.values()), _replies(fields, sides), _with_question(fields))


def _replies(fields: Fields, sides: Sequence[str]) -> tuple[Any, Any]:
    """Both replies; a list of one text is the text."""
    first, second = (_cell(fields[side], side) for side in sides)
    return first, second


def _with_question(fields: Fields) -> Fields:
    """The fields with the question as a text, where it stands in a list as the replies do."""
    return {**fields, "prompt": _cell(fields["prompt"], "prompt")} if "prompt" in fields else fields


def _listed(value: Any) -> Any:
    """A list of texts, also as JSON in a cell; anything else as it is."""
    found = value
    if isinstance(value, str) and value.startswith('["') and value.endswith("]"):
        found = parse_json(value, "(row)")
    is_texts = isinstance(found, list) and bool(found) and all(isinstance(one, str | None) for one in found)
    return found if is_texts else value


def _cell(value: Any, name: str) -> Any:
    """The text of a cell that lists the texts of turns. Raises RowError for several turns, which a pair has not."""
    found = _listed(value)
    if not isinstance(found, list) or (found and isinstance(found[0], dict)):
        return value
    if len(found) > 1:
        what = f"{len(found)} turns, which part from the other side's at the first"
        raise RowError(name, f"{what}; needed: one reply a side to one conversation", WRONG_TURNS)
    return found[0]


def _is_label_studio(fields: Fields) -> bool:
    return isinstance(fields.get("annotations"), list) and isinstance(fields.get("data"), dict)


def _label_studio(fields: Fields) -> Judged | None:
    """Of a task of Label Studio's: its data, and the selections in its annotations."""
    if not _is_label_studio(fields):
        return None
    data = fields["data"]
    if (sides := _two_sides(data)) is None:
        found = f"no two replies among {listed(data)}; needed: such as answer1 and answer2"
        raise RowError("data", found, WRONG_TYPE)
    chosen = [
        word
        for annotation in fields["annotations"]
        if isinstance(annotation, dict) and not annotation.get("was_cancelled")
        for result in annotation.get("result") or ()
        for value in (result.get("value") if isinstance(result, dict) else None,)
        if isinstance(value, dict)
        for word in said_by_several(value.get("selected", value.get("choices")))
    ]
    votes = [side_of(word, sides) for word in chosen]
    if not votes or None in votes:
        found = shown(chosen[votes.index(None)]) if votes else "no selection"
        raise RowError("annotations", f"{found}; {NEEDED}", OUT_OF_RANGE if votes else NO_VALUE)
    return Judged(
        sides, tuple(v for v in votes if v is not None), ("annotations",), _replies(data, sides), _with_question(data)
    )


def two_replies(fields: Fields) -> tuple[tuple[str, str], tuple[Any, Any], Fields] | None:
    """(columns, replies, the fields with the question) of two replies whose columns are called so, whether or not there
    is a verdict on them; None where there are none. Raises RowError for a reply of several turns.
    """
    names = tuple(name for name, value in fields.items() if isinstance(value, str | list) and value)
    if not is_blank(fields.get("chosen")) or not any(_marked_pairs(names).values()):
        return None
    sides = _two_sides(fields)
    assert sides is not None
    return sides, _replies(fields, sides), _with_question(fields)

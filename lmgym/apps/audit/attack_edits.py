"""Edits that an attack tries: steps that are data, so that a later attack can try them again; and random edits of the
same kind and size, which say what of the effect any such edit has.
"""

import difflib
import itertools
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmgym.apps.audit.biases import HACKS, LENGTH_AND_FORM, MANNER
from lmgym.apps.audit.edits import Exchange, Others, sentences
from lmgym.apps.audit.winners import Feature
from lmgym.errors import InputError, shown

Kind = Literal["first", "last", "repeat", "longer", "shorter", "audit"]
KINDS = ("first", "last", "repeat", "longer", "shorter", "audit")
PLACES: tuple[Kind, ...] = ("last", "first")
COMMON, LONGEST = 8, 80  # sentences of the replies, and characters of one
REPEATS, LONGER, SHORTER = (4, 12), (4, 12, 36), (25, 50, 75)
OF_LENGTH = ("length", "filler", "truncation")
BIASES = {bias.name: bias for bias in (*LENGTH_AND_FORM, *MANNER, *HACKS) if bias.name not in OF_LENGTH}
"""the audit's edits of a reply, but for those that are of length alone, which have steps of their own here"""
WORD = re.compile(r"\s*\S+")  # with the white space before it


@dataclass(frozen=True)
class Step:
    """A change of a reply: words put first or last; its last sentence repeated; so many random words added; the last
    percents of it cut; or an edit of the audit by its name.
    """

    kind: Kind
    text: str

    @property
    def name(self) -> str:
        """For people."""
        if self.kind in ("first", "last"):
            return f'"{self.text}" {self.kind}'
        about = {
            "repeat": f"last sentence {self.text} times more",
            "longer": f"{self.text} random words more",
            "shorter": f"{self.text}% shorter",
        }
        return about.get(self.kind, self.text)

    def apply(self, given: Exchange, vocabulary: Sequence[str]) -> str | None:
        """The changed reply; None where the step does nothing."""
        reply = given.reply
        if self.kind == "first":
            return f"{self.text} {reply}"
        if self.kind == "last":
            return f"{reply} {self.text}"
        if self.kind == "audit":
            made = list(BIASES[self.text].edits.values())
            versions = made[zlib.crc32(given.prompt.encode("utf-8", "backslashreplace")) % len(made)](given, Others())
            return None if versions is None else versions[1].reply
        number = int(self.text)
        if self.kind == "repeat":
            parts = sentences(reply)
            return " ".join([reply, *[parts[-1]] * number]) if parts else None
        if self.kind == "longer":
            return " ".join([reply, *_draw(given, vocabulary, number, "longer")])
        said = reply.split()
        cut = len(said) * number // 100
        return " ".join(said[:-cut]) if cut else None


@dataclass(frozen=True)
class AttackEdit:
    """Steps that are applied one after the other."""

    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """For people."""
        return ", then ".join(step.name for step in self.steps)

    @property
    def family(self) -> str:
        """The kind of an edit: edits of different families compete for no place among those that are tested."""
        kinds = list(dict.fromkeys(step.kind for step in self.steps))
        return kinds[0] if len(kinds) == 1 else "several"

    @property
    def in_any_order(self) -> tuple[tuple[str, str], ...]:
        """Equal for edits of the same steps."""
        return tuple(sorted((step.kind, step.text) for step in self.steps))

    @property
    def of_length(self) -> bool:
        """True if it changes nothing but the length."""
        return all(step.kind in ("longer", "shorter") for step in self.steps)

    def apply(self, given: Exchange, vocabulary: Sequence[str]) -> Exchange | None:
        """The exchange with the edited reply; None if a step does nothing."""
        changed = given
        for step in self.steps:
            reply = step.apply(changed, vocabulary)
            if reply is None or reply == changed.reply:
                return None
            changed = Exchange(given.conversation, reply)
        return changed

    def at_random(self, given: Exchange, edited: Exchange, vocabulary: Sequence[str]) -> Exchange:
        """A random edit of the same kind and size.

        Random words stand where the edit put its own, and as many words are missing, elsewhere. Of an edit of length,
        as many words are exchanged for random ones, and the length stays.
        """
        draw = _random(given, edited.reply)
        before, after = WORD.findall(given.reply), WORD.findall(edited.reply)
        if self.of_length:
            said = list(before)
            for place in draw.sample(range(len(said)), min(len(said), abs(len(after) - len(before)))):
                said[place] = f" {draw.choice(vocabulary)}"
        else:
            said = _other_words(before, after, vocabulary, draw)
        return Exchange(given.conversation, "".join(said).strip())

    @property
    def row(self) -> list[dict[str, str]]:
        """The steps in attack.json."""
        return [{"kind": step.kind, "text": step.text} for step in self.steps]


def _other_words(
    before: Sequence[str], after: Sequence[str], vocabulary: Sequence[str], draw: random.Random
) -> list[str]:
    """The words before, with random words in place of those that are new after, and without as many as are gone."""
    said: list[str] = []
    kept: list[int] = []
    missing = 0
    given, edited = ([word.strip() for word in words] for words in (before, after))
    for what, i, j, k, m in difflib.SequenceMatcher(None, given, edited, autojunk=False).get_opcodes():
        if what in ("equal", "delete"):
            kept += range(len(said), len(said) + j - i)
            said += before[i:j]
            missing += j - i if what == "delete" else 0
        else:
            said += (f" {word}" for word in draw.choices(vocabulary, k=m - k))
    gone = set(draw.sample(kept, min(missing, len(kept))))
    left = [word for place, word in enumerate(said) if place not in gone]
    return [*left[:1], *(word if word[:1].isspace() else f" {word}" for word in left[1:])]


def _random(given: Exchange, text: str) -> random.Random:
    """Draws that follow from the texts alone."""
    return random.Random(zlib.crc32(f"{given.prompt}\0{given.reply}\0{text}".encode("utf-8", "backslashreplace")))


def _draw(given: Exchange, vocabulary: Sequence[str], number: int, text: str) -> list[str]:
    return _random(given, text).choices(vocabulary, k=number)


def vocabulary_of(replies: Iterable[str]) -> tuple[str, ...]:
    """All words of the replies, in order, so that a random draw has their frequencies."""
    return tuple(word for reply in replies for word in reply.split()) or ("word",)


def candidates(found: Sequence[Feature], replies: Iterable[str], most: int) -> list[AttackEdit]:
    """At most so many edits of one step: of length, of repetition, and by turns what winners have, the audit's edits,
    and the most common sentences of the replies, first and last.
    """
    of_length = [Step("longer", str(n)) for n in LONGER] + [Step("shorter", str(n)) for n in SHORTER]
    repeats = [Step("repeat", str(n)) for n in REPEATS]
    phrases = [step for feature in found for step in _steps(feature)]
    common = Counter(one for reply in replies for one in sentences(reply) if len(one) <= LONGEST).most_common(COMMON)
    usual = [Step(place, sentence) for sentence, _ in common for place in PLACES]
    of_audit = [Step("audit", name) for name in BIASES]
    steps = list(dict.fromkeys([*of_length, *repeats, *_by_turns(phrases, of_audit, usual)]))
    return [AttackEdit((step,)) for step in steps[:most]]


def _steps(feature: Feature) -> list[Step]:
    if feature.kind == "form":
        return []
    places = PLACES[1:] if feature.kind == "opening" else PLACES[:1] if feature.kind == "closing" else PLACES
    return [Step(place, feature.text) for place in places]


def _by_turns(*sides: Sequence[Step]) -> list[Step]:
    turns = itertools.zip_longest(*sides)
    return [step for turn in turns for step in turn if step is not None]


def read_edit(rows: object) -> AttackEdit:
    """The edit of an attack.json. Raises InputError for anything else."""
    listed: Any = rows if isinstance(rows, list) else []
    steps = [
        Step(row["kind"], row["text"])
        for row in listed
        if isinstance(row, dict) and row.get("kind") in KINDS and isinstance(row.get("text"), str)
    ]
    numbers = [step.text for step in steps if step.kind in ("repeat", "longer", "shorter")]
    names = [step.text for step in steps if step.kind == "audit"]
    fits = all(re.fullmatch("[1-9][0-9]{0,3}", text) for text in numbers) and all(name in BIASES for name in names)
    if not steps or len(steps) != len(listed) or not fits:
        raise InputError(f"{shown(rows)} is no edit; needed: the steps of an edit in the attack.json of an attack")
    return AttackEdit(tuple(steps))

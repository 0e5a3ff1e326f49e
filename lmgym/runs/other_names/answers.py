"""How the table of other libraries' names is read: what a flag's value becomes, and which row answers a name.

A row is `names: answer`, by stages of `lmgym train` ("": every stage). Names may hold `*`. Answers are

    --flag                  the flag, with the same value
    --flag bf16             the flag with this value, where the setting is on
    --flag * --other        the value times that of another flag of the command
    --flag [1]              the second number of several
    --flag not              true for false, false for true
    --flag {a: b, c: -}     a becomes b, c needs no flag, and others stay
    anything else           a sentence: why there is none, or what does it
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

STAGES = ("reward", "sft", "preference", "ppo")
FORM = re.compile(
    r"--(?P<flag>\w+)(?: (?P<fixed>[a-z0-9][\w.-]*)| \* --(?P<times>\w+)| \[(?P<item>\d)\]| \{(?P<words>.*)\})?"
)
PAIR = re.compile(r"(\S+): (\S+?)(?:, |$)")
NO_FLAG = "-"
"""in place of a value: the setting is what happens without the flag"""
ORDINALS = ("first", "second", "third")


@dataclass(frozen=True)
class Answer:
    """What there is here for a setting of another library."""

    text: str
    """as it stands in the table"""

    @property
    def form(self) -> re.Match[str] | None:
        """The parts of an answer that names one flag; None of a sentence."""
        return FORM.fullmatch(self.text)

    @property
    def flag(self) -> str | None:
        """The flag without its dashes; None of a sentence."""
        return self.form["flag"] if self.form else None

    @property
    def words(self) -> dict[str, str]:
        """What values become, where they have other words here."""
        return dict(PAIR.findall(self.form["words"])) if self.form and self.form["words"] else {}

    @property
    def inverted(self) -> bool:
        """True where true there is false here."""
        return bool(self.form) and self.form["fixed"] == "not"  # type: ignore[index]

    def __str__(self) -> str:
        """The answer in words: `write --num_rollouts: the value times --num_generations`."""
        form = self.form
        if form is None:
            return self.text
        flag = f"write --{form['flag']}"
        if self.inverted:
            return f"{flag} false for true, true for false"
        if form["fixed"]:
            return f"{flag} {form['fixed']}"
        if form["times"]:
            return f"{flag}: the value times --{form['times']}"
        if form["item"]:
            return f"{flag}: its {ORDINALS[int(form['item'])]} number"
        pairs = [
            f"{there} is {'no flag' if here == NO_FLAG else here}"
            for there, here in self.words.items()
            if there != here
        ]
        return f"{flag}: {', '.join(pairs)}" if pairs else flag

    def convert(self, value: Any, flags: Mapping[str, Any]) -> Any:
        """The value of the flag, None for no flag at all. `flags` are those of the command so far.

        Raises ValueError for a value without a meaning here.
        """
        form = self.form
        assert form is not None, "a sentence has no value"
        if self.inverted:
            if not isinstance(value, bool):
                raise ValueError("needed: true or false")
            return not value
        if form["fixed"]:
            return form["fixed"] if value not in (None, False, 0, "") else None
        if form["times"]:
            other = flags.get(form["times"], 1)
            if not all(isinstance(number, int | float) for number in (value, other)):
                raise ValueError(f"needed: a number, times --{form['times']}")
            return value * other
        if form["item"]:
            if not isinstance(value, list | tuple) or len(value) <= int(form["item"]):
                raise ValueError(f"needed: {int(form['item']) + 1} numbers")
            return value[int(form["item"])]
        key = str(value).lower() if isinstance(value, bool) else str(value)
        found = self.words.get(key, value)
        return None if found == NO_FLAG else found


@dataclass(frozen=True)
class Row:
    """One name of a library, or a pattern of names, and its answer in some stages."""

    name: str
    stages: frozenset[str]
    answer: Answer

    def nearness(self, name: str, sections: frozenset[str] = frozenset()) -> tuple[int, int]:
        """How near the row is to a name, and in how many characters; (0, 0): it is another's.

        5 the name itself, 4 a pattern that begins as it does (`critic.optim.*`), 3 its last parts, behind one of the
        library's `sections` if they are one part, 2 a longer name that ends in it, 1 any other pattern.
        """
        if self.name == name:
            return 5, len(name)
        if "*" in self.name:
            literal = len(self.name.replace("*", ""))
            if fnmatchcase(name, self.name):
                return 4 if "." in self.name.partition("*")[0] else 1, literal
            return (1, literal) if fnmatchcase(name, f"*.{self.name}") else (0, 0)
        if name.endswith(f".{self.name}"):
            return (3, len(self.name)) if "." in self.name or name.partition(".")[0] in sections else (0, 0)
        return (2, len(name)) if self.name.endswith(f".{name}") else (0, 0)


@dataclass(frozen=True)
class Table:
    """The rows of a library's names."""

    rows: tuple[Row, ...]

    @cached_property
    def sections(self) -> frozenset[str]:
        """First parts of its dotted names."""
        return frozenset(row.name.partition(".")[0] for row in self.rows if "." in row.name and "*" not in row.name)

    def nearest(self, name: str, stage: str | None = None) -> tuple[tuple[int, int], list[Row]]:
        """(how near, the rows of a stage, or of any, that are nearest to a name).

        Of rows that are as near, those of fewest stages.
        """
        fits = [(row.nearness(name, self.sections), row) for row in self.rows if not stage or stage in row.stages]
        best = max((near for near, _ in fits), default=(0, 0))
        if best == (0, 0):
            return best, []
        chosen = [row for near, row in fits if near == best]
        fewest = min(len(row.stages) for row in chosen)
        return best, [row for row in chosen if not stage or len(row.stages) == fewest]


def read(names: Mapping[str, Mapping[str, str]]) -> Table:
    """A library's NAMES, a row for each name."""
    return Table(
        tuple(
            Row(name, frozenset(stages.split() or STAGES), Answer(text))
            for stages, answers in names.items()
            for together, text in answers.items()
            for name in together.split()
        )
    )

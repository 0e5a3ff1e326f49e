"""Columns of a data set by our names: those that flags name, those left unread, and capitals and blanks in names."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmgym.config import VERDICT, ColumnConfig
from lmgym.data.records import Record
from lmgym.data.verdicts import word_of
from lmgym.data.votes import is_missing
from lmgym.errors import InputError, shown


@dataclass(frozen=True)
class Names:
    """The columns of one data set by our names, as flags name them."""

    given: Mapping[str, str]
    dropped: frozenset[str] = frozenset()
    """names of columns that are not read"""
    first_wins: str | None = None
    """the verdict by which the first reply is the better one"""
    usual: bool = False
    """columns go by their names in small letters, without blanks around them"""

    @classmethod
    def of(cls, columns: ColumnConfig, number: int, sets: int) -> "Names":
        """Those of set `number`. Raises InputError for flags with another number of names than sets."""
        given = {}
        for name, (flag, value) in columns.named.items():
            parts = [part.strip() for part in value.split(",")] if sets > 1 else [value]
            if len(parts) not in (1, sets):
                raise InputError(
                    f"--{flag} {shown(value)} names {len(parts)} columns for {sets} data sets; needed: one for all, or "
                    "one for each, empty where the column has its usual name"
                )
            if part := parts[number] if len(parts) > 1 else parts[0]:
                given[name] = part
        if columns.first_wins is not None and VERDICT not in given:
            raise InputError(
                f"--first_wins {shown(columns.first_wins)} without --verdict_column; needed: the column of the verdicts"
            )
        return cls(given, columns.ignored, columns.first_wins)

    def drops(self, column: str) -> str:
        """The name in `dropped` of a column of the file; empty for one that is read."""
        names = (column, usual_name(column)) if self.usual else (column,)
        return next((name for name in names if name in self.dropped), "")

    def apply(self, record: Record) -> Record:
        """The record with the named columns under our names."""
        if record.fault or not (self.given or self.dropped or self.usual):
            return record
        if self.dropped:
            left = {name: value for name, value in record.fields.items() if not self.drops(name)}
            record = replace(record, fields=left)
        if self.usual:
            record = _usually_named(record)
        found = {name: record.fields[column] for name, column in self.given.items() if column in record.fields}
        if self.first_wins is not None and not is_missing(found.get(VERDICT)):
            found[VERDICT] = word_of(found[VERDICT], self.first_wins)
        columns = {name: self.given[name] for name in found}
        kept = {name: value for name, value in record.fields.items() if name not in columns.values()}
        return replace(record, fields=kept | found, names={**(record.names or {}), **columns})


def usual_name(column: str) -> str:
    """A column's name in small letters, without blanks around it, and with _ for those in it."""
    return "_".join(column.lower().split())


def _usually_named(record: Record) -> Record:
    """The record with its columns under their usual names, unless two of them would have the same."""
    usual = {name: usual_name(name) for name in record.fields if isinstance(name, str)}
    twice = {name for name, count in Counter(usual.values()).items() if count > 1}
    changed = {ours: name for name, ours in usual.items() if ours != name and ours not in twice}
    theirs = {name: ours for ours, name in changed.items()}
    fields = {theirs.get(name, name): value for name, value in record.fields.items()}
    return replace(record, fields=fields, names={**(record.names or {}), **changed})

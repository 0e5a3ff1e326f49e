"""Rows split so that no unit is on both sides: a prompt, a conversation, or the value of a column.

Each turn of a conversation can be a prompt of its own. Split by prompt, a held-out turn may belong to a conversation
whose other turns are trained on; split by first message, as it is unless many rows begin alike, it does not.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

import numpy as np

from lmgym.config import UpTo
from lmgym.data.mixing import DataSet
from lmgym.data.rejections import HELD_OUT, Rejection
from lmgym.data.rows import P, Prompted, prompt_key
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.statistics import FEW
from lmgym.text import Conversation

AUTO, PROMPT, FIRST_MESSAGE = "auto", "prompt", "first_message"
"""values of --split_by; any other is a column"""

FEW_TURNS = 8  # rows that may be one conversation's in a set of any size
WORDS_ONLY = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Sides(Generic[P]):
    """Rows to train on and rows that are held out."""

    train: list[P]
    held_out: list[P]
    rejections: list[Rejection] = field(default_factory=list)
    """training rows whose unit is in a given evaluation set"""
    split_by: str = PROMPT
    units: Mapping[int, int] = field(default_factory=dict)
    """the number of each prompt's unit, by the hash of its key; empty where each prompt is a unit"""
    notes: list[str] = field(default_factory=list)


def split_column(split_by: str) -> str | None:
    """The column that a data set is split by; None if it is split by prompt or first message."""
    return None if split_by in (AUTO, PROMPT, FIRST_MESSAGE) else split_by


def split_rows(
    rows: Sequence[P],
    given: Sequence[P] | None,
    split_by: str,
    sets: Iterable[DataSet],
    eval_size: float,
    seed: int,
    noun: str,
    flag: str,
) -> Sides[P]:
    """Rows of `sets` on two sides; `given` are those of an evaluation set, if there is one, which `flag` would name.

    Raises InputError where a side would be empty, and for a column that no row has.
    """
    both = [*rows, *(given or ())]
    if split_by == AUTO:
        split_by = _most_apart(rows) if given is None else PROMPT
    keys = unit_keys(both, split_by, sets)
    own, others = keys[: len(rows)], keys[len(rows) :]
    notes: list[str] = []
    rejections: list[Rejection] = []
    if given is None:
        size, notes = fitting_eval_size(eval_size, len(rows), noun)
        train, held_out = split_by_unit(rows, size, seed, noun, own, split_by, flag)
        if 0 < len(held_out) < FEW:
            advice = f"set --eval_size {FEW}" if len(rows) > 2 * FEW else f"give --{flag} or more rows"
            notes += [f"warning: {len(held_out)} held-out {noun} are too few for an interval to rely on; {advice}"]
    else:
        (train, rejections), held_out = without_units(rows, own, others, split_by), list(given)
    units: dict[int, int] = {}
    if split_by != PROMPT:
        codes: dict[str, int] = {}
        units = {hash(row.prompt_key): codes.setdefault(key, len(codes)) for row, key in zip(both, keys, strict=True)}
    return Sides(train, held_out, rejections, split_by, units, notes)


def _most_apart(rows: Sequence[Prompted]) -> str:
    """first_message, or prompt where many rows begin alike, as with a greeting: they are no one conversation."""
    most = max(Counter(map(first_message, rows)).values(), default=0)
    return FIRST_MESSAGE if most <= max(len(rows) // 10, FEW_TURNS) and 2 * most <= len(rows) else PROMPT


def unit_keys(rows: Sequence[Prompted], split_by: str, sets: Iterable[DataSet] = ()) -> list[str]:
    """A key of each row's unit. By column, rows of one prompt are in one unit too, whatever the column holds of them.

    Raises InputError if no row has a value in the column.
    """
    if split_by == PROMPT:
        return [row.prompt_key for row in rows]
    if split_by == FIRST_MESSAGE:
        return [first_message(row) for row in rows]
    known: dict[tuple[str, int], str] = {}
    columns: set[str] = set()
    for one in sets:
        known |= one.split_values
        columns |= one.columns
    values = [known.get((row.file, row.line)) for row in rows]
    if not any(value is not None for value in values):
        raise InputError(
            f"--split_by {shown(split_by)}: no row has a value in such a column; needed: prompt, first_message or one "
            f"of {listed(sorted(columns))}"
        )
    return _joined([row.prompt_key for row in rows], values)


def _joined(prompts: Sequence[str], values: Sequence[str | None]) -> list[str]:
    """A key for each row, equal for rows that are connected by equal prompts and equal values."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes: dict[tuple[bool, str], int] = {}
    ends = [
        (nodes.setdefault((True, prompt), len(nodes)), nodes.setdefault((value is None, value or prompt), len(nodes)))
        for prompt, value in zip(prompts, values, strict=True)
    ]
    left, right = np.array(ends).T
    edges = coo_array((np.ones(len(ends)), (left, right)), shape=(len(nodes), len(nodes)))
    of_node = connected_components(edges, directed=False)[1]
    least: dict[int, tuple[bool, str]] = {}
    for node, place in nodes.items():
        component = int(of_node[place])
        least[component] = min(node, least.get(component, node))
    return [least[int(of_node[place])][1] for place in left]


def first_message(row: Prompted) -> str:
    """A row's conversation up to its first question, the same for those that differ in case and white space only.

    Of a conversation of one message it is the prompt's key. Of a question to a judge it is that of what it is about.
    """
    asked = getattr(row, "about", None) or row.conversation
    if not isinstance(asked, Conversation) or len(asked.turns) < 2:
        return row.prompt_key
    first = next((i for i, turn in enumerate(asked.turns) if turn.speaker == "user"), 0)
    return prompt_key(replace(asked, turns=asked.turns[: first + 1]))


def overlap_notes(train: Sequence[Prompted], held_out: Sequence[Prompted], split_by: str, noun: str) -> list[str]:
    """A line on how many held-out rows share their first message with a training row; none without held-out rows.

    Those that differ from one in punctuation alone are counted apart.
    """
    if not held_out:
        return []
    known = {first_message(row) for row in train}
    words = {WORDS_ONLY.sub("", message) for message in known}
    others = [message for row in held_out if (message := first_message(row)) not in known]
    shared, near = len(held_out) - len(others), sum(WORDS_ONLY.sub("", message) in words for message in others)
    unit = {PROMPT: "prompt", FIRST_MESSAGE: "first message"}.get(split_by, f"the column {one_line(split_by, 60)}")
    line = f"split by {unit}: {shared:,} of {len(held_out):,} held-out {noun} share their first message with a "
    line += f"training row{f', and {near:,} but for punctuation' if near else ''}"
    return [f"{line}{'; --split_by first_message keeps them apart' if shared else ''}"]


def fitting_eval_size(eval_size: float, rows: int, noun: str) -> tuple[float, list[str]]:
    """(the share or number of rows to evaluate on, notes).

    It is a tenth of the rows where the setting asks for them all, or for more than a tenth without the user's word.
    """
    fitting = max(1, rows // 10)
    if isinstance(eval_size, UpTo) and eval_size > fitting:
        return fitting, []
    if eval_size < max(1, rows):
        return eval_size, []
    return fitting, [
        f"warning: --eval_size {eval_size:g} is all of the {rows:,} {noun} or more: {fitting:,} are evaluated on, a "
        "tenth; --eval_size sets another number, or a share"
    ]


def split_by_unit(
    rows: Sequence[P],
    eval_size: float,
    seed: int,
    noun: str = "pairs",
    keys: Sequence[str] | None = None,
    split_by: str = PROMPT,
    flag: str = "eval_dataset",
) -> tuple[list[P], list[P]]:
    """(train, eval) with no unit on both sides; `eval_size` is a share below 1 or a number of rows.

    `keys` are the units', by default the prompts'; `flag` would name other rows to evaluate on. Units are sampled by a
    seeded hash, so a row's side does not depend on the order of rows. Raises InputError if either side would be empty.
    """
    if not 0 <= eval_size < math.inf:
        raise InputError(f"--eval_size {eval_size:g}; needed: a share below 1, or a number of {noun}, of {len(rows)}")
    wanted = round(eval_size * len(rows)) if eval_size < 1 else int(eval_size)
    if wanted >= len(rows):
        most = f"a share below 1, or a number below {len(rows)}" if len(rows) > 1 else "more of them, or 0"
        raise InputError(f"--eval_size {eval_size:g} asks for {wanted} of {len(rows)} {noun}; needed: {most}")
    of_rows = (row.prompt_key for row in rows) if keys is None else keys
    hashed = (hashlib.sha256(f"{seed}\0{key}".encode()).digest() for key in of_rows)
    digests = np.frombuffer(b"".join(hashed), dtype=">u8").reshape(-1, 4)
    order = np.lexsort(digests.T[::-1])
    starts = np.concatenate([[True], (digests[order[1:]] != digests[order[:-1]]).any(1)]) if len(order) else order
    unit = np.cumsum(starts) - 1  # its number, in the order of the hashes
    ends = np.append(np.flatnonzero(starts)[1:], len(order))
    units = int(np.searchsorted(ends, wanted)) + 1 if wanted else 0
    if units == len(ends) and wanted:
        name = one_line(split_by, 60)
        raise InputError(
            f"the {len(rows)} {noun} have {len(ends)} {name}(s): no split by {name} leaves both sides any; "
            f"add rows of other {name}s, or evaluate on others by --{flag}"
        )
    held_out = np.zeros(len(rows), dtype=bool)
    held_out[order[unit < units]] = True
    return [p for p, held in zip(rows, held_out, strict=True) if not held], [
        p for p, held in zip(rows, held_out, strict=True) if held
    ]


def without_units(
    rows: Sequence[P], keys: Sequence[str], held_out: Iterable[str], split_by: str = PROMPT
) -> tuple[list[P], list[Rejection]]:
    """(rows whose unit's key is not in `held_out`, rejections of the others)."""
    known = set(held_out)
    in_both = [key in known for key in keys]
    found = "is in the evaluation set too"
    leaks = [
        Rejection(row.file, row.line, split_by, found, HELD_OUT)
        for row, both in zip(rows, in_both, strict=True)
        if both
    ]
    return [row for row, both in zip(rows, in_both, strict=True) if not both], leaks

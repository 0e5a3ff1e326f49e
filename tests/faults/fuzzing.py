"""Damaged data files out of a seed and a number, and what the readers make of them.

Damage is of two sorts. That of a row (an odd value, a broken line) may cost that row and no other. That of the file
(bytes cut off, flipped or swapped, a column renamed) may cost any row, or the file with one clear line.
"""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lmgym.apps.chat.evolution import read_chats
from lmgym.data.pairs import validate
from lmgym.data.prompts import read_prompts
from lmgym.data.records import read_records
from lmgym.data.rejections import Rejection
from ppo.config import RolloutConfig
from reward_models.kwise import validate_groups
from reward_models.logs import read_log
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED
from sft.conversations import validate_chats, validate_distillation_rows

Row = dict[str, Any]


def said(*texts: str) -> list[Row]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


KINDS: dict[str, Callable[[int], Row]] = {
    "pairs": lambda i: {"prompt": f"question {i}", "chosen": f"yes {i}", "rejected": f"no {i}", "margin": 0.5},
    "pairs of messages": lambda i: {
        "chosen": said(f"question {i}", "yes"),
        "rejected": said(f"question {i}", "no"),
    },
    "logs": lambda i: {
        "row_id": i,
        "user_id": f"user {i // 3}",
        "input_text": f"User: question {i}\nBot:",
        "output_text": f"ünswer {i} 😀",
        "accepted": i % 2,
        "remaining_user_messages": i,
    },
    "messages": lambda i: {"messages": said(f"question {i}", "yes", "why?", f"because {i}")},
    "completions": lambda i: {"prompt": f"question {i}", "completion": f"yes {i}"},
    "outputs": lambda i: {"input_text": f"User: question {i}\nBot:", "output_text": f"yes {i}"},
    "transcripts": lambda i: {"text": f"User: question {i}\nBot: yes {i}"},
    "chats": lambda i: {"conversation": said(f"question {i}", "yes", "why?", f"because {i}")},
    "taught": lambda i: {"prompt": f"User: question {i}\nBot:", "tokens": [i, 2], "logprobs": [-0.5, -1.0]},
    "groups": lambda i: {"prompt": f"question {i}", "replies": ["a", f"b {i}", "c"], "ranks": [1, 2, 2]},
    "prompts": lambda i: {"prompt": f"question {i}", "answer": f"yes {i}"},
    "alpaca": lambda i: {"instruction": f"question {i}", "input": "x" * (i % 2), "output": f"yes {i}"},
    "sharegpt": lambda i: {
        "conversations": [{"from": "human", "value": f"question {i}"}, {"from": "gpt", "value": f"yes {i}"}],
        "system": "Be brief.",
    },
    "ultrafeedback": lambda i: {
        "instruction": f"question {i}",
        "completions": [{"response": f"yes {i}", "overall_score": 9.0}, {"response": f"no {i}", "overall_score": 2.5}],
    },
    "tools": lambda i: {
        "messages": [
            *said(f"question {i}"),
            {"role": "assistant", "content": None, "tool_calls": [{"name": "find", "arguments": {"word": f"{i}"}}]},
            {"role": "tool", "content": f"found {i}"},
            {"role": "assistant", "content": f"yes {i}"},
        ],
        "tools": [{"type": "function", "function": {"name": "find"}}],
    },
}
OF_LISTS = ("messages", "pairs of messages", "chats", "taught", "sharegpt", "ultrafeedback", "tools")
"""kinds that a CSV does not hold: their lists would be text"""
FORMATS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class DataFile:
    """A file and what was done to it. `rows` and `untouched`, those left as they were, are None where not known."""

    path: Path
    kind: str
    damage: tuple[str, ...]
    rows: int | None
    untouched: int | None


@dataclass(frozen=True)
class Reading:
    """The result of reading a file."""

    usable: int
    rejections: Sequence[Rejection]
    read: int


def read(file: DataFile) -> Reading:
    """By the reader of the file's kind. Raises InputError as that does."""
    path = str(file.path)
    if file.kind == "logs":
        log = read_log(path, "train", ACCEPTED_AND_CONTINUED)
        return Reading(len(log.usable), log.rejections, log.read)
    if file.kind == "prompts":
        prompts = read_prompts(RolloutConfig(path, eval_size=1), 0)
        return Reading(len(prompts.train) + len(prompts.evaluation), prompts.rejections, prompts.rows)
    validators = {"groups": validate_groups, "taught": validate_distillation_rows}
    validators |= dict.fromkeys(("pairs", "pairs of messages", "ultrafeedback"), validate)
    records = read_records(path)
    if file.kind == "chats":
        chats, rejections = read_chats(path)
        return Reading(len(chats), rejections, len(records))
    rows, rejections = validators.get(file.kind, validate_chats)(records)
    for row in rows:
        json.dumps([row.prompt_key, *row.answers], ensure_ascii=False).encode()  # as samples and fingerprints are
    return Reading(len(rows), rejections, len(records))


def make_file(folder: Path, seed: int, number: int) -> DataFile:
    """The file of a number: kinds and formats take turns, the damage is drawn."""
    rng = random.Random(f"{seed} {number}")
    kind, suffix = list(KINDS)[number % len(KINDS)], FORMATS[number // len(KINDS) % len(FORMATS)]
    rows = [KINDS[kind](i) for i in range(rng.randint(4, 12))]
    damage: list[str] = []
    touched: set[int] = set()
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        place = rng.randrange(len(rows) - 2)  # two rows are never touched: prompts are split in two
        touched.add(place)
        damage.append(damage_row(rng, rows, place))
    path = folder / f"{number}{suffix}"
    lines, costly = write(rng, rows, path, damage)
    untouched = None if costly or (kind in OF_LISTS and suffix == ".csv") else len(rows) - len(touched)
    if rng.random() < 0.3:
        damage.append(damage_bytes(rng, path))
        lines = untouched = None
    return DataFile(path, kind, tuple(damage), lines, untouched)


def nested(depth: int) -> Any:
    """Lists within lists."""
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "null": lambda: None,
    "empty text": lambda: "",
    "white space": lambda: " \n\t",
    "an empty list": list,
    "an empty object": dict,
    "a number": lambda: 7,
    "a negative number": lambda: -3,
    "a fraction": lambda: 0.37,
    "an infinity": lambda: float("inf"),
    "not a number": lambda: float("nan"),
    "an integer of 400 digits": lambda: 10**400,
    "a large float": lambda: 1e300,
    "a boolean": lambda: True,
    "a list of lists": lambda: nested(90),
    "deep lists": lambda: nested(400),
    "a lone surrogate": lambda: "a\ud800b",
    "control characters": lambda: "\x1b[31m\x9b\x07\x00\u202e\ufeff",
    "long text": lambda: "x" * 300_000,
    "long text of controls": lambda: "\x1b" * 50_000,
    "an object with a long key": lambda: {"k" * 20_000: 1},
    "a list of objects": lambda: [{"a": 1}] * 3,
    "only a system message": lambda: [{"role": "system", "content": "x"}],
    "an unknown role": lambda: [{"role": "tool\x1b" * 999, "content": "x"}],
    "a tool call": lambda: [{"role": "assistant", "content": None, "tool_calls": [{"id": "x" * 999}]}],
    "content in parts": lambda: [{"role": "user", "content": [{"type": "image"}]}],
    "a message that is none": lambda: ["x", None],
    "an empty message": lambda: [{}],
    "a list of ranks": lambda: [0, -1, "1", 10**30],
    "JSON as text": lambda: "[{" * 2000,
}  # fmt: skip


def damage_row(rng: random.Random, rows: list[Row], place: int) -> str:
    """Changes one row in place; what was done, in words."""
    row = rows[place]
    what = rng.choice(("value", "value", "value", "value", "missing", "surplus", "within", "copy"))
    name = rng.choice(list(row)) if row else "x"
    if what == "missing":
        row.pop(name, None)
    elif what == "copy":
        rows[place] = dict(rows[(place + 1) % len(rows)])
        return f"row {place} is the next one's copy"
    else:
        value = rng.choice(list(VALUES))
        if what == "surplus":
            name = rng.choice(("other", "\x1b[31m", "n" * 5000, "\udcff"))
        if what == "within" and isinstance(row.get(name), list) and row[name]:
            row[name] = [*row[name][:-1], VALUES[value]()]
        else:
            row[name] = VALUES[value]()
        what = f"{what}, {value}"
    return f"row {place}, {name[:10]!r}: {what}"


BROKEN_LINES: dict[str, bytes] = {
    "no JSON": b"{'prompt': 'x'}",
    "half a line": b'{"prompt": "x", "chosen',
    "deep brackets": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "a list": b"[1, 2]",
    "a number": b"1e999",
    "5,000 digits": b'{"prompt": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "a key twice": b'{"prompt": "x", "prompt": "y"}',
    "NUL": b"\0\0\0",
}


def write(rng: random.Random, rows: list[Row], path: Path, damage: list[str]) -> tuple[int | None, bool]:
    """Writes the rows, with broken lines between them; (how many rows the file has, whether damage may cost others)."""
    if path.suffix == ".parquet":
        return len(rows), write_parquet(rows, path)
    if path.suffix == ".csv":
        return write_csv(rng, rows, path, damage)
    lines = [json.dumps(row).encode() for row in rows]
    closed = {name: line for name, line in BROKEN_LINES.items() if path.suffix != ".json" or name in CLOSED}
    for _ in range(rng.choice((0, 0, 1, 2))):
        name = rng.choice(list(closed))
        damage.append(f"a line: {name}")
        lines.insert(rng.randint(1, len(lines)), closed[name])
    if path.suffix == ".json":
        path.write_bytes(b"[" + b",\n".join(lines) + b"]")
    else:
        text = rng.choice((b"\n", b"\r\n", b"\n\n")).join(lines) + b"\n"
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else rng.choice((b"", b"\xef\xbb\xbf")) + text)
    return len(lines), False


CLOSED = ("no JSON", "a list", "a number", "5,000 digits", "not UTF-8", "a key twice", "NUL")
"""those after which the items of a list go on"""


def as_cell(value: Any) -> str:
    """A value as a CSV's text; lists and objects as JSON."""
    if value is None:
        return ""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except ValueError:  # too many digits
        return "9" * 400


def write_csv(rng: random.Random, rows: list[Row], path: Path, damage: list[str]) -> tuple[int | None, bool]:
    """With quotes around each cell; broken lines are complete, but for a quote that is never closed."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    quoted = [[as_cell(row.get(name)).replace('"', '""') for name in names] for row in rows]
    lines = [",".join(f'"{cell}"' for cell in cells) for cells in [names, *quoted]]
    number: int | None = len(rows)
    for _ in range(rng.choice((0, 0, 1, 2))):
        name = rng.choice(("too many cells", "a broken quote", "few cells", "an open quote"))
        damage.append(f"a line: {name}")
        broken = {"too many cells": "a," * 99, "a broken quote": '"a"b', "few cells": "a", "an open quote": '"a'}[name]
        lines.insert(rng.randint(1, len(lines)), broken)
        number = None if number is None or name == "an open quote" else number + 1
    odd_name = "\udcff" in lines[0]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return number, odd_name or number is None


def write_parquet(rows: list[Row], path: Path) -> bool:
    """Each column of one type: one that mixes them is JSON as text. Whether that, or a type, may cost other rows."""
    columns, costly = {}, False
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
            if "struct<>" in str(columns[name].type):
                raise TypeError("which Parquet does not hold")
            costly |= str(columns[name].type).count("list<") > 80  # Parquet's readers take 100 levels
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            costly |= any(isinstance(value, list | dict) for value in values)
            cells = [None if value is None else as_cell(value).encode("utf-8", "surrogatepass") for value in values]
            columns[name] = pa.array(cells, pa.binary()).view(pa.string())
    names = [name.encode("utf-8", "replace").decode() for name in columns]
    pq.write_table(pa.table(list(columns.values()), names=names), path)
    return costly


def damage_bytes(rng: random.Random, path: Path) -> str:
    """Changes the file's bytes; what was done, in words."""
    data = bytearray(path.read_bytes())
    what = rng.choice(("cut", "flipped", "nothing left", "noise", "UTF-16", "a column renamed", "twice"))
    if what == "cut":
        del data[rng.randrange(len(data)) :]
    elif what == "flipped":
        for _ in range(rng.randint(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif what == "nothing left":
        data.clear()
    elif what == "noise":
        data = bytearray(rng.randbytes(200))
    elif what == "UTF-16":
        data = bytearray(data.decode("latin-1").encode("utf-16"))
    elif what == "a column renamed":
        for name in (b"prompt", b"chosen", b"text", b"messages", b"instruction", b"conversations"):
            data = data.replace(name, name[::-1])
    else:
        data = data * 2
    path.write_bytes(bytes(data))
    return f"bytes: {what}"

"""Damage to the files of a folder, drawn by a random generator: within JSON, tables and weights, or to their bytes."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzzing import BROKEN_LINES, VALUES, damage_bytes

RAW = {
    "NaN": "NaN",
    "-Infinity": "-Infinity",
    "a number over the range": "1e999",
    "5,000 digits": "9" * 5000,
    "900 levels of lists": "[" * 900 + "]" * 900,
    "900 levels of objects": '{"a":' * 900 + "1" + "}" * 900,
    "100,000 levels": "[" * 100_000 + "]" * 100_000,
    "a key twice": '{"text": "x", "text": "y"}',
    "no JSON": "{'a': 1}",
}
"""what Python's own JSON does not write"""
TEMPLATES = {
    "empty": "",
    "division by zero": "{{ 1/0 }}",
    "open": "{% for m in messages %}{{ m",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a long range": "{% for i in range(100000000) %}x{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "raises": "{{ raise_exception('" + "no\\x1b" * 900 + "') }}",
    "an unknown filter": "{{ messages | frobnicate }}",
    "an attribute of nothing": "{{ messages[99]['content'].x.y }}",
    "a product": "{{ 'x' * 9999999999 }}",
    "names": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "without content": "{% for m in messages %}{{ m.role }}{% endfor %}",
}
PAIRED = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + m['content'] }}{% endfor %}"
RENAMED = (lambda name: name[::-1], lambda name: name.upper(), lambda name: f"{name}s", lambda name: name * 400)


def damage_file(rng: random.Random, path: Path, others: list[Path]) -> str:
    """Changes one file, which may be exchanged with one of the others; what was done, in words."""
    name = path.name
    if rng.random() < 0.25:
        return f"{name}: {damage_whole(rng, path, others)}"
    if path.suffix in (".json", ".jsonl"):
        return f"{name}: {(damage_json if path.suffix == '.json' else damage_lines)(rng, path)}"
    if path.suffix == ".safetensors":
        return f"{name}: {damage_weights(rng, path)}"
    if path.suffix == ".parquet":
        return f"{name}: {damage_table(rng, path)}"
    if path.suffix == ".jinja":
        what = rng.choice(list(TEMPLATES))
        path.write_text(TEMPLATES[what])
        return f"{name}: {what}"
    return f"{name}: {damage_bytes(rng, path)}"


def damage_whole(rng: random.Random, path: Path, others: list[Path]) -> str:
    """Its bytes, or the file as such."""
    what = rng.choice(
        ("bytes", "bytes", "bytes", "bytes", "missing", "a folder", "exchanged", "a broken link", "a pipe")
    )
    if what == "bytes":
        return damage_bytes(rng, path) if path.stat().st_size else "an empty file"
    if what == "exchanged" and others:
        other = rng.choice(others)
        shutil.copyfile(other, path)
        return f"the content of {other.name}"
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "a broken link":
        path.symlink_to("/nowhere")
    elif what == "a pipe":
        os.mkfifo(path)
    return what


def damage_json(rng: random.Random, path: Path) -> str:
    """A value, a key or an item, at any depth."""
    text, what = damaged_json(rng, json.loads(path.read_text(encoding="utf-8")))
    path.write_text(text, encoding="utf-8")
    return what


def damage_lines(rng: random.Random, path: Path) -> str:
    """A value of one line, or a line as a whole."""
    lines = path.read_text(encoding="utf-8").splitlines()
    place = rng.randrange(len(lines))
    what = rng.choice(("within", "within", "within", "within", "broken", "copy", "order"))
    if what == "within":
        lines[place], what = damaged_json(rng, json.loads(lines[place]))
    elif what == "broken":
        what = rng.choice(list(BROKEN_LINES))
        lines.insert(place, BROKEN_LINES[what].decode("utf-8", "surrogateescape"))
    elif what == "copy":
        lines.insert(place, lines[place])
    else:
        rng.shuffle(lines)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return f"line {place + 1}: {what}"


def damaged_json(rng: random.Random, value: Any) -> tuple[str, str]:
    """(the text of a JSON value with a change somewhere in it, the change in words)."""
    holder, key, place = _descend(rng, [value])
    what = rng.choice(("value", "value", "value", "value", "type", "key", "item", "wrapped", "raw"))
    raw = ""
    if what in ("key", "item") and isinstance(holder, dict):
        if what == "key":
            holder[rng.choice(RENAMED)(key)] = holder.pop(key)
            what = "a key renamed"
        else:
            del holder[key]
            what = "a key missing"
    elif what == "item" and isinstance(holder, list) and len(holder) > 1:
        del holder[key]
        what = "an item missing"
    elif what == "type":
        holder[key] = _retyped(holder[key])
    elif what == "wrapped":
        holder[key] = [holder[key]]
    elif what == "raw":
        what = rng.choice(list(RAW))
        raw, holder[key] = RAW[what], "\x01RAW\x01"
    else:
        what = rng.choice(list(VALUES))
        holder[key] = VALUES[what]()
        if what == "an integer of 400 digits" and rng.random() < 0.5:
            what, holder[key] = "an integer of 20 digits", 10**20
    root = holder[0] if not place else value
    return json.dumps(root).replace('"\\u0001RAW\\u0001"', raw), f"{'.'.join(map(str, place))[:60] or 'all'}: {what}"


def _descend(rng: random.Random, holder: Any) -> tuple[Any, Any, list[Any]]:
    """(what holds a value, its key or index, its path): each step goes on with .8, so that large lists weigh little."""
    key: Any = 0
    place: list[Any] = []
    while isinstance(inner := holder[key], dict | list) and inner and rng.random() < (0.97 if not place else 0.8):
        holder, key = inner, rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
        place.append(key)
    return holder, key, place


def _retyped(value: Any) -> Any:
    """A value of another type that looks alike."""
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, str):
        return list(value[:9])
    if isinstance(value, list):
        return {str(i): item for i, item in enumerate(value)}
    return list(value) if isinstance(value, dict) else 0


def damage_weights(rng: random.Random, path: Path) -> str:
    """The header of a safetensors file, or its numbers."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3:
        number = rng.choice((b"\xff\xff\xff\x7f", b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"))  # large, nan, inf
        at = 8 + size + 4 * rng.randrange((len(data) - 8 - size) // 4)
        path.write_bytes(data[:at] + number + data[at + 4 :])
        return "a weight that is large, nan or inf"
    text, what = damaged_json(rng, json.loads(data[8 : 8 + size]))
    header = text.encode("utf-8", "surrogatepass")
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    return f"header, {what}"


def damage_table(rng: random.Random, path: Path) -> str:
    """A column of a Parquet file."""
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    place = table.column_names.index(name)
    what = rng.choice(("missing", "renamed", "as text", "all null", "one null", "no rows", "one row", "odd numbers"))
    cells = table[name].to_pylist()
    if what == "missing":
        table = table.drop_columns([name])
    elif what == "renamed":
        table = table.rename_columns([rng.choice(RENAMED)(one) if one == name else one for one in table.column_names])
    elif what in ("no rows", "one row"):
        table = table.slice(0, int(what == "one row"))
    else:
        odd = {
            "as text": lambda: pa.array([str(cell) for cell in cells]),
            "all null": lambda: pa.nulls(len(cells)),
            "one null": lambda: pa.array([None, *cells[1:]], table[name].type),
            "odd numbers": lambda: pa.array([(float("nan"), float("inf"), -1e300)[i % 3] for i in range(len(cells))]),
        }
        table = table.set_column(place, name, odd[what]())
    pq.write_table(table, path)
    return f"column {name}, {what}"

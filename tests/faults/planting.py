"""Code, a server's address and pickles in every field of the files that commands read, and whether anything uses them.

The fields are those of files as the library writes them, and the names that a reader asks for and does not find. All of
a file are planted at once; where the command then refuses the file, parts of them are tried, down to each alone.
"""

import contextlib
import json
import os
import pickle
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from forked import Ended

KEY = "sk-of-the-environment-0123456789"
KEYS = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY", "OPENAI_COMPATIBLE_API_KEY", "HF_TOKEN", "WANDB_API_KEY",
    "LMGYM_TOKEN",
)  # fmt: skip
DOCUMENTS = (".json", ".jsonl", ".yaml")
MOST = {dict: 60, list: 4}  # longer ones are tables, such as a vocabulary: the first of their items is planted
FEW = 6  # fields are tried one by one
Keys = tuple[str | int, ...]
Words = Sequence[str]


def run_here(words: Words, folder: Path, said: str = "") -> Ended:
    """Runs a command of lmgym or playpen in a folder, in this process; `said` are lines for it to read."""
    from lmgym.apps.playpen.commands import playpen
    from lmgym.cli.main import main

    began = time.monotonic()
    with contextlib.chdir(folder):
        result = CliRunner().invoke(main if words[0] == "lmgym" else playpen, [*words[1:]], input=said)
    failed = result.exception if not isinstance(result.exception, SystemExit) else None
    trace = "".join(traceback.format_exception(failed)) if failed else ""
    return Ended(result.exit_code, time.monotonic() - began, 0.0, result.stdout, result.stderr + trace)


@dataclass(frozen=True)
class Place:
    """A field of a file: its file, the number of its document there, and the keys that lead to it."""

    file: Path
    document: int
    keys: Keys

    def __str__(self) -> str:
        return f"{self.file}:{self.document + 1}:{'.'.join(map(str, self.keys))}"


@dataclass
class Trap:
    """The values to plant, and whether they were used: code leaves a file, and a server records what it is asked."""

    folder: Path
    url: str
    asked: list[str] = field(default_factory=list)

    @property
    def marker(self) -> Path:
        return self.folder / "imported"

    @property
    def values(self) -> Mapping[str, Any]:
        """The values of a field, by their kinds."""
        code = self.folder / "planted_code.py"
        return {
            "a file's function": f"{code}:score",
            "a class": "planted_code.Planted",
            "the hub's map of classes": dict.fromkeys(AUTO, "planted_code.Planted"),
            "an address": self.url,
            "a served model": f"openai:{self.url}#m",
            "a judge": f"judge:vllm:{self.url}",
        }

    def used(self) -> list[str]:
        """All that was imported or asked since the last call, in words."""
        found = [*self.asked, *(["code was imported"] if self.marker.exists() else [])]
        self.asked.clear()
        self.marker.unlink(missing_ok=True)
        return found


AUTO = ("AutoConfig", "AutoTokenizer", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification")


@contextlib.contextmanager
def set_trap(folder: Path) -> Iterator[Trap]:
    """A trap whose code lies in a folder, and whose server runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "planted_code.py").write_text(
        f"open({str(folder / 'imported')!r}, 'w').close()\nclass Planted:\n    pass\ndef score(*given, **more):\n"
        "    return [0.0] * len(next(iter(given or more.values())))\n"
    )
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = f"{self.path} {self.headers}"
            asked.append(f"the server was {'given a key' if KEY in sent else 'asked'}: {self.command} {self.path}")
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_HEAD = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Trap(folder, f"http://127.0.0.1:{server.server_port}/v1", asked)
    finally:
        server.shutdown()
        server.server_close()


def documents(file: Path) -> list[Any]:
    """The values in a file: of JSONL one a line, of the others one."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)]


def write_documents(file: Path, values: Sequence[Any]) -> None:
    """The reverse of `documents`; YAML is written as JSON, which it contains."""
    file.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")


def items(value: Any) -> list[tuple[str | int, Any]]:
    """The items of an object or list by their keys: of a table the first."""
    found: list[Any] = list(value.items() if isinstance(value, dict) else enumerate(value))
    return found[: 1 if len(found) > MOST[type(value)] else None]


def leaves(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """The places of all values that are no objects and lists, and of those that are empty."""
    if isinstance(value, dict | list) and value:
        for key, inner in items(value):
            yield from leaves(inner, (*keys, key))
    else:
        yield keys


def absent(value: Any, names: Sequence[str], keys: Keys = ()) -> Iterator[Keys]:
    """The places of names that an object and those inside it do not have."""
    if isinstance(value, dict) and len(value) <= MOST[dict]:
        yield from ((*keys, name) for name in names if name not in value)
    if isinstance(value, dict | list):
        for key, inner in items(value):
            yield from absent(inner, names, (*keys, key))


class Asked(dict):
    """An object of a file that notes, in `Asked.note`, names that a reader asks it for and that it does not have."""

    note: Path

    def _absent(self, name: object) -> None:
        if isinstance(name, str) and not super().__contains__(name):
            with self.note.open("a") as file:
                file.write(f"{name}\n")

    def __contains__(self, name: object) -> bool:
        self._absent(name)
        return super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        self._absent(name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._absent(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._absent(name)
        return super().pop(name, *default)


def as_asked(value: Any) -> Any:
    """The value with objects that note what they are asked for."""
    if isinstance(value, dict):
        return Asked({name: as_asked(inner) for name, inner in value.items()})
    return [as_asked(inner) for inner in value] if isinstance(value, list) else value


@contextlib.contextmanager
def noting(note: Path, texts: Collection[str]) -> Iterator[None]:
    """JSON and YAML of these texts, once read, note what they are asked for, in this process and in its forks."""
    Asked.note = note
    note.touch()
    loads, safe_load = json.loads, yaml.safe_load

    def noted(read: Callable[..., Any], text: Any, more: Mapping[str, Any]) -> Any:
        return as_asked(read(text, **more)) if text in texts else read(text, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", lambda text, **more: noted(loads, text, more))
        patch.setattr(json, "load", lambda file, **more: noted(loads, file.read(), more))
        patch.setattr(yaml, "safe_load", lambda text: noted(safe_load, text, {}))
        yield


def places(folder: Path, pattern: str, names: Sequence[str] = ()) -> list[list[Place]]:
    """The fields of the files of a pattern, and those that could be added: of each file, and of rows of each form."""
    found: list[list[Place]] = []
    for file in sorted(path for path in folder.glob(pattern) if path.is_file() and path.suffix in DOCUMENTS):
        relative, forms = file.relative_to(folder), set()
        for number, value in enumerate(documents(file)):
            form = tuple(sorted(value)) if isinstance(value, dict) else ()
            if form in forms:
                continue
            forms.add(form)
            found.append([Place(relative, number, keys) for keys in leaves(value)])
            if file.name != "tokenizer.json":  # which a library without Python reads
                found.append([Place(relative, number, keys) for keys in absent(value, names)])
    return [some for some in found if some]


def plant(folder: Path, chosen: Sequence[Place], value: Any) -> None:
    """Puts a value into fields of files in a folder."""
    for file in {place.file for place in chosen}:
        values = documents(folder / file)
        for place in (place for place in chosen if place.file == file):
            holder: Any = values
            *way, last = (place.document, *place.keys)
            for key in way:
                holder = holder[key]
            holder[last] = value
        write_documents(folder / file, values)


class Planter:
    """Runs commands on copies of a folder, and keeps what they used of what was planted."""

    def __init__(self, trap: Trap, root: Path, start: Callable[[Words, Path], Ended]) -> None:
        self.trap, self.root, self.start, self.numbers = trap, root, start, count()
        self.runs = 0
        self.faults: list[str] = []

    def run(self, base: Path, words: Words, change: Callable[[Path], None], what: str) -> Ended:
        """The end of a command on a changed copy of a folder; faults are added to `faults`."""
        folder = self.root / str(next(self.numbers))
        shutil.copytree(base, folder)
        change(folder)
        self.trap.used()
        ended = self.start([word.replace("{base}", str(base.parent)) for word in words], folder)
        self.runs += 1
        found = self.trap.used()
        if "Traceback (most recent call last)" in ended.err:
            found.append(f"a traceback: {ended.err.strip().splitlines()[-1][:200]}")
        if ended.hung:
            found.append("hangs")
        self.faults += [f"{' '.join(words)} with {what}: {fault}" for fault in found]
        shutil.rmtree(folder)
        return ended

    def try_fields(self, base: Path, words: Words, chosen: Sequence[Place], kind: str) -> None:
        """Plants in all of the fields; in parts of them too, unless the command has come to its end."""
        named = f"{kind} in {chosen[0]}" + (f" and {len(chosen) - 1} more" if len(chosen) > 1 else "")
        value, before = self.trap.values[kind], len(self.faults)
        ended = self.run(base, words, lambda folder: plant(folder, chosen, value), named)
        if len(chosen) > 1 and (ended.code or len(self.faults) > before):
            size = 1 if len(chosen) <= FEW else len(chosen) // 2
            for first in range(0, len(chosen), size):
                self.try_fields(base, words, chosen[first : first + size], kind)

    def try_files(self, base: Path, words: Words, pattern: str, kinds: Words = ()) -> None:
        """Plants each kind of value, or those that are named, in all fields of the files of a pattern."""
        note, texts = self.root / f"asked-{next(self.numbers)}", set[str]()
        for file in (file for file in base.glob(pattern) if file.suffix in DOCUMENTS):
            text = file.read_text(encoding="utf-8")
            texts |= {text, *(text.splitlines() if file.suffix == ".jsonl" else ())}
        with noting(note, texts):
            self.run(base, words, lambda folder: None, "nothing")
        names = sorted(set(note.read_text().split()) | {"auto_map"})
        for kind in kinds or self.trap.values:
            for some in places(base, pattern, names):
                self.try_fields(base, words, some, kind)

    def try_pickles(self, base: Path, words: Words) -> None:
        """A pickle in place of each file that holds no text, and beside them by the names that libraries look for."""
        others = [path for path in base.rglob("*") if path.is_file() and path.suffix not in (*DOCUMENTS, ".md", ".txt")]
        beside = {path.parent / name for path in base.rglob("*.json") for name in PICKLED}
        canary = pickle.dumps(_Canary(self.trap.marker))
        for path in [*others, *sorted(beside)]:
            name = path.relative_to(base)
            self.run(base, words, partial(_write, name, canary), f"a pickle as {name}")


def _write(name: Path, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)


PICKLED = ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt", "value_head.bin")


class _Canary:
    """A pickle that makes the marker when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self.marker),)

"""Pushes of trained models to the Hugging Face hub: the files that are pushed, and the push.

Design decisions:
- `main` has what the run's folder says to use, the best model or the last; where the best is kept, the last is on the
  branch `last`. So from_pretrained(OWNER/NAME) gives the model that the card's figures are of.
- Only files of a model are pushed, by name: weights, configs, tokenizer, card, scorecard. Paths of this machine in
  cards and configs become names. Folders inside, such as a critic, stay here, and so does the state of training.
- A push first looks at what is there, and sends one commit of what is missing, on top of the commit that it saw. So a
  second push continues the first, and a commit whose answer was lost is not made twice.
"""

import fnmatch
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.errors import InputError, regular, shown, shown_path
from lmgym.masking import mask_keys
from lmgym.runs.files import read_object, write_json
from lmgym.runs.hub import call, describe
from lmgym.runs.layout import trained_in
from lmgym.runs.locks import is_free
from lmgym.runs.record import timestamp
from lmgym.shell import command

MAIN, LAST = "main", "last"
"""branches of the hub; `last/` is a run's folder too"""
ADAPTER = "adapter_config.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
SETTINGS = ("config.json", "generation_config.json", ADAPTER, "scorer.json", "tokenizer_config.json", "scorecard*.json")
"""JSON in which a path of this machine may stand"""
TEXTS = ("README.md", "scorecard*.md", "LICENSE*")
OTHERS = (
    *("tokenizer.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "preprocessor_config.json"),
)
USED = "path/to/this/folder"
"""in the snippets of a card"""
PATH = re.compile(r"(?<![\w:/.~-])~?/(?:[^\s`'\"(),=|<>#/]+/)+[^\s`'\"(),=|<>#/]*")
"""an absolute path in a text"""

Files = dict[str, bytes | Path]
"""the content of each file of a repository, or where it is"""


@dataclass(frozen=True)
class Pushed:
    """The state of the hub after a push."""

    repository: str
    revision: str
    commit: str
    url: str
    sent: int
    """number of files; 0: all were there already"""
    folder: str
    """of the run: model, adapter or last"""

    def __str__(self) -> str:
        what = f"{self.sent} file{'s' * (self.sent != 1)}" if self.sent else "nothing was missing"
        return f"pushed {self.folder}/ to {self.url} ({self.revision}, commit {self.commit[:10]}: {what})"


def read_files(folder: Path, repository: str, base: str | None = None, private: Iterable[str] = ()) -> Files:
    """The files of a model's folder as they are pushed. `base` is the hub id of the model below an adapter.

    `private` are paths that texts of the folder may name. Raises InputError for a folder without weights, and for an
    adapter whose base is a folder of this machine, where no hub id is given for it.
    """
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{shown_path(folder)} holds no model; needed: the folder of a run that has trained, or of a model with "
            "its weights as safetensors"
        )
    below = str(read_object(folder / ADAPTER).get("base_model_name_or_path") or "")
    own_code = ("*.py",) if "auto_map" in read_object(folder / "config.json") else ()
    of_run = folder.parent.glob("scorecard*") if (folder.parent / "run.json").is_file() else ()
    files: Files = {}
    for path in sorted(path for path in (*of_run, *folder.iterdir()) if path.is_file()):
        if _fits(path.name, WEIGHTS):
            files[path.name] = path
        elif _fits(path.name, SETTINGS):
            files[path.name] = _cleaned_settings(path, folder, base)
        elif _fits(path.name, TEXTS):
            text = regular(path).read_text(encoding="utf-8")
            text = clean_text(text.replace(below, base) if below and base else text, private)
            files[path.name] = _card(text, repository, base).encode()
        elif _fits(path.name, (*OTHERS, *own_code)):
            files[path.name] = path.read_bytes()
    return files


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _cleaned_settings(path: Path, folder: Path, base: str | None) -> bytes:
    """A JSON file without paths of this machine; its bytes as they are, if it has none."""
    settings = read_object(path)
    cleaned = _without_paths(settings)
    if path.name == ADAPTER:
        named = str(base or settings.get("base_model_name_or_path"))
        if os.path.exists(os.path.expanduser(named)) or os.path.isabs(named):
            merge = command("lmgym", "merge", folder)
            raise InputError(
                f"the adapter {shown_path(folder)} is of {shown_path(named)}, a folder that others do not have; "
                f"needed: --base OWNER/NAME, that model on the hub, or merged weights: {merge}"
            )
        cleaned["base_model_name_or_path"] = named
    if cleaned == settings:
        return path.read_bytes()
    return (mask_keys(json.dumps(cleaned, indent=2, ensure_ascii=False)) + "\n").encode()


def _without_paths(value: Any) -> Any:
    """A JSON value whose strings that are absolute paths are names."""
    if isinstance(value, dict):
        return {name: _without_paths(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return _name_of(value) if isinstance(value, str) and PATH.fullmatch(value) else value


def clean_text(text: str, private: Iterable[str] = ()) -> str:
    """A text whose absolute paths, and those in `private`, are names: of outputs/short/model it is short/model."""
    for path in sorted(private, key=len, reverse=True):
        text = text.replace(path, _name_of(path))
    return mask_keys(PATH.sub(lambda match: _name_of(match[0]), text))


def _name_of(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    return "/".join(parts[-2:] if parts[-1] in ("model", "adapter", LAST, "checkpoints") else parts[-1:])


def _card(text: str, repository: str, base: str | None) -> str:
    """A card whose snippets name the repository, with the model below an adapter in its header."""
    text = text.replace(USED, repository)
    header = text.startswith("---\n") and "\nbase_model:" not in text.partition("\n---\n")[0]
    return text.replace("\ntags:\n", f"\nbase_model: {base}\ntags:\n", 1) if base and header else text


def private_paths(record: Mapping[str, Any]) -> list[str]:
    """Absolute paths in the settings of a run's record, and the folders that it ran in."""
    settings = record.get("config")
    values = [value for value in (settings.values() if isinstance(settings, Mapping) else ()) if isinstance(value, str)]
    items = [item.rpartition("=")[2].strip() for value in values for item in value.split(",")]
    return [path for path in {*items, str(record.get("cwd", ""))} if os.path.isabs(path) and path.count("/") > 1]


def create(hub: Any, repository: str, private: bool, revision: str = MAIN) -> None:
    """Makes the repository and the branch where they are not there. Raises InputError for a public one that should be
    private.
    """
    making = f"creating {repository}"
    call(lambda: hub.create_repo(repository, private=private or None, exist_ok=True), making, repository)
    if private and not call(lambda: hub.repo_info(repository), making, repository).private:
        raise InputError(f"{repository} is there already, and public; needed: another name, or no --private")
    if revision != MAIN:
        branching = f"creating the branch {revision} of {repository}"
        call(lambda: hub.create_branch(repository, branch=revision, exist_ok=True), branching, repository)


def push_files(hub: Any, files: Files, repository: str, revision: str, message: str) -> tuple[str, int]:
    """Makes a branch hold these files of a model; (the branch's newest commit, the number of files that were sent).

    Files that are there with the same content are not sent again; files of another model are removed, such as shards
    that this one does not have. All else in the repository stays.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    sent = 0

    def attempt() -> str:
        nonlocal sent
        head = str(hub.repo_info(repository, revision=revision).sha)  # first: the commit below refuses a later one
        there = {one.path: one for one in hub.list_repo_tree(repository, revision=revision) if hasattr(one, "blob_id")}
        missing = {name: content for name, content in files.items() if not _is_there(content, there.get(name))}
        stale = [name for name in there if name not in files and _fits(name, (*WEIGHTS, *SETTINGS, *OTHERS))]
        if not missing and not stale:
            return head
        adding = [CommitOperationAdd(name, content) for name, content in missing.items()]
        removing = [CommitOperationDelete(name) for name in stale]
        sent = len(adding) or sent
        done = hub.create_commit(
            repository, [*adding, *removing], commit_message=message, revision=revision, parent_commit=head
        )
        return str(done.oid)

    return call(attempt, f"pushing to {repository}", repository), sent


def _is_there(content: bytes | Path, there: Any) -> bool:
    """True if the hub's file of this name has the same content, by its hash."""
    if there is None or there.size != (len(content) if isinstance(content, bytes) else content.stat().st_size):
        return False
    if there.lfs is not None:
        return _digest(content, hashlib.sha256()) == there.lfs.sha256
    return _digest(content, hashlib.sha1(b"blob %d\0" % there.size)) == there.blob_id


def _digest(content: bytes | Path, digest: Any) -> str:
    with io.BytesIO(content) if isinstance(content, bytes) else regular(content).open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def push(hub: Any, folder: Path, files: Files, repository: str, revision: str, private: bool) -> Pushed:
    """Creates what is missing and pushes the files of a folder. Raises InputError for what the hub refuses."""
    create(hub, repository, private, revision)
    commit, sent = push_files(hub, files, repository, revision, f"{folder.name} of a run of lmgym")
    return Pushed(repository, revision, commit, f"{hub.endpoint}/{repository}", sent, folder.name)


def entry(pushed: Pushed) -> dict[str, Any]:
    """The entry of run.json on a push."""
    about = {"repository": pushed.repository, "revision": pushed.revision, "commit": pushed.commit, "url": pushed.url}
    return about | {"folder": pushed.folder, "at": timestamp()}


def add_entry(entries: object, new: Mapping[str, Any]) -> list[Any]:
    """The list in run.json with a new push, which replaces that to the same branch."""
    former = entries if isinstance(entries, list) else []
    where = (new["repository"], new["revision"])
    return [*(one for one in former if (one.get("repository"), one.get("revision")) != where), dict(new)]


def record_of(folder: Path) -> dict[str, Any]:
    """The run.json of a folder, or of the one above it; empty if there is none."""
    return read_object(folder / "run.json") or read_object(folder.parent / "run.json")


def record_push(folder: Path, pushed: Pushed) -> None:
    """Adds a push to the run.json of a folder or of the one above it, unless that run is in progress."""
    place = folder if (folder / "run.json").is_file() else folder.parent
    record = read_object(place / "run.json")
    if record and is_free(place):
        write_json(place / "run.json", record | {"pushed": add_entry(record.get("pushed"), entry(pushed))})


def reason(error: Exception) -> str:
    """The reason that a push failed, in a line."""
    return str(error) if isinstance(error, InputError) else describe(error)


def sources(run: Path) -> list[tuple[Path, str]]:
    """(folder, branch) of what is pushed of a run's folder: the model to use, and the last beside it.

    A model's own folder is one. Raises InputError for a folder that is neither.
    """
    if (run / "config.json").is_file() or (run / ADAPTER).is_file():
        return [(run, MAIN)]
    model = trained_in(run)
    if model is None:
        raise InputError(
            f"{shown(str(run))} holds neither a model nor a run that has trained one; `lmgym runs` lists runs"
        )
    return [(model, MAIN), *[(run / LAST, LAST)] * (run / LAST).is_dir()]

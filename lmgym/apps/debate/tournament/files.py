"""The files of a tournament: transcripts that grow by batches, of one process or of several shards.

A batch is written as a whole and synced; a line that a kill has cut is removed, and its round is played again. So no
round is lost, and none is there twice.
"""

import glob
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmgym.apps.debate.nyu import in_order, read_nyu_file, read_text
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.transcript import Transcript, read_lines, to_row
from lmgym.errors import InputError, regular, shown, shown_path
from lmgym.masking import mask_keys
from lmgym.runs.files import read_json, whole_lines, write_json

TRANSCRIPTS, RESULTS, SETTINGS = "transcripts.jsonl", "results.json", "tournament.json"
MERGED = "merge_results"
"""the setting that names other rounds, for figures over both"""


def shard_folder(folder: Path, shard: int, shards: int) -> Path:
    """The folder that a shard writes to: the whole one if there is one shard."""
    return folder if shards == 1 else folder / f"shard-{shard + 1}-of-{shards}"


def append(path: Path, transcripts: Sequence[Transcript]) -> None:
    """Adds transcripts to a file, and syncs it."""
    lines = "".join(json.dumps(to_row(t), ensure_ascii=False) + "\n" for t in transcripts)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(mask_keys(lines))
        file.flush()
        os.fsync(file.fileno())


def read_played(path: Path) -> list[Transcript]:
    """The transcripts of a file, without a line at its end that is not complete, which is cut off."""
    return read_lines([line.decode(errors="replace") for line in whole_lines(path)[0]], shown_path(path))


def read_transcripts(path: str | Path) -> list[Transcript]:
    """The transcripts of a file, or of a tournament's folder with all of its shards, by number; nothing is changed.

    A file or folder may also have debates in NYU's shapes (.json, .jsonl), which are numbered in their order; so may
    one run's files in a folder of several, by the beginning of their names: outputs/transcripts/TIME. Raises InputError
    for a file that does not exist or is none, for other schemas, and for a round that is there twice.
    """
    if nyu := _nyu_files(Path(path)):
        found = [transcript for file in nyu for transcript in read_nyu_file(file)]
        return [replace(transcript, number=number) for number, transcript in enumerate(found)]
    files = _files(Path(path))
    if not files:
        raise InputError(
            f"{shown_path(path)} has no transcripts; needed: a {TRANSCRIPTS}, the folder of a tournament, or debates "
            "in NYU's shapes"
        )
    transcripts: list[Transcript] = []
    for file in files:
        text = read_text(file, f"{TRANSCRIPTS} of a tournament")
        transcripts += read_lines(text.split("\n")[:-1], shown_path(file))
    numbers = [transcript.number for transcript in transcripts]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise InputError(
            f"{shown_path(path)} has round {shown(twice)} twice; needed: the files of one tournament, each once"
        )
    return sorted(transcripts, key=lambda transcript: transcript.number)


def questions_of(transcripts: Iterable[Transcript]) -> list[Question]:
    """The questions of rounds, each once, in the order of the rounds."""
    found: dict[str, Question] = {}
    for transcript in transcripts:
        found.setdefault(transcript.question.key, transcript.question)
    return list(found.values())


def merged_with(folder: Path) -> str:
    """Where rounds are that a tournament's figures are over beside its own, by its settings; empty without any."""
    for path in (folder / SETTINGS, *sorted(folder.glob(f"shard-*/{SETTINGS}"))):
        if path.is_file():
            settings = read_json(path)
            found = settings.get(MERGED) if isinstance(settings, dict) else None
            return found if isinstance(found, str) else ""
    return ""


def has_transcripts(folder: Path) -> bool:
    """True for the folder of a tournament that has played a round, in any of its shards."""
    return folder.is_dir() and bool(_files(folder))


def _files(given: Path) -> list[Path]:
    files = [given] if given.is_file() else [given / TRANSCRIPTS, *sorted(given.glob(f"shard-*/{TRANSCRIPTS}"))]
    return [file for file in files if file.is_file()]


def _nyu_files(given: Path) -> list[Path]:
    """The files of debates in NYU's shapes; none for a tournament's file or folder."""
    if not given.exists():  # the beginning of the names of a run's files, TIME of TIME_0_0.json
        return sorted(given.parent.glob(f"{glob.escape(given.name)}_*.json"), key=in_order)
    if given.is_file():
        return [] if given.name == TRANSCRIPTS or _is_ours(given) else [given]
    if (given / SETTINGS).is_file() or _files(given):
        return []
    return sorted((*given.glob("*.json"), *given.glob("*.jsonl")), key=in_order)


def _is_ours(file: Path) -> bool:
    with regular(file).open(encoding="utf-8", errors="replace") as lines:
        return '"schema"' in lines.readline()


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Records what the rounds depend on. Raises InputError if the folder has rounds of other settings."""
    path = folder / SETTINGS
    if not path.is_file():
        write_json(path, settings)
        return
    try:
        before = read_json(path)
    except ValueError as error:
        raise InputError(f"{shown_path(path)} is not JSON: {error}; name another --output") from error
    changed = [key for key in settings if before.get(key) != settings[key]] if isinstance(before, dict) else ["all"]
    if changed:
        raise InputError(
            f"{shown_path(folder)} has rounds with other settings: {', '.join(changed)} changed; needed: the same "
            "settings, to go on with it, or another --output"
        )

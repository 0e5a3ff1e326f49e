"""A scorer's pairs in two halves and a rest by prompt, and scorers trained on the halves as it was.

Rows are read as the scorer's run read them and written in one form, so that what a column meant is settled.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lmgym.config.rows import ColumnConfig
from lmgym.data.mixing import read_sets
from lmgym.data.pairs import Pair, validate
from lmgym.errors import InputError, shown, shown_path
from lmgym.runs.files import read_json, write_lines
from lmgym.text import Conversation, Turn, messages

NEEDED = "needed: the folder of a finished run of `lmgym train reward` on pairs"
FEWEST = 100
"""pairs of a half"""
MOST_ASKED = 0.2
"""share of the prompts that may be kept for the pool"""
REPLACED = ("dataset", "eval_dataset", "dataset_weights", "max_rows", "train_size", "output", "resume", "tracking")
"""flags of the scorer's run that do not hold for its halves, and with them all that name columns"""


def read_scorer_run(name: str) -> dict[str, Any]:
    """The record of the run that trained a scorer. Raises InputError for anything else."""
    folder = Path(name)
    path = next((at / "run.json" for at in (folder, folder.parent) if (at / "run.json").is_file()), None)
    record: dict[str, Any] = read_json(path) if path else {}
    if record.get("stage") != "reward_models" or record.get("outcome") != "finished":
        found = f"is a run of {record.get('stage')}, {record.get('outcome')}" if record else "has no run.json"
        raise InputError(f"{shown_path(name)} {found}; {NEEDED}")
    return record


def read_run_pairs(record: Mapping[str, Any]) -> list[Pair]:
    """The pairs that a run was trained on, and those that it held out of the same file. Raises InputError for none."""
    config = record["config"]
    columns = ColumnConfig(**{one.name: config[one.name] for one in fields(ColumnConfig)})
    pairs, _ = validate(
        *read_sets(config["dataset"], config["dataset_split"], config["max_rows"]).values(), soft=True, columns=columns
    )
    if not pairs:
        raise InputError(f"{shown(config['dataset'])} has no pairs; {NEEDED}")
    return pairs


def split(pairs: Sequence[Pair], asked: int) -> tuple[list[Conversation], list[Pair], list[Pair]]:
    """(prompts of neither half, first half, second half), by a hash of the prompt. Raises InputError for few pairs."""
    keys = sorted({pair.prompt_key for pair in pairs}, key=lambda key: hashlib.sha256(key.encode()).digest())
    kept = min(asked, int(MOST_ASKED * len(keys)))
    middle = kept + (len(keys) - kept) // 2
    place = {key: place for place, key in enumerate(keys)}
    parts: tuple[list[Pair], ...] = ([], [], [])
    for pair in pairs:
        at = place[pair.prompt_key]
        parts[0 if at < kept else 1 if at < middle else 2].append(pair)
    if min(map(len, parts[1:])) < FEWEST or not kept:
        raise InputError(
            f"{len(pairs)} pairs with {len(keys)} prompts make halves of {len(parts[1])} and {len(parts[2])}; needed: "
            f"at least {FEWEST} each"
        )
    prompts = {pair.prompt_key: pair.conversation for pair in parts[0]}
    return [*prompts.values()], parts[1], parts[2]


def write_half(pairs: Sequence[Pair], path: Path) -> None:
    """Writes pairs in the form that every reader of pairs reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(
        path,
        [
            {
                "prompt": messages(pair.conversation),
                **{side: _reply(getattr(pair, side)) for side in ("chosen", "rejected")},
                **({"margin": pair.margin} if pair.margin else {}),
                **({"preference": pair.preference} if pair.preference != 1 else {}),
            }
            for pair in pairs
        ],
    )


def train_half(record: Mapping[str, Any], pairs: Path, output: Path) -> Path:
    """The folder of a scorer trained on other pairs by the flags of a run; one that is finished is kept.

    Raises InputError, naming its log, if it fails.
    """
    done = output / "run.json"
    if not (done.is_file() and read_json(done).get("outcome") == "finished"):
        output.parent.mkdir(parents=True, exist_ok=True)
        log = output.parent / f"{output.name}.log"
        words = [
            *half_command(record["command"]),
            "--dataset",
            str(pairs.absolute()),
            "--output",
            str(output.absolute()),
        ]
        folder = record["cwd"] if os.path.isdir(record["cwd"]) else None
        with log.open("w", encoding="utf-8") as file:
            code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, cwd=folder, check=False).returncode
        if code:
            raise InputError(f"the scorer of {shown_path(pairs)} failed with exit code {code}; its output: {log}")
    return output / "model"


def half_command(command: str) -> list[str]:
    """A run's command in this process's Python, without the flags that do not hold for a half."""
    words = shlex.split(command)
    first = next(place for place, word in enumerate(words) if word.endswith(".py"))
    file, *flags = words[first:]
    replaced = {*REPLACED, *(one.name for one in fields(ColumnConfig))}
    kept, skipping = [sys.executable, file], False
    for word in flags:
        if word.startswith("--"):
            skipping = word[2:].partition("=")[0].replace("-", "_") in replaced
        if not skipping:
            kept.append(word)
    return [*kept, "--tracking", "none"]


def _reply(reply: str | Turn) -> Any:
    return messages(Conversation(()), reply) if isinstance(reply, Turn) else reply

"""The record of a run (run.json): command, config, commit, versions; secrets are redacted."""

import importlib.metadata
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "transformers", "deepspeed", "accelerate", "datasets", "peft")


REDACTED = "(redacted)"


SECRET = re.compile(r"secret|passw|credential|(^|[_.-])(api|auth|access)?(token|key)s?$", re.IGNORECASE)


# settings of a tokenizer, names of columns and numbers of tokens only sound like secrets
ORDINARY = "pad|eos|bos|unk|sep|cls|mask|stop|special|group|sort|column|label|text|prompt|reply|row|new|max|min|sample"


HARMLESS = re.compile(rf"(^|[_.-])({ORDINARY})[_-](token|key)s?$", re.IGNORECASE)


def describe_run(name: str, config: dict[str, Any], seed: int, data_fingerprint: str | None) -> dict[str, Any]:
    """What it takes to know, a year later, what was run."""
    return {
        "name": name,
        "outcome": "running",
        "exit_code": None,
        "started": timestamp(),
        "command": shlex.join(_redact_command(sys.orig_argv)),
        "config": config,
        "seed": seed,
        "data_fingerprint": data_fingerprint,
        "git": _git(),
        "versions": versions(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "world_size": int(os.environ.get("WORLD_SIZE", 1)),
    }


def timestamp() -> str:
    """The current time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Of Python and the libraries that a result may depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES}


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the repository that this code lies in, or else of the current folder's; dirty counts new files too,
    since an experiment that was never added is in no commit.
    """
    for place in (Path(__file__).parent, Path.cwd()):
        with suppress(OSError, subprocess.SubprocessError):
            commit = _ask_git(place, "rev-parse", "--verify", "HEAD")
            return {"commit": commit, "dirty": bool(_ask_git(place, "status", "--porcelain"))}
    return None


def _ask_git(place: Path, *words: str) -> str:
    asked = subprocess.run(["git", *words], cwd=place, capture_output=True, text=True, check=True, timeout=10)
    return asked.stdout.strip()


def _looks_secret(name: str) -> bool:
    return bool(SECRET.search(name)) and not HARMLESS.search(name)


def redact(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, without the text of those whose name sounds like a secret; numbers and None tell nothing."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            kept[name] = redact(value)
        else:
            told = value is None or isinstance(value, bool | int | float)
            kept[name] = value if told or not _looks_secret(str(name)) else REDACTED
    return kept


def _redact_command(words: Sequence[str]) -> list[str]:
    """A command line without the values of flags whose name sounds like a secret, in either form of a flag."""
    kept: list[str] = []
    after_secret = False
    for word in words:
        flag, joined, _ = word.partition("=")
        secret = flag.startswith("--") and _looks_secret(flag)
        hidden = after_secret and not word.startswith("--")
        kept.append(REDACTED if hidden else f"{flag}={REDACTED}" if secret and joined else word)
        after_secret = secret and not joined
    return kept

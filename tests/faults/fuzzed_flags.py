"""Commands with odd flags out of a seed and a number, and what an experiment's file says to them."""

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.runs.fields import flatten

EXPERIMENTS = (
    "reward_models/experiments/hh_pairwise.py",
    "sft/experiments/hh_chosen.py",
    "ppo/experiments/hh_harmless.py",
    "ppo/experiments/sentiment_words.py",
)
"""all of them read the same pairs"""
FLOATS = (
    "nan",
    "inf",
    "-inf",
    "1e308",
    "-1e308",
    "1e-320",
    "-0.0",
    "0",
    "-1",
    "0.5",
    "1",
    "2",
    "1e6",
    "1e30",
    "9" * 400,
)
INTEGERS = ("0", "-1", "1", "2", "3", "7", "64", "1000000", "2147483648", "9" * 20, "9" * 400, "-" + "9" * 30)
TEXTS = (
    *(
        "",
        " ",
        "None",
        "true",
        "[1, 2]",
        "{}",
        "..",
        "../..",
        "/",
        "/dev/null",
        "a=b",
        "a=b,a=c",
        "=",
        "name=",
        "world:0",
    ),
    *("world:x", "world:" + "9" * 30, "\x1b[2J\x9b31m", "\u202eevil", "ü" * 3000, "x" * 100_000, "\udcff", "a\nb\nc"),
    *("/proc/self/mem", "%s{}", "😀", "gold=/nowhere", "~/x", "\0"),
)


@dataclass(frozen=True)
class Command:
    """An experiment's file and the flags behind it; `--dry_run` is always among them."""

    script: str
    flags: tuple[str, ...]


def make_command(seed: int, number: int, fields: Mapping[str, Any], usual: Mapping[str, str]) -> Command:
    """The command of a number. `fields` are those of each experiment's config, `usual` flags with which it works."""
    rng = random.Random(f"flags {seed} {number}")
    script = EXPERIMENTS[number % len(EXPERIMENTS)]
    defaults = fields[script]
    flags = {name: value for name, value in usual.items() if name in defaults}
    if "sentiment_words" in script:
        flags.pop("scorers")  # a function rewards there
    words: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(sorted(defaults.keys() - {"dry_run"}))
        value = rng.choice(_pool(defaults[name]) if rng.random() < 0.85 else TEXTS)
        flags.pop(name, None)
        if rng.random() < 0.05:
            name = rng.choice((name[:-1], name.replace("_", "-"), "\x1b" + name, "x" * 5000, ""))
        words += rng.choice(((f"--{name}={value}",), (f"--{name}={value}",), (f"--{name}", value), (f"--{name}",)))
    return Command(script, ("--dry_run", *(f"--{name}={value}" for name, value in flags.items()), *words))


def _pool(default: object) -> tuple[str, ...]:
    """Values that a field with this default may be meant to take."""
    if isinstance(default, bool):
        return "true", "false", "1", "0", "none"
    if isinstance(default, int):
        return INTEGERS
    return FLOATS if isinstance(default, float) else TEXTS


def config_fields(root: Path) -> dict[str, dict[str, object]]:
    """The fields of each experiment's config, by its file."""
    found = {}
    for script in EXPERIMENTS:
        module: dict[str, Any] = {"__name__": "experiment"}
        exec(compile((root / script).read_text(), script, "exec"), module)
        found[script] = flatten(module["CONFIG"])
    return found


def run_here(root: Path, command: Command) -> int:
    """Runs a command in this process; its exit code. Raises what it raises."""
    before = sys.argv
    sys.argv = [str(root / command.script), *command.flags]
    try:
        exec(compile((root / command.script).read_text(), command.script, "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0

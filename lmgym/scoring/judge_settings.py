"""Settings of asking a model that judges: flags of the commands that take `judge:MODEL`, and keys of a rubric."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from lmgym.config import Range, check_ranges
from lmgym.errors import MOST_SECONDS, MOST_TOGETHER, InputError, shown
from lmgym.runs.files import write_json

JUDGE_FILE = "judge.json"
"""in the folder of a model that was trained as a judge: how it is asked"""
NEEDED_PRICES = "two numbers, per million tokens read and written, such as 0.15,0.60"
# list prices in US dollars per million tokens read and written, of November 2025
PRICES_DATE = "November 2025"
PRICES = {
    "gpt-5": (1.25, 10.0),
    "gpt-5-mini": (0.25, 2.0),
    "gpt-5-nano": (0.05, 0.4),
    "gpt-4.1": (2.0, 8.0),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-4o": (2.5, 10.0),
    "gpt-4o-mini": (0.15, 0.6),
    "o3": (2.0, 8.0),
    "o4-mini": (1.1, 4.4),
    "claude-opus-4-5": (5.0, 25.0),
    "claude-sonnet-4-5": (3.0, 15.0),
    "claude-haiku-4-5": (1.0, 5.0),
}


@dataclass(frozen=True)
class JudgeConfig:
    """Settings of asking a model that judges."""

    judge_tokens: Annotated[int | None, Range(1, MOST_TOGETHER, also=(None,))] = None
    """the judge gives its reasons first, in at most so many tokens with its verdict; none: it answers at once, and a
    model that thinks may use 4,096"""
    reasoning_effort: str = ""
    """how long a model that thinks does so, as its server has it: minimal, low, medium, high"""
    concurrency: Annotated[int | None, Range(1, MOST_TOGETHER, also=(None,))] = None
    """most requests to the judge's server at a time; none: 8, or as a rubric says"""
    batch: bool = False
    """all questions go to the batch interface of OpenAI or Anthropic, which is cheaper and may take a day"""
    patience: Annotated[float | None, Range(0, MOST_SECONDS, also=(None,), hint="seconds")] = None
    """seconds without any answer for which a server that takes no more requests is waited for; none: 900, or as a
    rubric says"""
    prices: str = ""
    """of a million tokens read, and written: 0.15,0.60; none: those of models whose prices are known"""
    max_cost: Annotated[float | None, Range(0, 1e9, above=True, also=(None,))] = None
    """no request is sent that may take the cost above this, in the currency of the prices"""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.prices:
            read_prices(self.prices)

    def over(self, given: "JudgeConfig") -> "JudgeConfig":
        """These settings where they are set, and else those given by a rubric."""
        default = JudgeConfig()
        own: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(given, **{name: value for name, value in own.items() if value != getattr(default, name)})


def save_judge_tokens(folder: Path, tokens: int | None) -> None:
    """Writes how the judge of a run's folder is asked, which `compare:FOLDER` reads, beside each of its weights.

    `tokens` are those of its reasons with its verdict; None: it answers at once.
    """
    for name in ("model", "adapter", "last"):
        if (folder / name).is_dir():
            write_json(folder / name / JUDGE_FILE, {"judge_tokens": tokens})


def read_prices(text: str) -> tuple[float, float]:
    """Prices of a million tokens read, and written. Raises InputError for anything else."""
    try:
        read, written = (float(part) for part in text.split(","))
    except ValueError:
        read = written = -1.0
    if not (0 <= read < float("inf") and 0 <= written < float("inf")):
        raise InputError(f"--prices {shown(text)}; needed: {NEEDED_PRICES}")
    return read, written


def known_prices(model: str) -> tuple[float, float] | None:
    """List prices of a model by its name, with or without the date of its version; None of one that is not known."""
    return PRICES.get(re.sub(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2})$", "", model))

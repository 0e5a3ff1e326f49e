"""Reads what a run wrote to its folder. Files that are missing, cut short or broken give empty parts, not errors."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from lmgym.errors import regular
from lmgym.report.metric import ALL

Row = dict[str, Any]

MOST_SAMPLE_ROWS = 2000  # of a file: a report shows a few
MOST_REJECTED = 1000


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite number that is no bool; NaN and infinities were written as null."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) < 1e300


def kept_update(evaluation: Mapping[str, Any], record: Mapping[str, Any]) -> int | None:
    """The update after which the model that is kept was the best, by evaluation.json or (PPO) by run.json; None if the
    last model is kept.
    """
    update = evaluation.get("update") if evaluation.get("best_metric") else record.get("best_update")
    return update if isinstance(update, int) and not isinstance(update, bool) and update > 0 else None


def is_game(row: Row) -> bool:
    """True for a recorded game: the turns of trained agents, what all agents said by step, and returns."""
    agents, actions, returns = row.get("agents"), row.get("actions", []), row.get("returns")
    if not isinstance(agents, dict) or not isinstance(actions, list) or not isinstance(returns, dict):
        return False
    turns = [turn for own in agents.values() for turn in (own if isinstance(own, list) else [None])]
    return (
        all(isinstance(turn, dict) and _is_turn(turn) for turn in turns)
        and all(isinstance(said, dict) and all(isinstance(text, str) for text in said.values()) for said in actions)
        and all(value is None or is_number(value) for value in returns.values())
    )


def _is_turn(turn: Row) -> bool:
    """True for what an agent saw, `messages` or `prompt`, its reply, the ids of that and a reward."""
    chat, reward = turn.get("messages"), turn.get("reward")
    seen = isinstance(turn.get("prompt"), str) or (isinstance(chat, list) and all(map(_is_message, chat)))
    known = reward is None or is_number(reward) or (isinstance(reward, list) and all(map(is_number, reward)))
    return seen and known and isinstance(turn.get("reply"), str) and isinstance(turn.get("ids", []), list)


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message


def _is_object(value: object) -> bool:
    return value is None or isinstance(value, dict)


_COUNTS = ("rejected_by_reason", "not_needed_by_reason")
SHAPES: dict[str, Callable[[Row], bool]] = {
    "metrics.jsonl": lambda row: is_number(row.get("step")),
    "events.jsonl": lambda row: is_number(row.get("step", 0)),
    "episodes": is_game,
    "samples": lambda row: (
        not any(isinstance(row.get(name), list | dict) for name in ("row", "task", "agent", "turn"))
        and (not isinstance(row.get("replies"), list) or all(isinstance(reply, dict) for reply in row["replies"]))
    ),
}
"""what a line must be, by the file or its folder"""


@dataclass(frozen=True)
class RunFiles:
    """The files of a run's folder, each read when it is first needed."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    """a line on each file that could not be read"""
    killed: bool = False
    """run.json says that the run is going on, and no process holds its folder"""
    _samples: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    @cached_property
    def record(self) -> Row:
        """run.json; empty if there is none, and without parts that are not as a run writes them."""
        record = self._json("run.json")
        wrong = [name for name in ("config", "data", "former", "git", "versions") if not _is_object(record.get(name))]
        data = {} if "data" in wrong else record.get("data") or {}
        if any(not _is_object(data.get(name)) for name in _COUNTS):
            wrong.append("data")
        if wrong:
            self.problems.append(f"run.json: {', '.join(wrong)} cannot be read; needed: objects")
        ended = {"outcome": "killed"} if self.killed else {}
        return {name: value for name, value in record.items() if name not in wrong} | ended

    @property
    def stage(self) -> str:
        """The stage of the run, as `known_metrics` has it; empty if it is not known."""
        found = self.record.get("stage")
        return found if isinstance(found, str) and found in ALL else ""

    @property
    def updates(self) -> float:
        """The updates that were made, as far as the metrics say."""
        return self.metrics[-1]["step"] if self.metrics else 0

    @cached_property
    def former(self) -> list[Row]:
        """The records of the launches before this one, the oldest first: run.1.json, run.2.json, ..."""
        found = [(int(m[1]), path.name) for path in self.folder.glob("run.*.json") if (m := _NUMBER.search(path.name))]
        return [record for _, name in sorted(found) if (record := self._json(name))]

    @cached_property
    def launches(self) -> list[Row]:
        """The records of all launches of this run, the oldest first; other runs in the folder are left out."""
        own = self.record.get("id")
        return [*(record for record in self.former if record.get("id") == own), self.record]

    @cached_property
    def metrics(self) -> list[Row]:
        """Lines of metrics.jsonl, in their order; a line that a kill cut is left out."""
        return list(self.lines("metrics.jsonl"))

    @cached_property
    def events(self) -> list[Row]:
        """Lines of events.jsonl: warnings, alarms and notes with the update after which they occurred."""
        return list(self.lines("events.jsonl"))

    @cached_property
    def evaluation(self) -> Row:
        """evaluation.json; empty before it is written."""
        return self._json("evaluation.json")

    @property
    def kept_update(self) -> int | None:
        """After which update the model of `model/` was the best by a metric; None if the last is kept."""
        return kept_update(self.evaluation, self.record)

    @property
    def best_metric(self) -> str:
        """The metric by which the model of `model/` was chosen, where it was."""
        config = self.record.get("config") or {}
        return str(self.evaluation.get("best_metric") or config.get("best_metric") or "")

    @cached_property
    def scores(self) -> list[Row]:
        """Lines of scores.jsonl: a reward model's scores of held-out examples."""
        return list(self.lines("scores.jsonl"))

    @cached_property
    def held_out(self) -> list[Row]:
        """Lines of held_out.jsonl: a policy's loss on held-out rows."""
        return list(self.lines("held_out.jsonl"))

    @cached_property
    def rejected(self) -> list[Row]:
        """The first lines of rejected.jsonl."""
        return list(self.lines("rejected.jsonl", MOST_REJECTED))

    def sample_updates(self, kind: str, folder: str = "samples") -> list[int]:
        """After which updates there is a file FOLDER/KIND-UPDATE.jsonl, or FOLDER/UPDATE.jsonl if `kind` is empty."""
        prefix = f"{kind}-" if kind else ""
        names = [path.name.removesuffix(".jsonl") for path in (self.folder / folder).glob(f"{prefix}*.jsonl")]
        return sorted(int(update) for name in names if (update := name.removeprefix(prefix)).isdecimal())

    def samples(self, kind: str, update: int) -> list[Row]:
        """The rows of such a file."""
        name = f"{f'{kind}-' if kind else ''}{update:06d}"
        if (kind, update) not in self._samples:
            self._samples[kind, update] = list(self.lines(f"samples/{name}.jsonl", MOST_SAMPLE_ROWS))
        return self._samples[kind, update]

    def games(self, kind: str, update: int, most: int) -> list[Row]:
        """The first games of episodes/KIND-UPDATE.jsonl."""
        return list(self.lines(f"episodes/{kind}-{update:08d}.jsonl", most))

    def series(self, name: str) -> list[tuple[int, float]]:
        """(update, value) of a metric, without undefined values; the last of an update counts."""
        found = {line["step"]: line[name] for line in self.metrics if is_number(line.get(name))}
        return sorted(found.items())

    @cached_property
    def metric_names(self) -> list[str]:
        """Names of all metrics that were ever logged, in the order of their first lines."""
        names = dict.fromkeys(name for line in self.metrics for name in line)
        return [name for name in names if name not in ("step", "time", "non_finite", "epoch")]

    def _json(self, name: str) -> Row:
        path = self.folder / name
        try:
            found = _loads(regular(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{name} is unreadable: {str(error)[:200]}")
            return {}
        return found if isinstance(found, dict) else {}

    def lines(self, name: str, most: int | None = None) -> Iterator[Row]:
        """The JSON objects of a file of lines, at most so many lines of it."""
        broken, fits = 0, SHAPES.get(name.partition("/")[0], lambda row: True)
        try:
            with regular(self.folder / name).open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines):
                    if number == most:
                        break
                    try:
                        row = _loads(line)
                    except (ValueError, RecursionError):
                        row = None
                    if isinstance(row, dict) and fits(row):
                        yield row
                    else:
                        broken += 1
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self.problems.append(f"{name} is unreadable: {error.strerror}")
        if broken:
            self.problems.append(f"{name}: {broken:,} lines are not as a run writes them (a kill cuts the last one)")


def _loads(text: str) -> Any:
    """JSON whose numbers are finite: others, which no run writes, are null, as the page needs."""
    return json.loads(text, parse_float=_finite, parse_constant=lambda name: None)


def _finite(text: str) -> float | None:
    return number if math.isfinite(number := float(text)) else None


_NUMBER = re.compile(r"^run\.(\d+)\.json$")


def thinned(points: Sequence[Any], most: int = 400) -> list[Any]:
    """At most `most` points, evenly chosen, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]

"""Counters of a server, in the text format of Prometheus."""

import threading
from collections import Counter
from collections.abc import Mapping

HELP = {
    "lmgym_requests_total": "answered requests by path and status",
    "lmgym_request_seconds_total": "seconds from the head of a request to its answer, by path",
    "lmgym_replies_total": "replies scored, by scorer",
    "lmgym_generated_tokens_total": "tokens of all candidates, by policy",
    "lmgym_batches_total": "calls of a scorer, by scorer",
    "lmgym_scorer_seconds_total": "seconds in calls of a scorer, by scorer",
    "lmgym_truncated_total": "replies that were scored without a part of their text, by scorer",
    "lmgym_abandoned_total": "requests whose client left or whose time was up before their answer",
    "lmgym_unwatched_total": "requests of a run that its monitors did not score: a full queue, or a failure",
    "lmgym_reloads_total": "reloads of the scorers, by outcome",
}


class Metrics:
    """Sums by name and labels; threads may add to it."""

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            self._sums[name, tuple(sorted(labels.items()))] += value  # type: ignore[assignment]

    def text(self, gauges: Mapping[str, float]) -> str:
        """All counters, and gauges as they are now."""
        with self._lock:
            sums = sorted(self._sums.items())
        lines = []
        for name, help_text in HELP.items():
            rows = [(labels, value) for (one, labels), value in sums if one == name]
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} counter"] if rows else []
            lines += [f"{name}{_written(labels)} {value:.9g}" for labels, value in rows]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:.9g}"]
        return "\n".join(lines) + "\n"


def _written(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"

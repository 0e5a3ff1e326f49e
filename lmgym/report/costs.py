"""The costs of a run: time on the clock and of processors, the phases that took it, and memory."""

from lmgym.report.key_figures import total_cost
from lmgym.report.known_metrics import definition
from lmgym.report.panels import Card, Panel, Table, duration
from lmgym.report.run_files import RunFiles, is_number

PHASES = {
    "generate": "sampling replies",
    "score": "computing rewards",
    "forward": "log-probabilities and values",
    "backward": "updates",
    "train": "training",
    "evaluate": "evaluation",
    "log": "logging",
}
SUMS = ("rollout", "iteration")  # of other phases
MEMORY = {
    "peak_gpu_memory_gib": ("peak GPU memory", "The most memory that tensors held on the GPU of the main rank."),
    "peak_memory_gib": ("peak memory", "The most memory that the main rank's process held on its machine."),
}


def cost_of(run: RunFiles) -> str:
    """`1.4 GPU hours`, `12 min of CPU time`, or the time on the clock so far."""
    cost = total_cost(run.record)
    if cost["gpu_seconds"]:
        return f"{duration(cost['gpu_seconds'])} of GPU time"
    if cost["cpu_seconds"]:
        return f"{duration(cost['cpu_seconds'])} of CPU time"
    so_far = run.metrics[-1].get("time") if run.metrics else None
    seconds = cost["seconds"] or (so_far if is_number(so_far) else 0)
    return duration(seconds) if seconds else ""


def seconds_of(run: RunFiles) -> float:
    """Seconds on the clock, of all launches; of a run that has not ended so far."""
    so_far = run.metrics[-1].get("time") if run.metrics else None
    return total_cost(run.record)["seconds"] or (so_far if is_number(so_far) else 0)


def costs(run: RunFiles) -> list[Card]:
    """Cards of the time and the memory."""
    found = []
    if seconds := seconds_of(run):
        found.append(Card("time on the clock", duration(seconds), about="From start to end, of all launches."))
    if cost_of(run) and cost_of(run) != duration(seconds):
        found.append(Card("cost", cost_of(run), about="Of all ranks and launches."))
    for name, (label, about) in MEMORY.items():
        if is_number(value := run.record.get(name)):
            found.append(Card(label, f"{value:.2f} GiB", about=about))
    return found


def phases(run: RunFiles) -> list[Panel]:
    """Seconds of each phase of the main rank, and their shares of the time on the clock."""
    names = [name for name in run.metric_names if name.startswith("time/") and name.removeprefix("time/") not in SUMS]
    found = {name.removeprefix("time/"): sum(value for _, value in run.series(name)) for name in names}
    total = seconds_of(run)
    if not found or not total:
        return []
    words = {PHASES.get(name, name): seconds for name, seconds in found.items()}
    rest = total - sum(words.values())
    if rest > 0:
        words["start, loading, saving and all else"] = rest
    whole = sum(words.values())
    rows = [(name, duration(seconds), f"{seconds / whole:.0%}") for name, seconds in words.items()]
    rows.sort(key=lambda row: -words[row[0]])
    terms = {PHASES.get(name, name): definition(f"time/{name}") for name in found}
    table = Table(("phase", "time", "share"), rows, frozenset({1, 2}))
    return [Panel("phases", "Time by phase", "Of the main rank.", table=table, terms=terms)]

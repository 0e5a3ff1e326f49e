"""CPU seconds and memory of keeping a few rows of every group, against the loop over a dict that one would write.

    .venv/bin/python benchmarks/data_prep.py            # writes benchmarks/results/data_prep.json

Every measurement is a process of its own on one core, contenders take turns within each repetition, and all of a
table must keep as many rows ("loop" and "unchanged" the same ones).
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from machine import describe_machine, pin_command
from rich.console import Console
from rich.table import Table

from lmgym.data.sampling import limit_per_group

BENCHMARKS = Path(__file__).resolve().parent
MODES = ("unchanged", "reverse", "random")
TABLES = {
    "1M groups": "int64 ids below 1,000,000",
    "10k groups": "int64 ids below 10,000",
    "1M hashes": "1,000,000 distinct int64 ids all over 64 bits",
    "strings": "a list of strings, 1,000,000 distinct ones",
    "numpy strings": "the same as an array of dtype U",
}
console = Console(width=130)  # a log file has no width of its own


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--limit", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, default=1, help="the core every measurement is pinned to")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), help="tables, to leave others out")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/data_prep.json")
    parser.add_argument("--measure", nargs=2, metavar=("TABLE", "CONTENDER"), help="one measurement, as JSON")
    return parser.parse_args()


def make_ids(table: str, rows: int, seed: int) -> np.ndarray | list[str]:
    """Group ids of all rows, each group as likely at every row."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(10_000 if table == "10k groups" else 1_000_000, size=rows)
    if table == "1M hashes":
        info = np.iinfo(np.int64)
        return rng.integers(info.min, info.max, 1_000_000)[ids]
    if "strings" in table:
        names = [f"user{number}" for number in ids.tolist()]
        return names if table == "strings" else np.array(names)
    return ids


def loop(group_ids: np.ndarray | list[str], limit: int) -> list[int]:
    """The reference: the first rows of every group, by one dict of counts."""
    counts: dict = {}
    kept = []
    for row, group in enumerate(group_ids.tolist() if isinstance(group_ids, np.ndarray) else group_ids):
        count = counts.get(group, 0)
        if count < limit:
            counts[group] = count + 1
            kept.append(row)
    return kept


def run(contender: str, group_ids: np.ndarray | list[str], limit: int) -> Sequence[int]:
    return loop(group_ids, limit) if contender == "loop" else limit_per_group(group_ids, limit, contender)


def resident_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(table: str, contender: str, arguments: argparse.Namespace) -> dict:
    """One timed call after a small one; memory as resident, and for numpy as traced in a further call."""
    group_ids = make_ids(table, arguments.rows, arguments.seed)
    run(contender, group_ids[:1000], arguments.limit)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew: making the ids is not to count
    resident, began = resident_bytes("VmRSS"), time.process_time()
    kept = run(contender, group_ids, arguments.limit)
    result = {
        "cpu_seconds": time.process_time() - began,
        "resident_bytes_a_row": (resident_bytes("VmHWM") - resident) / arguments.rows,
        "kept": len(kept),
        "checksum": zlib.crc32(np.asarray(kept, dtype=np.int64)),
    }
    del kept
    if contender != "loop":  # tracing every object of the loop takes minutes
        tracemalloc.start()
        run(contender, group_ids, arguments.limit)
        result["traced_bytes_a_row"] = tracemalloc.get_traced_memory()[1] / arguments.rows
    return result


def measure_apart(table: str, contender: str, arguments: argparse.Namespace, pin: list[str]) -> dict:
    """`measure` in a process of its own, on one thread."""
    options = {name: str(getattr(arguments, name)) for name in ("rows", "limit", "seed")}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    command = [*pin, sys.executable, __file__, *flags, "--measure", table, contender]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed)


def check_same_work(runs: dict[str, list[dict]]) -> None:
    """Raises RuntimeError where contenders of one table disagree."""
    kept = {name: {result["kept"] for result in results} for name, results in runs.items()}
    first = {result["checksum"] for name in ("loop", "unchanged") for result in runs[name]}
    if len(set.union(*kept.values())) > 1 or len(first) > 1:
        raise RuntimeError(f"contenders kept different rows: {kept}, checksums of loop and unchanged {first}")


def summarise(runs: dict[str, list[dict]]) -> dict[str, dict]:
    """Medians and ranges by contender, and how many times quicker than the loop."""
    summary = {}
    for name, results in runs.items():
        seconds = [result["cpu_seconds"] for result in results]
        memory = {
            key: statistics.median(result[key] for result in results) for key in results[0] if key.endswith("a_row")
        }
        summary[name] = {"cpu_seconds": statistics.median(seconds), "range": [min(seconds), max(seconds)], **memory}
    for entry in summary.values():
        entry["times_as_quick_as_the_loop"] = summary["loop"]["cpu_seconds"] / entry["cpu_seconds"]
    return summary


def print_summaries(summaries: dict[str, dict], title: str) -> None:
    table = Table(title=title)
    table.add_column("table")
    table.add_column("contender")
    for heading in ("CPU s", "range", "x loop", "resident B/row", "traced B/row"):
        table.add_column(heading, justify="right")
    for name, summary in summaries.items():
        for contender, entry in summary.items():
            table.add_row(
                name,
                contender,
                f"{entry['cpu_seconds']:.2f}",
                "{:.2f}-{:.2f}".format(*entry["range"]),
                f"{entry['times_as_quick_as_the_loop']:.1f}",
                f"{entry['resident_bytes_a_row']:.1f}",
                f"{entry['traced_bytes_a_row']:.1f}" if "traced_bytes_a_row" in entry else "",
            )
    console.print(table)


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure, arguments)))
        return
    machine, pin = describe_machine(), pin_command(arguments.core)
    contenders = ("loop", *MODES)
    runs: dict[str, dict[str, list[dict]]] = {table: {name: [] for name in contenders} for table in arguments.only}
    for repetition in range(arguments.repetitions):
        for table, results in runs.items():
            for name in contenders:
                results[name].append(measure_apart(table, name, arguments, pin))
                console.print(
                    f"run {repetition + 1}  {table:13} {name:9} {results[name][-1]['cpu_seconds']:6.2f} CPU s"
                )
            check_same_work(results)
    summaries = {table: summarise(results) for table, results in runs.items()}
    print_summaries(summaries, f"{arguments.rows:,} rows, limit {arguments.limit}, medians of {arguments.repetitions}")
    output = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine | {"numpy": np.__version__},
        "pin": pin,
        "settings": {name: getattr(arguments, name) for name in ("rows", "limit", "repetitions", "seed")},
        "tables": {table: TABLES[table] for table in runs},
        "summary": summaries,
        "repetitions": runs,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(output, indent=1) + "\n")
    console.print(f"written: {arguments.output}")


if __name__ == "__main__":
    main()

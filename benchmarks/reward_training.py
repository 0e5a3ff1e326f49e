"""Speed of reward-model training, side by side: ours, TRL's RewardTrainer, and plain padding. See README.md.

Every contender trains the same pairs from the same weights; CPU seconds of one thread are what is compared, because
they do not change with what else the machine does.
"""

import argparse
import datetime
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from shared import (
    BENCHMARKS,
    PAIRS_FILE,
    Contender,
    bf16_remark,
    check_result,
    describe_machine,
    make_shape,
    pin_command,
    read_pairs,
    run_contender,
    save_real,
    write_result,
    write_token_pairs,
)

MAX_LENGTH = 256
MICRO_BATCHES = (4, 8, 16, 32)
# (warm-up, measured) updates: a run of one contender then takes 20 to 60 seconds on the processor in README.md.
UPDATES = {"S": (2, 20), "L": (1, 3)}
SWEEP_UPDATES = {"S": (1, 8), "L": (1, 2)}
OF_A_MODEL = (1, 2)  # --model, either
CURVE_UPDATES = 50
Say = Callable[[str], None]
console = Console(width=130)  # a log file has no width of its own, and the table needs this much


def parse_arguments(parser: argparse.ArgumentParser, benchmark: str) -> argparse.Namespace:
    """The arguments of this benchmark and of preference_training.py, which may have added its own."""
    parser.add_argument("--shape", choices=sorted(UPDATES), default="S")
    parser.add_argument("--model", type=Path, help="a causal model's folder instead of a shape; a scorer's head is new")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--updates", type=int, help="measured updates a run; by default as many as take 20 to 60 s")
    parser.add_argument("--micro_batches", type=int, nargs="+", default=MICRO_BATCHES, help="which the sweep tries")
    parser.add_argument("--pairs_per_update", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-4, help="TRL's default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, default=1, help="the core every run is pinned to")
    parser.add_argument("--curves", action="store_true", help="compare losses with TRL's instead of speed")
    parser.add_argument("--only", nargs="+", help="names of contenders, to leave the others out")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/BENCHMARK_SHAPE_DTYPE.json")
    parser.add_argument("--cache", type=Path, default=BENCHMARKS / "outputs", help="where models and ids are kept")
    parser.add_argument("--data", type=Path, help="a .jsonl.gz of chosen/rejected; default: the shared real pairs")
    parser.add_argument("--peer_python", default=str(BENCHMARKS.parent / ".venv-bench/bin/python"))
    arguments = parser.parse_args()
    arguments.shape = arguments.model.name if arguments.model else arguments.shape
    name = f"{benchmark}_{arguments.shape}_{arguments.dtype}.json"
    arguments.output = arguments.output or BENCHMARKS / "results" / name
    return arguments


def available_contenders(arguments: argparse.Namespace, curves: bool) -> list[Contender]:
    """The contenders that can run here; says in a line why another cannot."""
    peer, own, sizes = arguments.peer_python, sys.executable, tuple(arguments.micro_batches)
    if curves:
        wanted = [
            Contender("TRL ordered", "trl_reward", "ordered", peer, (8,)),
            Contender("padded", "padded", "default", own, (8,)),
            Contender("ours", "ours", "default", own, (8,)),
        ]
    else:
        wanted = [
            Contender("TRL defaults", "trl_reward", "defaults", peer, (8,)),
            Contender("TRL best", "trl_reward", "best", peer, sizes),
            Contender("padded", "padded", "default", own, sizes),
            Contender("ours", "ours", "default", own, sizes),
        ]
    return that_can_run(wanted, arguments.only)


def that_can_run(wanted: list[Contender], only: list[str] | None) -> list[Contender]:
    """Those of them that are named in `only` (None: all) and can run here; says in a line why another cannot."""
    present = []
    for contender in wanted:
        if only and contender.name not in only:
            continue
        if reason := contender.missing():
            console.print(f"skipped {contender.name}: {reason}")
        else:
            present.append(contender)
    return present


def prepare(arguments: argparse.Namespace, head: str = "classifier") -> dict:
    """The model folder and the file of token ids, made once and kept; delete the folder to make them anew."""
    name = arguments.shape if head == "classifier" else f"{arguments.shape}_{head}"
    folder = arguments.cache / f"{name}_seed{arguments.seed}"
    pairs, report = folder / "pairs.jsonl", folder / "pairs_report.json"
    if not report.exists():
        from transformers import AutoTokenizer  # which --help does not need

        console.print(f"preparing {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        texts = read_pairs(arguments.data or PAIRS_FILE)
        both_sides = [text for pair in texts for text in (pair["chosen"], pair["rejected"])]
        if arguments.model:
            save_real(arguments.model, folder / "model", head, arguments.seed)
        else:
            make_shape(arguments.shape, folder / "model", both_sides, head, arguments.seed)
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        counts = write_token_pairs(texts, tokenizer, pairs, MAX_LENGTH)
        report.write_text(json.dumps(counts, indent=1))
    return {"model": str(folder / "model"), "pairs": str(pairs), "report": json.loads(report.read_text())}


def training_order(number_of_pairs: int, updates: int, pairs_per_update: int, seed: int) -> list[list[int]]:
    """Pair indices of every update: seeded permutations of all pairs, one after the other."""
    generator, flat = random.Random(seed), []
    while len(flat) < updates * pairs_per_update:
        permutation = list(range(number_of_pairs))
        generator.shuffle(permutation)
        flat += permutation
    return [flat[start * pairs_per_update : (start + 1) * pairs_per_update] for start in range(updates)]


def make_spec(arguments: argparse.Namespace, prepared: dict, warmup: int, measured: int) -> dict:
    """A run's spec, but for the variant and the micro-batch, which are the contender's."""
    updates = warmup + measured
    pairs = int(prepared["report"]["pairs_kept"])
    return {
        "model": prepared["model"],
        "pairs": prepared["pairs"],
        "pairs_per_update": arguments.pairs_per_update,
        "updates": updates,
        "warmup_updates": warmup,
        "learning_rate": arguments.learning_rate,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
        "max_length": MAX_LENGTH,
        "order": training_order(pairs, updates, arguments.pairs_per_update, arguments.seed),
    }


def choose_micro_batches(
    contenders: list[Contender], spec: dict, pin: list[str], say: Say
) -> tuple[dict[str, int], dict]:
    """The quickest micro-batch of each contender that may choose, by one short run each; and what was measured."""
    chosen, sweep = {}, {}
    for contender in contenders:
        candidates = [size for size in contender.micro_batches if spec["pairs_per_update"] % size == 0]
        if len(candidates) == 1:
            chosen[contender.name] = candidates[0]
            continue
        speeds = {}
        for size in candidates:
            speeds[size] = run_contender(contender, spec, size, pin)["pairs_per_cpu_second"]
            say(f"sweep  {contender.name:13} micro_batch {size:3}  {speeds[size]:7.2f} pairs/CPU s")
        sweep[contender.name] = speeds
        chosen[contender.name] = max(speeds, key=speeds.get)
    return chosen, sweep


def measure(contenders: list[Contender], spec: dict, chosen: dict, repetitions: int, pin: list[str], say: Say) -> dict:
    """Results of all repetitions by contender; interleaved, so that a slow minute of the machine hits all alike."""
    results: dict[str, list[dict]] = {contender.name: [] for contender in contenders}
    for repetition in range(repetitions):
        for contender in contenders:
            result = run_contender(contender, spec, chosen[contender.name], pin)
            check_result(contender, result, results)
            results[contender.name].append(result)
            speed, seconds = result["pairs_per_cpu_second"], result["cpu_seconds"]
            say(f"run {repetition + 1}  {contender.name:13} {speed:7.2f} pairs/CPU s ({seconds:.1f} s)")
    return results


def summarise(results: dict[str, list[dict]], chosen: dict[str, int]) -> dict[str, dict]:
    """Medians and ranges by contender, each with the ratio of its median speed to every other's."""
    summary = {}
    for name, runs in results.items():
        speeds = [run["pairs_per_cpu_second"] for run in runs]
        summary[name] = {
            "micro_batch": chosen[name],
            "pairs_per_cpu_second": statistics.median(speeds),
            "range": [min(speeds), max(speeds)],
            "tokens_per_cpu_second": statistics.median(run["tokens_per_cpu_second"] for run in runs),
            "peak_memory_mib": statistics.median(run["peak_memory_mib"] for run in runs),
        }
    for entry in summary.values():
        entry["ratio_to"] = {
            name: entry["pairs_per_cpu_second"] / other["pairs_per_cpu_second"] for name, other in summary.items()
        }
    return summary


def compare_losses(contenders: list[Contender], spec: dict, reference: str, pin: list[str], say: Say) -> dict:
    """Losses by contender, with the mean and largest absolute difference from the reference's, update by update."""
    losses, versions = {}, {}
    for contender in contenders:
        result = run_contender(contender, spec, contender.micro_batches[0], pin)
        losses[contender.name], versions[contender.name] = result["losses"], result["versions"]
    differences = {}
    for name in losses:
        if name == reference or reference not in losses:
            continue
        gaps = [abs(mine - its) for mine, its in zip(losses[name], losses[reference], strict=True)]
        differences[name] = {"largest": max(gaps), "mean": statistics.fmean(gaps)}
        say(f"{name} against {reference}: largest {max(gaps):.2e}, mean {statistics.fmean(gaps):.2e} a loss")
    return {"differences": differences, "losses": losses, "versions": versions}


def print_speeds(summary: dict[str, dict], title: str) -> None:
    """The table of medians; a ratio column says how many times the speed of that contender a row has."""
    table = Table(title=title)
    table.add_column("contender")
    for heading in ("micro batch", "pairs/CPU s", "range", "tokens/CPU s", "peak MiB", *(f"x {n}" for n in summary)):
        table.add_column(heading, justify="right")
    for name, entry in summary.items():
        table.add_row(
            name,
            str(entry["micro_batch"]),
            f"{entry['pairs_per_cpu_second']:.2f}",
            "{:.2f}-{:.2f}".format(*entry["range"]),
            f"{entry['tokens_per_cpu_second']:.0f}",
            f"{entry['peak_memory_mib']:.0f}",
            *(f"{ratio:.2f}" for ratio in entry["ratio_to"].values()),
        )
    console.print(table)


def run_speeds(
    arguments: argparse.Namespace, prepared: dict, pin: list[str], contenders: list[Contender], **more
) -> dict:
    """Sweep, repetitions, table; returns what goes into the JSON. `more` goes into the specs."""
    warmup, measured = SWEEP_UPDATES.get(arguments.shape, OF_A_MODEL)
    sweep_spec = make_spec(arguments, prepared, warmup, min(measured, arguments.updates or measured)) | more
    chosen, sweep = choose_micro_batches(contenders, sweep_spec, pin, console.print)
    warmup, measured = UPDATES.get(arguments.shape, OF_A_MODEL)
    spec = make_spec(arguments, prepared, warmup, arguments.updates or measured) | more
    results = measure(contenders, spec, chosen, arguments.repetitions, pin, console.print)
    summary = summarise(results, chosen)
    title = " ".join([*more.values(), f"{arguments.shape}, {arguments.dtype}, {arguments.repetitions} repetitions"])
    print_speeds(summary, f"{title}, medians")
    settings = {key: value for key, value in spec.items() if key not in ("model", "pairs", "order")}
    return {"settings": settings, "sweep": sweep, "summary": summary, "repetitions": results}


def run_curves(
    arguments: argparse.Namespace, prepared: dict, pin: list[str], contenders: list[Contender], updates: int, **more
) -> dict:
    """Losses of the first updates against TRL's, on the same pairs in the same order; returns the JSON's section.

    `more` goes into the spec.
    """
    spec = make_spec(arguments, prepared, 1, updates - 1) | more
    curves = compare_losses(contenders, spec, "TRL ordered", pin, console.print)
    return {"updates": updates, "learning_rate": arguments.learning_rate, **curves}


def write_section(arguments: argparse.Namespace, name: str, content: dict, **always) -> None:
    """Adds a section to the JSON, and what is said `always` beside the sections; one does not overwrite another."""
    output = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    output |= {"shape": arguments.shape, "dtype": arguments.dtype, **always, name: {"date": date, **content}}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_result(arguments.output, output)
    console.print(f"written: {arguments.output}")


def main() -> None:
    arguments = parse_arguments(argparse.ArgumentParser(description=__doc__.splitlines()[0]), "reward_training")
    machine, pin = describe_machine(), pin_command(arguments.core)
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores; {bf16_remark(machine)}; {' '.join(pin) or 'not pinned'}"
    )
    prepared = prepare(arguments)
    console.print("pairs:", prepared["report"])
    contenders = available_contenders(arguments, arguments.curves)
    found = (
        run_curves(arguments, prepared, pin, contenders, CURVE_UPDATES)
        if arguments.curves
        else run_speeds(arguments, prepared, pin, contenders)
    )
    context = {"machine": machine, "pin": pin, "bf16": bf16_remark(machine)}
    write_section(arguments, "curves" if arguments.curves else "speed", context | found, pairs=prepared["report"])


if __name__ == "__main__":
    main()

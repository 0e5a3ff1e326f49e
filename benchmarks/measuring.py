"""Sweep, repetitions and loss curves over contenders; knows nothing of what they train."""

import statistics
from collections.abc import Callable

from contenders import Contender, check_result, run_contender

Say = Callable[[str], None]


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

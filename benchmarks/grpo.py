"""GRPO beside TRL's GRPOTrainer, on the same rollouts of a model's folder: losses, speed, memory, operations, padding.

    .venv/bin/python benchmarks/grpo.py --model outputs/models/SmolLM2-135M-Instruct
    .venv/bin/python benchmarks/grpo.py --model outputs/models/SmolLM2-135M-Instruct --sections curves

First the losses of 8 updates, which must agree in fp32 before anything is timed. See README.md.
"""

import argparse
import datetime
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from shared import (
    BENCHMARKS,
    PAIRS_FILE,
    Contender,
    bf16_remark,
    cut_prompts,
    describe_machine,
    pin_command,
    read_pairs,
    run_contender,
    write_result,
)

PROMPTS, GENERATIONS = 16, 4
REPLY_TOKENS = (8, 96)
TOLERANCE = 1e-5
# two iterations of 4 epochs: ratios and the KL are not trivial then
CURVES = {"iterations": 2, "epochs": 4, "batch": 8, "kl_coef": 0.04}
# TRL's defaults: an update an iteration, no KL
SPEED = {"iterations": 2, "epochs": 1, "batch": 16, "kl_coef": 0.0}
SAME_WORK = ("samples", "tokens", "updates")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a causal model's folder")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--sections", nargs="+", choices=("curves", "speed"), default=["curves", "speed"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--micro_batches", type=int, nargs="+", default=(4, 8, 16), help="which the sweep tries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, default=1, help="the core every run is pinned to")
    parser.add_argument("--output", type=Path, help="default: results/grpo_MODEL.json")
    parser.add_argument("--cache", type=Path, default=BENCHMARKS / "outputs", help="where rollouts are kept")
    parser.add_argument("--data", type=Path, help="a .jsonl.gz of chosen/rejected; default: the shared real pairs")
    parser.add_argument("--peer_python", default=str(BENCHMARKS.parent / ".venv-grpo/bin/python"))
    arguments = parser.parse_args()
    arguments.output = arguments.output or BENCHMARKS / "results" / f"grpo_{arguments.model.name}.json"
    return arguments


def prepare(arguments: argparse.Namespace) -> tuple[Path, dict]:
    """The file of rollouts, sampled once and kept; and what they are."""
    folder = arguments.cache / f"grpo_{arguments.model.name}_seed{arguments.seed}"
    rollouts, report = folder / "rollouts.jsonl", folder / "report.json"
    if not report.exists():
        print(f"preparing {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        given = arguments.data or PAIRS_FILE, GENERATIONS, arguments.seed
        report.write_text(json.dumps(write_rollouts(arguments.model, rollouts, *given), indent=1))
    return rollouts, json.loads(report.read_text())


def write_rollouts(model: Path, path: Path, pairs: Path, generations: int, seed: int) -> dict:
    """Writes JSONL of prompt_ids, reply_ids and score, a group's rows in succession; returns what they are.

    Prompts are beginnings of real texts, replies are sampled; lengths of both are uniform. Scores are normal.
    """
    from lmgym.generation.local_generation import LocalGenerator  # which --help does not need
    from lmgym.generation.protocol import Sampling
    from lmgym.models.forward.policies import load_policy
    from lmgym.models.loading import load_tokenizer

    tokenizer = load_tokenizer(str(model))
    texts = [pair["chosen"] for pair in read_pairs(pairs)]
    prompts = cut_prompts(texts, tokenizer, seed)[:PROMPTS]
    generator = LocalGenerator(load_policy(str(model), tokenizer), tokenizer)
    groups = generator.generate(prompts, generations, Sampling(REPLY_TOKENS[1], 1.0, seed=seed, ends_at_eos=False))
    rng, lengths = np.random.default_rng(seed + 1), []
    with path.open("w", encoding="utf-8") as file:
        for prompt, replies in zip(prompts, groups, strict=True):
            for reply in replies:
                ids = list(reply.ids)[: rng.integers(REPLY_TOKENS[0], REPLY_TOKENS[1] + 1)]
                row = {"prompt_ids": prompt, "reply_ids": ids, "score": float(rng.normal())}
                file.write(json.dumps(row) + "\n")
                lengths.append((len(prompt), len(ids)))
    of_prompts, of_replies = np.array(lengths).T
    return {
        "rows": len(lengths),
        "prompt_tokens": [int(of_prompts.min()), int(of_prompts.max()), float(of_prompts.mean())],
        "reply_tokens": [int(of_replies.min()), int(of_replies.max()), float(of_replies.mean())],
    }


def contenders(arguments: argparse.Namespace, names: tuple[str, ...]) -> list[Contender]:
    """Those of the names. Raises RuntimeError where one cannot run here."""
    sizes = tuple(arguments.micro_batches)
    every = {
        "trl": Contender("trl", "trl_grpo", "best", arguments.peer_python, sizes),
        "trl_defaults": Contender("trl_defaults", "trl_grpo", "defaults", arguments.peer_python, (8,)),
        "ours": Contender("ours", "ours_grpo", "default", sys.executable, sizes),
    }
    for name in names:
        if reason := every[name].missing():
            raise RuntimeError(f"{name}: {reason}")
    return [every[name] for name in names]


def run_curves(arguments: argparse.Namespace, spec: dict, pin: list[str]) -> dict[str, Any]:
    """Losses of every update, and operations. Raises RuntimeError where losses differ in fp32: what follows would
    compare other work.
    """
    results = {}
    for contender in contenders(arguments, ("trl", "ours")):
        results[contender.name] = run_contender(contender, spec | CURVES, CURVES["batch"], pin, "--count")
        print(f"curve  {contender.name}: {len(results[contender.name]['losses'])} updates")
    theirs, own = (results[name]["losses"] for name in ("trl", "ours"))
    gap = max(abs(a - b) for a, b in zip(theirs, own, strict=True))
    print(f"losses differ by at most {gap:.1e}")
    if gap > TOLERANCE and spec["precision"] == "fp32":
        raise RuntimeError(f"losses differ by {gap:.1e}, more than {TOLERANCE:g}: {theirs} and {own}")
    return {"settings": CURVES, "largest_difference": gap, "runs": results, "summary": summarise(results)}


def sweep(arguments: argparse.Namespace, spec: dict, pin: list[str]) -> dict[str, dict[int, dict]]:
    """Speed, memory and operations at every micro-batch, by a run that counts the last."""
    found: dict[str, dict[int, dict]] = {}
    for contender in contenders(arguments, ("trl", "ours")):
        for size in contender.micro_batches:
            result = run_contender(contender, spec, size, pin, "--count")
            found.setdefault(contender.name, {})[size] = {
                "samples_per_cpu_second": result["samples_per_cpu_second"],
                "above_models_mib": result["memory_mib"]["above_models"],
                "product_operations": result["product_operations"],
            }
            print(f"sweep  {contender.name:12} micro_batch {size:2}  {found[contender.name][size]}")
    return found


def run_speed(arguments: argparse.Namespace, spec: dict, pin: list[str]) -> dict[str, Any]:
    """The sweep, interleaved repetitions of the quickest micro-batches, and a run of TRL's defaults."""
    spec = spec | SPEED
    swept = sweep(arguments, spec, pin)
    chosen = {
        name: max(sizes, key=lambda n, of=sizes: of[n]["samples_per_cpu_second"]) for name, sizes in swept.items()
    }
    runs: dict[str, list[dict]] = {}
    for repetition in range(arguments.repetitions):
        for contender in contenders(arguments, ("trl", "ours")):
            size = chosen[contender.name]
            result = run_contender(contender, spec, size, pin)
            result["product_operations"] = swept[contender.name][size]["product_operations"]
            runs.setdefault(contender.name, []).append(result)
            print(f"run {repetition + 1}  {contender.name:12} {result['samples_per_cpu_second']:.3f} samples/CPU s")
    [defaults] = contenders(arguments, ("trl_defaults",))
    runs["trl_defaults"] = [run_contender(defaults, spec, 8, pin)]
    check_same_work(runs)
    medians = {name: median_run(of_name) for name, of_name in runs.items()}
    return {"settings": SPEED, "sweep": swept, "summary": summarise(medians), "runs": runs}


def check_same_work(runs: dict[str, list[dict]]) -> None:
    """Raises RuntimeError where somebody did less."""
    for count in SAME_WORK:
        found = {name: {result[count] for result in of_name} for name, of_name in runs.items()}
        if len(set.union(*found.values())) > 1:
            raise RuntimeError(f"contenders must have the same {count}: {found}")


def median_run(runs: list[dict]) -> dict:
    """The run of the median speed, with the range of all, and the median of memory."""
    speeds = [run["samples_per_cpu_second"] for run in runs]
    found = dict(runs[speeds.index(statistics.median_low(speeds))])
    memory = statistics.median(run["memory_mib"]["above_models"] for run in runs)
    return found | {"range": [min(speeds), max(speeds)], "memory_mib": found["memory_mib"] | {"above_models": memory}}


def summarise(results: dict[str, dict]) -> dict[str, dict]:
    """Speed, memory, padding and operations of each."""
    summary = {}
    for name, result in results.items():
        positions = result["positions"]
        summary[name] = {
            "micro_batch": result["micro_batch"],
            "samples_per_cpu_second": result["samples_per_cpu_second"],
            "range": result.get("range"),
            "peak_mib": result["memory_mib"]["peak"],
            "above_models_mib": result["memory_mib"]["above_models"],
            "padding": 1 - positions["real"] / positions["run"],
            "positions": positions,
            "product_operations": result.get("product_operations"),
            "phases": result["phases"],
        }
        print(name, json.dumps(summary[name]))
    return summary


def main() -> None:
    arguments = parse_arguments()
    machine, pin = describe_machine(), pin_command(arguments.core)
    rollouts, inputs = prepare(arguments)
    output = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    output |= {"model": arguments.model.name, "inputs": inputs}
    sections = {"curves": run_curves, "speed": run_speed}
    spec = {
        "model": str(arguments.model.resolve()),
        "rollouts": str(rollouts.resolve()),
        "num_generations": GENERATIONS,
        "max_new_tokens": inputs["reply_tokens"][1],
        "seed": arguments.seed,
    }
    for precision in arguments.precision:
        for section in arguments.sections:
            measured = sections[section](arguments, spec | {"precision": precision}, pin)
            date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            context = {"date": date, "machine": machine, "bf16": bf16_remark(machine), "pin": pin}
            output.setdefault(precision, {})[section] = {**context, **measured}
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            write_result(arguments.output, output)
            print(f"written: {arguments.output} ({precision}, {section})")


if __name__ == "__main__":
    main()

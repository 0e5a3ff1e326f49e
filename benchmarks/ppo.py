"""Speed and memory of PPO, side by side: ours, TRL's PPOTrainer, and trlx's way. See README.md.

    .venv/bin/python benchmarks/ppo.py                                  # both precisions; writes results/ppo.json
    .venv/bin/python benchmarks/ppo.py --precision fp32 --sections curves

First the loss curves: on replayed rollouts the losses of every update must agree in fp32 before anything is timed.
Then every contender samples for itself, from the same weights and prompts; CPU seconds of one thread are compared.
"""

import argparse
import datetime
import json
import statistics
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
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
    save_real,
    save_shape,
    train_shape_tokenizer,
    write_result,
)

MICRO_BATCHES = (4, 8, 16)
BATCH, NEW_TOKENS = 16, 48
UNFROZEN = 2
CURVE_ITERATIONS = 4
TOLERANCE = 1e-4
# who must agree with whom: the same algorithm from the same weights
CURVES = {
    "trlx_way_own_critic": "trl",  # whose losses the next two are then held against
    "ours_own_critic": "trl",
    "ours_shared_head": "trlx_way_shared_head",
    "ours_hydra": "trlx_way",
}
console = Console(width=130)  # a log file has no width of its own, and the table needs this much


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="S")
    parser.add_argument("--model", type=Path, help="a causal model's folder instead of a shape; other heads are new")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--sections", nargs="+", choices=("curves", "products", "speed"), default=["curves", "speed"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=3, help="measured ones of a run, after one to warm up")
    parser.add_argument("--epochs", type=int, default=4, help="TRL's default")
    parser.add_argument("--micro_batches", type=int, nargs="+", default=MICRO_BATCHES, help="which the sweep tries")
    parser.add_argument("--minibatches", type=int, default=1, help="optimizer updates an epoch; TRL's default is 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, default=1, help="the core every run is pinned to")
    parser.add_argument("--only", nargs="+", help="names of contenders, to leave the others out")
    parser.add_argument("--output", type=Path, help="default: results/ppo.json, or with the model's name")
    parser.add_argument("--cache", type=Path, default=BENCHMARKS / "outputs", help="where models and prompts are kept")
    parser.add_argument("--data", type=Path, help="a .jsonl.gz of chosen/rejected; default: the shared real pairs")
    parser.add_argument("--peer_python", default=str(BENCHMARKS.parent / ".venv-ppo/bin/python"))
    arguments = parser.parse_args()
    name = f"ppo_{arguments.model.name}.json" if arguments.model else "ppo.json"
    arguments.shape = arguments.model.name if arguments.model else arguments.shape
    arguments.output = arguments.output or BENCHMARKS / "results" / name
    return arguments


def available(arguments: argparse.Namespace, section: str, precision: str) -> list[Contender]:
    """The contenders that can run here; prints why others cannot."""
    minibatch = BATCH // arguments.minibatches
    sizes = tuple(size for size in arguments.micro_batches if minibatch % size == 0) or (minibatch,)
    of_trl = sizes if arguments.minibatches == 1 else (minibatch,)  # TRL cannot split one of several minibatches
    peer, own = arguments.peer_python, sys.executable
    wanted = [
        Contender("trl", "trl_ppo", "asked", peer, of_trl),
        Contender("trlx_way", "trlx_way", "hydra", own, sizes),
        *(Contender(f"ours_{v}", "ours_ppo", v, own, sizes) for v in ("own_critic", "shared_head", "hydra")),
    ]
    if section == "curves":
        variants = ("shared_head", "own_critic")
        wanted[2:2] = [Contender(f"trlx_way_{v}", "trlx_way", v, own, sizes) for v in variants]
    elif precision == "bf16":
        wanted.insert(1, Contender("trl_autocast", "trl_ppo", "autocast", peer, of_trl))
    chosen = [c for c in wanted if not arguments.only or c.name in arguments.only]
    for contender in chosen:
        if reason := contender.missing():
            console.print(f"skipped {contender.name}: {reason}")
    return [contender for contender in chosen if not contender.missing()]


def prepare(arguments: argparse.Namespace) -> tuple[Path, dict]:
    """The folder of inputs, made once and kept; delete it to make them anew."""
    folder = arguments.cache / f"ppo_{arguments.shape}_seed{arguments.seed}"
    report = folder / "report.json"
    if not report.exists():
        console.print(f"preparing {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        pairs = arguments.data or PAIRS_FILE
        counts = write_inputs(arguments.model or arguments.shape, folder, pairs, NEW_TOKENS, arguments.seed)
        report.write_text(json.dumps(counts, indent=1))
    return folder, json.loads(report.read_text())


def write_inputs(source: str | Path, folder: Path, pairs: Path, new_tokens: int, seed: int) -> dict:
    """Writes policy/, critic/, reward_model/, value_head.safetensors, rollouts.jsonl; returns what they are.

    Of a shape's name all three models are random, each from a seed of its own; of a causal model's folder only the
    heads of critic and reward model are. They share a tokenizer.
    """
    from lmgym.models.loading import load_config, load_tokenizer  # which --help does not need

    texts = read_pairs(pairs)
    real = isinstance(source, Path)
    tokenizer = None if real else train_shape_tokenizer(source, (t for pair in texts for t in pair.values()))
    for offset, (name, head) in enumerate(
        {"policy": "causal", "critic": "classifier", "reward_model": "classifier"}.items()
    ):
        if real:
            save_real(source, folder / name, head, seed + offset)
        else:
            save_shape(source, folder / name, tokenizer, head, seed + offset)
    config, tokenizer = load_config(str(folder / "policy")), load_tokenizer(str(folder / "policy"))
    write_value_head(folder / "value_head.safetensors", config.hidden_size, seed)
    prompts = cut_prompts([pair["chosen"] for pair in texts], tokenizer, seed)
    ids = range(1 + max(tokenizer.pad_token_id, tokenizer.eos_token_id), config.vocab_size)  # neither is replied
    write_rollouts(folder / "rollouts.jsonl", prompts, ids, new_tokens, seed)
    lengths = [len(prompt) for prompt in prompts]
    return {"prompts": len(prompts), "prompt_tokens": [min(lengths), max(lengths)], "mean": float(np.mean(lengths))}


def write_value_head(path: Path, width: int, seed: int) -> None:
    """Linear(d, 2d) - ReLU - Linear(2d, 1) whose last layer is zero, so that values start at 0."""
    import torch  # which --help does not need
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    first = torch.nn.Linear(width, 2 * width)
    last = {"2.weight": torch.zeros(1, 2 * width), "2.bias": torch.zeros(1)}
    save_file({"0.weight": first.weight.data, "0.bias": first.bias.data, **last}, path)


def write_rollouts(path: Path, prompts: list[list[int]], ids: range, new_tokens: int, seed: int) -> None:
    """Prompts with random replies and normal scores. Contenders that sample read the prompts alone."""
    rng = np.random.default_rng(seed + 1)
    with path.open("w", encoding="utf-8") as file:
        for prompt in prompts:
            reply = rng.integers(ids.start, ids.stop, new_tokens).tolist()
            row = {"prompt_ids": prompt, "reply_ids": reply, "score": float(rng.normal())}
            file.write(json.dumps(row) + "\n")


def make_orders(iterations: int, epochs: int, batch: int, seed: int) -> list[list[list[int]]]:
    """A permutation of the batch for each epoch of each iteration."""
    rng = np.random.default_rng(seed + 2)
    return [[rng.permutation(batch).tolist() for _ in range(epochs)] for _ in range(iterations)]


def make_spec(arguments: argparse.Namespace, folder: Path, precision: str, iterations: int, replay: bool) -> dict:
    """A run's spec, but for the variant and the micro-batch, which are the contender's: runners/ppo_interface.py."""
    paths = {name: str(folder / name) for name in ("policy", "critic", "reward_model")}
    return {
        **paths,
        "value_head": str(folder / "value_head.safetensors"),
        "rollouts": str(folder / "rollouts.jsonl"),
        "replay": replay,
        "precision": precision,
        "iterations": iterations,
        "orders": make_orders(iterations, arguments.epochs, BATCH, arguments.seed),
        "num_layers_unfrozen": UNFROZEN,
        "batch": BATCH,
        "epochs": arguments.epochs,
        "minibatches": arguments.minibatches,
        "new_tokens": NEW_TOKENS,
        "seed": arguments.seed,
    }


def run_curves(arguments: argparse.Namespace, folder: Path, precision: str, pin: list[str]) -> dict:
    """Losses of every update on replayed rollouts, and how far ours are from their peer's.

    Raises RuntimeError where fp32 curves differ: what follows would compare different work.
    """
    spec = make_spec(arguments, folder, precision, CURVE_ITERATIONS, replay=True)
    curves, versions, gaps = {}, {}, {}
    for contender in available(arguments, "curves", precision):
        result = run_contender(contender, spec, contender.micro_batches[-1], pin)
        curves[contender.name] = {loss: result[f"{loss}_losses"] for loss in ("policy", "value")}
        versions[contender.name] = result["versions"]
        console.print(f"curve  {contender.name}: {len(result['policy_losses'])} updates")
    for name, peer in CURVES.items():
        if name in curves and peer in curves:
            pairs = {loss: zip(curves[name][loss], curves[peer][loss], strict=True) for loss in ("policy", "value")}
            gaps[name] = {loss: max(abs(a - b) for a, b in pair) for loss, pair in pairs.items()}
            console.print(f"{precision}: {name} differs from {peer} by at most {gaps[name]}")
            if precision == "fp32" and max(gaps[name].values()) > TOLERANCE:
                raise RuntimeError(f"{name} and {peer} do not train alike: {gaps[name]}; see README.md on conventions")
    return {"iterations": CURVE_ITERATIONS, "largest_differences": gaps, "losses": curves, "versions": versions}


def check_same_work(results: dict[str, list[dict]]) -> None:
    """Raises RuntimeError where somebody did less."""
    for count in ("samples", "tokens", "updates"):
        found = {name: sorted({run[count] for run in runs}) for name, runs in results.items()}
        if len({tuple(counts) for counts in found.values()}) > 1 or any(len(c) > 1 for c in found.values()):
            raise RuntimeError(f"contenders must have the same {count}: {found}")


def sweep(contenders: list[Contender], spec: dict, pin: list[str]) -> dict[str, dict[int, dict]]:
    """One iteration of every contender that may choose at every micro-batch: seconds and memory."""
    found: dict[str, dict[int, dict]] = {}
    for contender in contenders:
        if len(contender.micro_batches) == 1:
            continue
        for size in contender.micro_batches:
            result = run_contender(contender, spec, size, pin)
            speed, memory = result["samples_per_cpu_second"], result["memory_mib"]["above_models"]
            found.setdefault(contender.name, {})[size] = {"samples_per_cpu_second": speed, "above_models": memory}
            console.print(
                f"sweep  {contender.name:16} micro_batch {size:2}  {speed:5.2f} samples/CPU s  {memory:.0f} MiB"
            )
    return found


def summarise(results: dict[str, list[dict]]) -> dict[str, dict]:
    """Medians and ranges by contender, each with the ratio of its median speed and memory to every other's."""
    summary = {}
    for name, runs in results.items():
        speeds = [run["samples_per_cpu_second"] for run in runs]
        summary[name] = {
            "micro_batch": runs[0]["micro_batch"],
            "samples_per_cpu_second": statistics.median(speeds),
            "range": [min(speeds), max(speeds)],
            "samples_per_wall_second": statistics.median(run["samples"] / run["wall_seconds"] for run in runs),
            "above_models_mib": statistics.median(run["memory_mib"]["above_models"] for run in runs),
            "phases": {phase: statistics.median(run["phases"][phase] for run in runs) for phase in runs[0]["phases"]},
        }
    for entry in summary.values():
        entry["speed_to"] = {
            n: entry["samples_per_cpu_second"] / o["samples_per_cpu_second"] for n, o in summary.items()
        }
        entry["memory_to"] = {n: entry["above_models_mib"] / o["above_models_mib"] for n, o in summary.items()}
    return summary


def print_summary(summary: dict[str, dict], title: str) -> None:
    """The table of medians, and where we are slower than a peer."""
    table = Table(title=title)
    table.add_column("contender")
    for heading in ("micro batch", "samples/CPU s", "range", "MiB above models", *(f"x {n}" for n in summary)):
        table.add_column(heading, justify="right")
    for name, entry in summary.items():
        table.add_row(
            name,
            str(entry["micro_batch"]),
            f"{entry['samples_per_cpu_second']:.2f}",
            "{:.2f}-{:.2f}".format(*entry["range"]),
            f"{entry['above_models_mib']:.0f}",
            *(f"{ratio:.2f}" for ratio in entry["speed_to"].values()),
        )
    console.print(table)
    for name, entry in summary.items():
        slower = [peer for peer, ratio in entry["speed_to"].items() if ratio < 1 and not peer.startswith("ours")]
        if name.startswith("ours") and slower:
            console.print(f"SLOWER: {name} than {', '.join(slower)}")


def run_products(arguments: argparse.Namespace, folder: Path, precision: str, pin: list[str]) -> dict:
    """Operations of an iteration's matrix products, at each one's largest micro-batch: what of a ratio is less work."""
    contenders = available(arguments, "speed", precision)
    spec = make_spec(arguments, folder, precision, 1 + arguments.iterations, replay=False)
    found = {
        c.name: run_contender(c, spec, c.micro_batches[-1], pin, "--count")["product_operations"] / arguments.iterations
        for c in contenders
    }
    for name, operations in found.items():
        console.print(f"products  {name:16} {operations / 1e9:.0f} billion operations an iteration")
    return {"iterations": arguments.iterations, "operations": found}


def run_speeds(arguments: argparse.Namespace, folder: Path, precision: str, pin: list[str]) -> dict:
    """Sweep, interleaved repetitions, table; returns what goes into the JSON."""
    contenders = available(arguments, "speed", precision)
    swept = sweep(contenders, make_spec(arguments, folder, precision, 2, replay=False), pin)
    chosen = {c.name: c.micro_batches[0] for c in contenders}
    for name, sizes in swept.items():
        chosen[name] = max(sizes, key=lambda size, of=sizes: of[size]["samples_per_cpu_second"])
    spec = make_spec(arguments, folder, precision, 1 + arguments.iterations, replay=False)
    results: dict[str, list[dict]] = {contender.name: [] for contender in contenders}
    for repetition in range(arguments.repetitions):
        for contender in contenders:
            result = run_contender(contender, spec, chosen[contender.name], pin)
            results[contender.name].append(result)
            speed, seconds = result["samples_per_cpu_second"], result["cpu_seconds"]
            console.print(f"run {repetition + 1}  {contender.name:16} {speed:5.2f} samples/CPU s ({seconds:.1f} s)")
    check_same_work(results)
    summary = summarise(results)
    print_summary(summary, f"{arguments.shape}, {precision}, {arguments.repetitions} repetitions, medians")
    paths = {key: value.removeprefix(f"{folder}/") for key, value in spec.items() if isinstance(value, str)}
    settings = {key: value for key, value in (spec | paths).items() if key != "orders"}
    return {"settings": settings, "sweep": swept, "summary": summary, "repetitions": results}


def main() -> None:
    arguments = parse_arguments()
    machine, pin = describe_machine(), pin_command(arguments.core)
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores; {bf16_remark(machine)}; {' '.join(pin) or 'not pinned'}"
    )
    folder, inputs = prepare(arguments)
    console.print("prompts:", inputs)
    output = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    output |= {"shape": arguments.shape, "inputs": inputs}
    sections = {"curves": run_curves, "products": run_products, "speed": run_speeds}
    for precision in arguments.precision:
        for section in arguments.sections:
            measured = sections[section](arguments, folder, precision, pin)
            date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            context = {"date": date, "machine": machine, "bf16": bf16_remark(machine), "pin": pin}
            output.setdefault(precision, {})[section] = {**context, **measured}
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            write_result(arguments.output, output)
            console.print(f"written: {arguments.output} ({precision}, {section})")


if __name__ == "__main__":
    main()

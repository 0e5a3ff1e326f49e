"""Speed of DPO and KTO, side by side: ours and TRL's DPOTrainer and KTOTrainer. See README.md.

    .venv/bin/python benchmarks/preference_training.py --dtype fp32             # equal losses first, then speed
    .venv/bin/python benchmarks/preference_training.py --losses dpo --only "TRL best" ours --updates 4

Every contender trains the same real pairs from the same weights; KTO trains both sides of a pair as single replies.
CPU seconds are of the measured updates and of the reference's log-probabilities of their pairs, whenever computed.
"""

import argparse
import sys

from reward_training import console, parse_arguments, prepare, run_curves, run_speeds, that_can_run, write_section
from shared import Contender, bf16_remark, describe_machine, pin_command

CURVE_UPDATES = 20
LARGEST_DIFFERENCE = 1e-5  # of a loss in fp32; with more, nothing is timed
DEFAULT_ROWS = 8  # of TRL's micro-batches: pairs of DPO, replies of KTO


def contenders_of_speed(arguments: argparse.Namespace, loss: str) -> list[Contender]:
    """TRL as it comes, TRL at its quickest, with the reference in each update or before them, and ours."""
    peer, sizes = arguments.peer_python, tuple(arguments.micro_batches)
    wanted = [
        Contender("TRL defaults", "trl_preferences", "defaults", peer, (DEFAULT_ROWS // (2 if loss == "kto" else 1),)),
        Contender("TRL best", "trl_preferences", "best", peer, sizes),
        Contender("TRL best, reference first", "trl_preferences", "best_precomputed", peer, sizes),
        Contender("ours", "ours_preferences", "default", sys.executable, sizes),
    ]
    return that_can_run(wanted, arguments.only)


def contenders_of_curves(arguments: argparse.Namespace, loss: str) -> list[Contender]:
    """An update of KTO is one micro-batch: TRL's baseline is that of a micro-batch, ours of the update."""
    size = (arguments.pairs_per_update if loss == "kto" else DEFAULT_ROWS,)
    return [
        Contender("TRL ordered", "trl_preferences", "ordered", arguments.peer_python, size),
        Contender("ours", "ours_preferences", "default", sys.executable, size),
    ]


def without_reference(speed: dict) -> dict[str, float]:
    """Median pairs per CPU second of the updates alone, by contender."""
    return {
        name: sorted(run["pairs"] / (run["cpu_seconds"] - run["reference_cpu_seconds"]) for run in runs)[len(runs) // 2]
        for name, runs in speed["repetitions"].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", nargs="+", choices=("dpo", "kto"), default=("dpo", "kto"))
    arguments = parse_arguments(parser, "preference_training")
    machine, pin = describe_machine(), pin_command(arguments.core)
    prepared = prepare(arguments, "causal")
    console.print(f"{machine['cpu']}; {bf16_remark(machine)}; pairs:", prepared["report"])
    for loss in arguments.losses:
        contenders = contenders_of_curves(arguments, loss)
        if len(that_can_run(contenders, None)) == len(contenders) and not arguments.only:
            curves = run_curves(arguments, prepared, pin, contenders, CURVE_UPDATES, loss=loss)
            write_section(arguments, f"{loss} curves", curves)
            largest = curves["differences"]["ours"]["largest"]
            if arguments.dtype == "fp32" and largest > LARGEST_DIFFERENCE:
                sys.exit(f"{loss}: a loss differs from TRL's by {largest:.1e}; needed: {LARGEST_DIFFERENCE:g}")
        if arguments.curves:
            continue
        speed = run_speeds(arguments, prepared, pin, contenders_of_speed(arguments, loss), loss=loss)
        speed["pairs_per_cpu_second_of_updates"] = without_reference(speed)
        console.print("updates alone:", {name: round(it, 2) for name, it in without_reference(speed).items()})
        write_section(arguments, f"{loss} speed", {"machine": machine, "pin": pin, **speed}, pairs=prepared["report"])


if __name__ == "__main__":
    main()

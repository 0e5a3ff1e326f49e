"""TRL's formulas beside ours, on the same numbers: advantages, corrections of the sampler, losses, gradients.

    .venv/bin/python benchmarks/grpo_formulas.py            # runs TRL and writes results/grpo_formulas.json
    .venv/bin/python benchmarks/grpo_formulas.py --stored   # compares with what that file says of TRL

Cases are in grpo_cases.py. TRL's numbers come from its own trainers, in an environment of their own.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from contenders import BENCHMARKS, Contender, run_contender
from grpo_cases import CASES, Case

RESULTS = BENCHMARKS / "results/grpo_formulas.json"
TOLERANCE = 1e-6


def differences(case: Case, trl: dict[str, Any], ours: dict[str, Any]) -> dict[str, float]:
    """The largest difference of each thing that is compared; TRL pads, so its first tokens of a row are the reply's."""
    found = {}
    for name in case.compared:
        factor = case.factor if name in ("loss", "gradients") else 1.0
        pairs = zip(rows_of(trl[name]), rows_of(ours[name]), strict=True)
        found[name] = max(
            abs(theirs - factor * own)
            for row, own_row in pairs
            for theirs, own in zip(row * len(own_row) if len(row) == 1 else row[: len(own_row)], own_row, strict=True)
        )
    return found


def rows_of(numbers: float | list) -> list[list[float]]:
    """As [rows][numbers]."""
    rows = numbers if isinstance(numbers, list) else [numbers]
    return [row if isinstance(row, list) else [row] for row in rows]


def run(runner: str, python: str = sys.executable) -> dict[str, Any]:
    """The numbers of every case to compare, and the runner's versions. Raises RuntimeError where it cannot run."""
    contender = Contender(runner, runner, "", python, (0,))
    if reason := contender.missing():
        raise RuntimeError(reason)
    found = run_contender(contender, {"cases": [case.spec() for case in CASES]}, 0, [])
    cases = {case.name: {name: found["cases"][case.name][name] for name in case.compared} for case in CASES}
    return {**found, "cases": cases}


def compare(trl: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The largest differences, by case."""
    return {case.name: differences(case, trl["cases"][case.name], ours["cases"][case.name]) for case in CASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stored", action="store_true", help="do not run TRL, but read what it computed")
    parser.add_argument("--peer_python", default=str(BENCHMARKS.parent / ".venv-grpo/bin/python"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    trl = json.loads(arguments.output.read_text()) if arguments.stored else run("trl_formulas", arguments.peer_python)
    found = compare(trl, run("ours_formulas"))
    for name, gaps in found.items():
        print(f"{name:24}", "  ".join(f"{what} {gap:.1e}" for what, gap in gaps.items()))
    if not arguments.stored:
        arguments.output.write_text(json.dumps(trl | {"largest_differences": found}) + "\n")
    if apart := [name for name, gaps in found.items() if max(gaps.values()) > TOLERANCE]:
        sys.exit(f"above {TOLERANCE:g}: {', '.join(apart)}")


if __name__ == "__main__":
    main()

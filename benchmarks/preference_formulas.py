"""TRL's losses over preferences beside ours, on the same log-probabilities: losses and gradients by token.

    .venv/bin/python benchmarks/preference_formulas.py            # runs TRL, writes results/preference_formulas.json
    .venv/bin/python benchmarks/preference_formulas.py --stored   # compares with what that file says of TRL

TRL's numbers come from its trainers' own methods (DPO, KTO, CPO for SimPO and label smoothing, ORPO), in an environment
of their own.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shared import BENCHMARKS, Contender, run_contender, write_result

RESULTS = BENCHMARKS / "results/preference_formulas.json"
TOLERANCE = 1e-6
PAIRS, MOST_TOKENS = 6, 9


@dataclass(frozen=True)
class Case:
    """A loss, in TRL's words and in ours."""

    name: str
    trainer: str
    """dpo, kto, cpo or orpo: TRL's"""
    trl: dict[str, Any]
    """attributes of that trainer"""
    ours: dict[str, Any]
    """fields of LossConfig"""
    equal_lengths: bool = False
    """all chosen replies are as long: TRL's SFT term is a mean over a batch's tokens, ours over those of each reply"""

    def spec(self) -> dict[str, Any]:
        """For the runners trl_preference_formulas and ours_preference_formulas."""
        return {**asdict(self), "replies": make_replies(self.equal_lengths)}


CASES = (
    Case("dpo", "dpo", {"loss_types": ["sigmoid"], "loss_weights": [1.0], "beta": 0.3}, {"loss": "dpo", "beta": 0.3}),
    Case("ipo", "dpo", {"loss_types": ["ipo"], "loss_weights": [1.0], "beta": 0.3}, {"loss": "ipo", "beta": 0.3}),
    Case(
        "dpo with an sft term",
        "dpo",
        {"loss_types": ["sigmoid", "sft"], "loss_weights": [1.0, 0.4], "beta": 0.3},
        {"loss": "dpo", "beta": 0.3, "sft_weight": 0.4},
        equal_lengths=True,
    ),
    Case(
        "smoothed dpo",
        "cpo",
        {"loss_type": "sigmoid", "label_smoothing": 0.2, "beta": 0.3},
        {"loss": "dpo", "beta": 0.3, "label_smoothing": 0.2},
    ),
    Case("kto", "kto", {"beta": 0.3}, {"loss": "kto", "beta": 0.3}),
    Case(
        "weighted kto",
        "kto",
        {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5},
        {"loss": "kto", "beta": 0.3, "liked_weight": 1.5, "disliked_weight": 0.5},
    ),
    Case(
        "simpo",
        "cpo",
        {"loss_type": "simpo", "label_smoothing": 0.0, "beta": 2.0, "simpo_gamma": 0.7},
        {"loss": "simpo", "beta": 2.0, "gamma": 0.7},
    ),
    Case("orpo", "orpo", {"beta": 0.3}, {"loss": "orpo", "odds_weight": 0.3}),
)


def make_replies(equal_lengths: bool) -> dict[str, list]:
    """`logprobs`, `reference`: [reply][token] of chosen and rejected replies in turn; the same of `mismatched` ones."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, MOST_TOKENS, 2 * PAIRS)
    if equal_lengths:
        lengths[::2] = 5
    found = {name: [(-rng.gamma(1.0, 0.8, n)).tolist() for n in lengths] for name in ("logprobs", "reference")}
    # nearer to each other: their mean ratio, a bit above 0, is a baseline that counts
    found["mismatched"] = [(-rng.gamma(1.0, 0.5, n)).tolist() for n in lengths]
    found["mismatched_reference"] = [(-rng.gamma(1.0, 0.8, n)).tolist() for n in lengths]
    return found


def differences(trl: dict[str, Any], ours: dict[str, Any]) -> dict[str, float]:
    """The largest difference of the loss and of the gradients."""
    rows = zip(trl["gradients"], ours["gradients"], strict=True)
    gaps = [abs(a - b) for theirs, own in rows for a, b in zip(theirs, own, strict=True)]
    return {"loss": abs(trl["loss"] - ours["loss"]), "gradients": max(gaps)}


def run(runner: str, python: str = sys.executable) -> dict[str, Any]:
    """The losses and gradients of every case, and the runner's versions. Raises RuntimeError where it cannot run."""
    contender = Contender(runner, runner, "", python, (0,))
    if reason := contender.missing():
        raise RuntimeError(reason)
    return run_contender(contender, {"cases": [case.spec() for case in CASES]}, 0, [])


def compare(trl: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The largest differences, by case."""
    return {case.name: differences(trl["cases"][case.name], ours["cases"][case.name]) for case in CASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stored", action="store_true", help="do not run TRL, but read what it computed")
    parser.add_argument("--peer_python", default=str(BENCHMARKS.parent / ".venv-bench/bin/python"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runner = "trl_preference_formulas"
    trl = json.loads(arguments.output.read_text()) if arguments.stored else run(runner, arguments.peer_python)
    found = compare(trl, run("ours_preference_formulas"))
    for name, gaps in found.items():
        print(f"{name:24}", "  ".join(f"{what} {gap:.1e}" for what, gap in gaps.items()))
    if not arguments.stored:
        write_result(arguments.output, trl | {"largest_differences": found}, "method")
    if apart := [name for name, gaps in found.items() if max(gaps.values()) > TOLERANCE]:
        sys.exit(f"above {TOLERANCE:g}: {', '.join(apart)}")


if __name__ == "__main__":
    main()

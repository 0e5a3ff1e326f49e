"""Debaters trained before a judge that counts a letter: GRPO in self-play and DPO in rounds, three seeds each.

    lmgym demo --output outputs/demo && .venv/bin/python benchmarks/debate_training.py --model outputs/demo/policy/model

The experiments as docs/debate.md prints them: shares of rounds won against the starting policy, before and after.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from shared import RESULTS, ROOT, describe_machine, launch, metrics_of, write_result

EXPERIMENTS = {
    "GRPO in self-play": "lmgym/apps/debate/experiments/debate_letters.py",
    "DPO in rounds": "lmgym/apps/debate/experiments/debate_dpo.py",
}
SEEDS = (0, 1, 2)


def run(name: str, model: Path, seed: int, output: Path) -> dict[str, Any]:
    """Evaluations before and after a run, its last KL and its CPU seconds, start included."""
    seconds = launch(str(ROOT / EXPERIMENTS[name]), model.resolve(), output, ["--seed", seed])
    lines = metrics_of(output)
    evaluations = [line for line in lines if any(key.startswith("eval/") for key in line)]
    before, after = (
        {name: value for name, value in line.items() if name.startswith("eval/")}
        for line in (evaluations[0], evaluations[-1])
    )
    kl = [line["kl/reference"] for line in lines if "kl/reference" in line]
    return {"seed": seed, "before": before, "after": after, "kl": kl[-1] if kl else None, "cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the policy of `make demo`")
    parser.add_argument("--output", type=Path, default=RESULTS / "debate_training.json")
    given = parser.parse_args()
    found = {"machine": describe_machine(), "runs": {}}
    for name in EXPERIMENTS:
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                found["runs"].setdefault(name, []).append(run(name, given.model, seed, Path(folder, "run")))
            print(name, found["runs"][name][-1], flush=True)
            write_result(given.output, found, "world", "rows", "sampler", "method")


if __name__ == "__main__":
    main()

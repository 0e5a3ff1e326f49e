"""PPO on trlx's random walks: three seeds, 160 optimizer steps each, 2,000 samples a policy.

    .venv/bin/python benchmarks/random_walks.py        # writes benchmarks/results/random_walks.json

Graph seed 1000; the experiment as it is (`ppo/experiments/randomwalks.py`), launched as a user launches it on one rank
and thread; its start is the same for all seeds. Settings were chosen on run seeds 101 to 103. Bars: sampled optimality
at least .93 each and .95 on average, greedy at least .98, from a start below .40.
"""

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

import numpy as np
from shared import ROOT, describe_machine, launch, metrics_of, rewards_of, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.environments.random_walks import draw_random_walks
from lmgym.environments.random_walks_model import make_start
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer

SEEDS = (0, 1, 2)
SAMPLES = 100  # of each of the 20 starts


def optimality(folder: Path, graph: int = 1000) -> dict[str, float]:
    """Optimality of a policy's 2,000 samples at temperature 1, and of the 20 likeliest walks."""
    tokenizer = load_tokenizer(str(folder))
    generator = LocalGenerator(load_policy(str(folder), tokenizer), tokenizer, generation_batch_size=500)
    walks = draw_random_walks(graph)
    prompts = [[tokenizer.convert_tokens_to_ids(letter)] for letter in walks.prompts]

    def mean(n: int, sampling: Sampling) -> float:
        found = generator.generate(prompts, n, sampling)
        said = [start + one.text for start, replies in zip(walks.prompts, found, strict=True) for one in replies]
        return float(np.mean(walks.optimality(said)))

    return {"sampled": mean(SAMPLES, Sampling(9, seed=77)), "greedy": mean(1, Sampling(9, temperature=0))}


def run(seed: int, output: Path, start: Path) -> dict[str, float]:
    """A whole run, and what came of it."""
    seconds = launch("ppo/experiments/randomwalks.py", start, output, ["--seed", seed])
    lines = metrics_of(output)
    return {"seed": seed, **optimality(output / "model"), "updates": lines[-1]["step"], "cpu_seconds": seconds} | {
        "rollouts_before_update": rewards_of(lines)  # type: ignore[dict-item]
    }


def main() -> None:
    """Runs all seeds, prints and writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/random_walks.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = make_start(Path(folder) / "start")
        found = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "walks": float(np.mean(draw_random_walks(1000).optimality(draw_random_walks(1000).walks))),
            "start": optimality(start),
            "seeds": [run(seed, Path(folder) / str(seed), start) for seed in SEEDS],
        }
    sampled = [one["sampled"] for one in found["seeds"]]  # type: ignore[index,union-attr]
    found["mean_sampled"] = float(np.mean(sampled))
    write_result(arguments.output, found, "method", "sampler")
    print(f"walks {found['walks']:.3f}, start {found['start']}")
    for one in found["seeds"]:  # type: ignore[union-attr]
        print({k: v for k, v in one.items() if k != "rollouts_before_update"})  # type: ignore[union-attr]
    print(f"mean sampled {found['mean_sampled']:.4f}")


if __name__ == "__main__":
    main()

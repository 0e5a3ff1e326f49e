"""SmolLM2-135M plays Blackjack before and after PPO for an hour of one thread: 30 minutes of two cores.

    .venv/bin/python benchmarks/blackjack_real_model.py --model outputs/models/smollm2-135m --max_updates 440

The prompt is the game's own, written before any run: one line with the hand, and no example. The policy is over the
actions hit and stick (`--policy_over actions`), so that no reply is illegal. Mean return of hands of the same 500 seeds
at temperature 1, and the exact expected return. Other flags are those of
`lmgym/apps/games/experiments/blackjack.py`. Writes benchmarks/results/blackjack_real_model.json.
"""

import argparse
import datetime
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from games import exact_blackjack, load, returns_of
from shared import ROOT, describe_machine, launch, metrics_of, rewards_of, seconds_of, write_result

from lmgym.statistics import mean

HANDS = 500
FLAGS = ("--policy_over", "actions", "--precision", "bf16", "--num_layers_unfrozen", "8", "--learning_rate", "3e-5",
         "--num_rollouts", "256", "--global_batch", "64", "--micro_batch", "32", "--entropy_coef", "0.01",
         "--eval_updates", "9999")  # fmt: skip


def mean_and_interval(values: np.ndarray) -> list[float | None]:
    """Mean, and the ends of its 95% interval."""
    found = mean(values)
    return [found.value, found.low, found.high]


def play(folder: Path, hands: int) -> tuple[np.ndarray, dict[str, object]]:
    """The returns of the hands of seeds 0 to `hands` - 1, and their summary beside the exact return."""
    policy = load(folder)
    returns = np.array(returns_of(policy, "blackjack", "actions", range(hands)))
    return returns, {"return": mean_and_interval(returns), "exact": exact_blackjack(policy, "actions")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--hands", type=int, default=HANDS)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/blackjack_real_model.json")
    arguments, more = parser.parse_known_args()
    torch.set_num_threads(1)
    returns, before = play(arguments.model, arguments.hands)
    print("before", before, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        flags, began = [*FLAGS, *more], time.monotonic()
        launch("lmgym/apps/games/experiments/blackjack.py", arguments.model, output, flags, shown=True)
        seconds, lines, cpu_seconds = time.monotonic() - began, metrics_of(output), seconds_of(output)
        returns_after, after = play(output / "model", arguments.hands)
    print("after", after, flush=True)
    found = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "machine": describe_machine(),
        "flags": flags, "hands": arguments.hands, "training_seconds": seconds,
        "cpu_seconds": cpu_seconds, "updates": lines[-1]["step"], "before": before, "after": after,
        "difference": mean_and_interval(returns_after - returns),
        "rollouts_before_update": rewards_of(lines),
    }  # fmt: skip
    write_result(arguments.output, found, "rows", "method", "sampler", "intervals")
    print("difference", found["difference"], f"{seconds:.0f} s of training")


if __name__ == "__main__":
    main()

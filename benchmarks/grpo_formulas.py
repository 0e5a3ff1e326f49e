"""TRL's formulas beside ours, on the same numbers: advantages, corrections of the sampler, losses, gradients.

    .venv/bin/python benchmarks/grpo_formulas.py            # runs TRL and writes results/grpo_formulas.json
    .venv/bin/python benchmarks/grpo_formulas.py --stored   # compares with what that file says of TRL

TRL's numbers come from its own trainers, in an environment of their own. Log-probabilities and rewards are made up:
drawn so that ratios pass every bound on both sides, lengths differ, some replies are truncated, and a group has equal
rewards.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shared import BENCHMARKS, Contender, run_contender, write_result

RESULTS = BENCHMARKS / "results/grpo_formulas.json"
TOLERANCE = 1e-6
GROUPS, GENERATIONS, MOST_TOKENS = 3, 4, 8
TRUNCATED = (2, 9)
FAILED = (1, 8)

Replies = dict[str, list]
"""logprobs, old, sampler, reference, entropies: [reply][token]; rewards: [reply][function], None where it failed;
truncated: [reply]"""


@dataclass(frozen=True)
class Case:
    """A way to train, in TRL's words and in ours."""

    name: str
    trl: dict[str, Any]
    """of its config, beside those of `make_settings`"""
    ours: dict[str, dict[str, Any]]
    """fields of MethodConfig (method), RewardConfig (reward)"""
    trainer: str = "grpo"
    """grpo or rloo: TRL's"""
    accumulation_steps: int = 1
    overlong_tokens: int = 0
    """TRL's overlong punishment, over the last tokens, is a second reward"""
    on_policy: bool = False
    """old log-probabilities are the present ones"""
    failed: bool = False
    """some rewards failed"""
    compared: tuple[str, ...] = ("advantages", "loss", "gradients")
    factor: float = 1.0
    """by which our loss is smaller, by definition"""

    def replies(self) -> Replies:
        """The replies that are trained on."""
        found = make_replies()
        if self.on_policy:
            found["old"] = found["logprobs"]
        if self.failed:
            found["rewards"] = [[None] if i in FAILED else row for i, row in enumerate(found["rewards"])]
        return found

    def spec(self) -> dict[str, Any]:
        """For the runners trl_formulas and ours_formulas."""
        return {
            "name": self.name,
            "trainer": self.trainer,
            "settings": make_settings(self.trainer) | self.trl,
            "ours": self.ours,
            "accumulation_steps": self.accumulation_steps,
            "overlong_tokens": self.overlong_tokens,
            "corrects_sampler": "vllm_importance_sampling_mode" in self.trl,
            "replies": self.replies(),
        }


def make_settings(trainer: str) -> dict[str, Any]:
    """TRL's settings of every case."""
    settings = {"num_generations": GENERATIONS, "max_completion_length": MOST_TOKENS, "beta": 0.0}
    return settings if trainer == "rloo" else {**settings, "use_bias_correction_kl": False}


def make_replies(seed: int = 0) -> Replies:
    """GROUPS prompts with GENERATIONS replies of 2 to MOST_TOKENS - 1 tokens each; a single reward function."""
    rng = np.random.default_rng(seed)
    count = GROUPS * GENERATIONS
    lengths = rng.integers(2, MOST_TOKENS, count)
    logprobs = [-rng.uniform(0.05, 4, n) for n in lengths]
    spread = {"old": 0.25, "sampler": 0.35, "reference": 0.5}
    found: Replies = {
        name: [(row + rng.normal(0, width, len(row))).astype(np.float32).tolist() for row in logprobs]
        for name, width in spread.items()
    }
    found["logprobs"] = [row.astype(np.float32).tolist() for row in logprobs]
    found["entropies"] = [rng.uniform(0.1, 5, n).astype(np.float32).tolist() for n in lengths]
    rewards = rng.normal(0, 1, count).round(3)
    rewards[-GENERATIONS:] = 0.5  # a group of equal rewards
    found["rewards"] = [[reward] for reward in rewards.tolist()]
    found["truncated"] = [i in TRUNCATED for i in range(count)]
    return found


def ours(method: str, **settings) -> dict[str, dict[str, Any]]:
    """A method of ours without a KL, unless it is given."""
    return {"method": {"method": method, "init_kl_coef": 0.0, **settings}}


ADVANTAGES_ONLY = ("advantages",)
WITH_ENTROPIES = ("advantages", "loss", "gradients", "entropy_gradients")
WITH_CORRECTION = ("advantages", "correction", "loss", "gradients")
SEQUENCE = {"importance_sampling_level": "sequence"}
CASES = (
    Case("grpo", {"loss_type": "grpo"}, ours("grpo")),
    Case("grpo by batch", {"loss_type": "grpo", "scale_rewards": "batch"}, ours("grpo", scale_rewards="batch")),
    Case("grpo, 2 micro-batches", {"loss_type": "grpo"}, ours("grpo"), accumulation_steps=2),
    Case("grpo with KL", {"loss_type": "grpo", "beta": 0.1}, ours("grpo", init_kl_coef=0.1)),
    Case("grpo with delta", {"loss_type": "grpo", "delta": 1.3}, ours("grpo", delta=1.3)),
    Case("grpo, failed rewards", {"loss_type": "grpo"}, ours("grpo"), failed=True, compared=ADVANTAGES_ONLY),
    Case("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, ours("dr_grpo")),
    Case("dr_grpo, 3 micro-batches", {"loss_type": "dr_grpo", "scale_rewards": "none"}, ours("dr_grpo"),
         accumulation_steps=3),
    Case("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}, ours("dapo") | {"reward": {"overlong_penalty": 0.0}}),
    Case("dapo, overlong", {"loss_type": "dapo", "epsilon_high": 0.28},
         ours("dapo") | {"reward": {"overlong_buffer": 0.5}}, overlong_tokens=MOST_TOKENS // 2),
    Case("dapo, truncated masked", {"loss_type": "dapo", "mask_truncated_completions": True},
         ours("grpo", loss_aggregation="token") | {"reward": {"mask_truncated": True}}),
    Case("dapo, 3 micro-batches", {"loss_type": "dapo"}, ours("grpo", loss_aggregation="token"), accumulation_steps=3),
    Case("dapo with KL", {"loss_type": "dapo", "beta": 0.1},
         ours("grpo", loss_aggregation="token", init_kl_coef=0.1)),
    Case("dapo with entropy", {"loss_type": "dapo", "entropy_coef": 0.02},
         ours("grpo", loss_aggregation="token", entropy_coef=0.02), compared=WITH_ENTROPIES),
    Case("gspo", {"loss_type": "grpo", **SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4}, ours("gspo")),
    Case("gspo, wide", {"loss_type": "grpo", **SEQUENCE, "epsilon": 0.05, "epsilon_high": 0.1},
         ours("gspo", epsilon_low=0.05, epsilon_high=0.1)),
    Case("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}, ours("cispo")),
    Case("cispo, narrow", {"loss_type": "cispo", "epsilon_high": 1.2}, ours("cispo", epsilon_high=0.2)),
    Case("sampler, token_truncate",
         {"loss_type": "dapo", "vllm_importance_sampling_mode": "token_truncate",
          "vllm_importance_sampling_clip_max": 1.2},
         ours("grpo", loss_aggregation="token", sampler_correction="token_truncate", sampler_cap=1.2),
         compared=WITH_CORRECTION),
    Case("sampler, sequence_mask",
         {"loss_type": "dapo", "vllm_importance_sampling_mode": "sequence_mask",
          "vllm_importance_sampling_clip_max": 2.0, "beta": 0.1},
         ours("grpo", loss_aggregation="token", sampler_correction="sequence_mask", sampler_cap=2.0, init_kl_coef=0.1),
         compared=WITH_CORRECTION),
    Case("rloo", {"beta": 0.05}, ours("rloo", init_kl_coef=0.05), trainer="rloo", compared=ADVANTAGES_ONLY),
    Case("rloo, failed rewards", {}, ours("rloo"), trainer="rloo", failed=True, compared=ADVANTAGES_ONLY),
    # TRL's ratio is of the whole reply: its gradient is ours where the policy is the one that sampled
    Case("rloo on policy", {}, ours("rloo"), trainer="rloo", on_policy=True, compared=("advantages", "gradients"),
         factor=MOST_TOKENS),
)  # fmt: skip


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
        write_result(arguments.output, trl | {"largest_differences": found}, "method")
    if apart := [name for name, gaps in found.items() if max(gaps.values()) > TOLERANCE]:
        sys.exit(f"above {TOLERANCE:g}: {', '.join(apart)}")


if __name__ == "__main__":
    main()

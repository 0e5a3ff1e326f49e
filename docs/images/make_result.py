"""Draws docs/images/result.svg from benchmarks/results/ppo_world.json: the A/B test, and PPO without a KL penalty.

pip install matplotlib && python docs/images/make_result.py
"""

import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
BLUE, ORANGE, GREY = "#2563eb", "#ea580c", "#6b7280"


def policy_name(path: str) -> str:
    """Short name of a policy of the A/B test, by its path."""
    name = "SFT" if "/policy/model" in path else "PPO"
    return f"{name},\nbest of {path.rsplit(':', 1)[1]}" if path.rsplit(":", 1)[-1].isdigit() else name


def draw_ab_test(axes: plt.Axes, policies: list[dict]) -> None:
    """Bars of conversation length with 95% intervals over users."""
    names = [policy_name(policy["policy"]) for policy in policies]
    figures = [policy["figures"]["conversation length"] for policy in policies]
    values = [figure["value"] for figure in figures]
    spread = [[f["value"] - f["low"] for f in figures], [f["high"] - f["value"] for f in figures]]
    bars = axes.bar(names, values, yerr=spread, capsize=4, width=0.6, color=[GREY, GREY, BLUE, BLUE])
    axes.bar_label(bars, [f"{value:.1f}" for value in values], label_type="center", color="white", fontweight="bold")
    axes.set(title="A/B test: 100 simulated users, 31 days", ylabel="messages per conversation")


def draw_over_optimisation(axes: plt.Axes, runs: list[dict]) -> None:
    """Reward and hidden utility against the distance from the first policy; a thin line for each seed."""
    for number, run in enumerate(runs):
        curve = run["curve"]
        distance = [point["sqrt_kl"] or 0.0 for point in curve]
        for key, colour, name in (
            ("reward", ORANGE, "the scorer (optimised)"),
            ("gold", BLUE, "hidden utility (never seen)"),
        ):
            axes.plot(distance, [p[key] for p in curve], color=colour, lw=1.2, label=None if number else name)
    axes.set(
        title="PPO without a KL penalty, five seeds",
        xlabel="square root of the KL, nats",
        ylabel="mean over held-out replies",
    )
    axes.legend(frameon=False, loc="lower left")


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "lmgym", "font.size": 10, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    results = json.loads((ROOT / "benchmarks/results/ppo_world.json").read_text())
    everyone = results["app"]["policies"]
    shown = [everyone[0], everyone[1], everyone[2], everyone[-1]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    draw_ab_test(left, shown)
    draw_over_optimisation(right, results["hacking"])
    figure.savefig(ROOT / "docs/images/result.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

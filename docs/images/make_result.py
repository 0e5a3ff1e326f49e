"""Draws docs/images/result.svg: the A/B test of `make demo`, and runs that exploit their scorer.

pip install matplotlib && python docs/images/make_result.py
"""

import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
BLUE, ORANGE, GREY = "#2563eb", "#ea580c", "#6b7280"


def policy_name(path: str) -> str:
    """Short name of a policy of the A/B test, by its path."""
    name = "SFT" if "policy/model" in path else "PPO"
    return f"{name},\nbest of {path.rsplit(':', 1)[1]}" if path.rsplit(":", 1)[-1].isdigit() else name


def draw_ab_test(axes: plt.Axes, policies: list[dict]) -> None:
    """Bars of conversation length with 95% intervals over users."""
    names = [policy_name(policy["policy"]) for policy in policies]
    figures = [policy["figures"]["conversation length"] for policy in policies]
    values = [figure["value"] for figure in figures]
    spread = [[f["value"] - f["low"] for f in figures], [f["high"] - f["value"] for f in figures]]
    bars = axes.bar(names, values, yerr=spread, capsize=4, width=0.6, color=[GREY, GREY, BLUE, BLUE])
    axes.bar_label(bars, [f"{value:.1f}" for value in values], label_type="center", color="white", fontweight="bold")
    axes.set(title=f"{policies[0]['users']} simulated users, 31 days", ylabel="messages per conversation")


def draw_exploitation(axes: plt.Axes, runs: list[dict]) -> None:
    """Reward and quality against updates, in spreads of each at the start; a line a run, and where the alarm rings."""
    for number, run in enumerate(runs):
        quality = run["on_fresh_prompts"]
        spread = run["tolerance"] / 0.1  # the tolerance is a tenth of it
        for curve, colour, name in (
            (run["reward"], ORANGE, "reward: the scorer that is optimised"),
            ([(mean - quality[0]) / spread for mean in quality], BLUE, "quality, never optimised"),
        ):
            axes.plot(run["updates"], curve, color=colour, lw=1.2, label=None if number else name)
        if run["rings"]["ours"] >= 0:
            at = run["updates"].index(run["rings"]["ours"])
            label = None if number else "the alarm rings"
            axes.plot(run["updates"][at], (quality[at] - quality[0]) / spread, "o", ms=5, color="black", label=label)
    axes.set(title="PPO on a scorer that likes one word", xlabel="updates", ylabel="standard deviations")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "lmgym", "font.size": 10, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    demo, runs = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("demo", "alarm_real_runs"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    draw_ab_test(left, demo["policies"])
    draw_exploitation(right, [run for run in runs["runs"] if run["kind"] == "word" and "reward" in run])
    figure.savefig(ROOT / "docs/images/result.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

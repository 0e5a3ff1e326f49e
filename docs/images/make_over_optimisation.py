"""Draws docs/images/over_optimisation.svg: hidden utility along the distance from the start, by method and scorer.

pip install matplotlib && python docs/images/make_over_optimisation.py
"""

import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TITLES = {"best_of_n": "best of N", "ppo": "PPO", "grpo": "GRPO"}
COLOURS = ("#93c5fd", "#3b82f6", "#1d4ed8", "#172554", "#16a34a", "#ea580c")


def gains(curve: dict) -> tuple[np.ndarray, np.ndarray]:
    """(root of the KL, gain of gold since the start) of the points whose KL is known."""
    known = [
        (max(p["kl"], 0) ** 0.5, p["gold"] - curve["points"][0]["gold"]) for p in curve["points"] if p["kl"] is not None
    ]
    found = np.array(sorted(known))
    return found[:, 0], found[:, 1]


def draw(axes: plt.Axes, curves: list[dict], colour: str, name: str) -> None:
    """The mean over worlds up to where all of them reach, and each world as a thin line."""
    lines = [gains(curve) for curve in curves]
    for line in lines:
        axes.plot(*line, color=colour, lw=0.5, alpha=0.4)
    d = np.linspace(0, min(line[0][-1] for line in lines), 60)
    axes.plot(d, np.mean([np.interp(d, *line) for line in lines], axis=0), color=colour, lw=2, label=name)


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "lmgym", "font.size": 10, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    found = json.loads((ROOT / "benchmarks/results/over_optimisation.json").read_text())
    curves = [curve for curve in found["curves"] if not curve["kl_weight"]]
    proxies = list(dict.fromkeys(curve["proxy"] for curve in curves))
    figure, panels = plt.subplots(1, len(TITLES), figsize=(11, 3.6), sharey=True, layout="constrained")
    for axes, (method, title) in zip(panels, TITLES.items(), strict=True):
        for proxy, colour in zip(proxies, COLOURS, strict=True):
            own = [curve for curve in curves if (curve["method"], curve["proxy"]) == (method, proxy)]
            if own:
                draw(axes, own, colour, f"{proxy} pairs" if proxy.isdigit() else proxy)
        axes.axhline(0, color="#6b7280", lw=0.5)
        axes.set(title=title, xlabel="root of the KL from the start, nats", ylim=(-1, 0.9))
    panels[0].set_ylabel("gain of hidden utility")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(ROOT / "docs/images/over_optimisation.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

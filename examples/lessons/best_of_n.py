"""Lesson: what the best of N gains, and how far it moves the policy (docs/lesson_best_of_n.md).

Two policies whose replies and probabilities we know. The cook knows four sentences. The poet puts five words in a row
and so has 3.2 million sentences, each of them rare. A reply's value is known, too, so that everything can be computed
exactly and estimates can be compared with it.

python examples/lessons/best_of_n.py [--output FIGURE.svg]
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.lab.curves import best_of_n_kl_exact
from lmgym.scoring.best_of_n_estimates import best_of_n_kl, best_of_n_values

Array = NDArray[np.float64]
SIZES = [2**power for power in range(11)]
POOLS, POOL, REPEATS = 32, 1024, 1000


@dataclass(frozen=True)
class Policy:
    """Values of the different replies, from the worst to the best, and the probability of each."""

    name: str
    values: Array
    probabilities: Array

    def sample(self, rng: np.random.Generator, *shape: int) -> Array:
        """Values of replies drawn from the policy."""
        places = np.searchsorted(np.cumsum(self.probabilities), rng.random(shape))
        return self.values[places.clip(max=len(self.values) - 1)]

    def best_of(self, n: int) -> Array:
        """The probability of each reply to be the best of n: all n are at most this good, but not all are worse."""
        at_most = np.minimum(np.cumsum(self.probabilities), 1.0)
        return at_most**n - np.concatenate([[0.0], at_most[:-1]]) ** n

    def value(self, n: int) -> float:
        """The expected value of the best of n."""
        return float(self.best_of(n) @ self.values)

    def kl(self, n: int) -> float:
        """KL of the best of n from the policy, in nats: the sum of q log(q / p)."""
        q, p = self.best_of(n), self.probabilities
        some = q > 0
        return float((q[some] * np.log(q[some] / p[some])).sum())


def cook() -> Policy:
    """Four sentences, equally likely."""
    return Policy("cook: 4 replies", np.array([-1.5, -0.5, 0.5, 1.5]), np.full(4, 1 / 4))


def poet(rng: np.random.Generator) -> Policy:
    """Five words of twenty each; a sentence is worth the sum of its words, scaled to mean 0 and spread 1."""
    total = np.zeros(1)
    for _ in range(5):
        total = np.add.outer(total, rng.normal(size=20)).ravel()
    values = np.sort((total - total.mean()) / total.std())
    return Policy(f"poet: {len(values):,} replies", values, np.full(len(values), 1 / len(values)))


def mean_and_error(values: Array) -> list[float]:
    """The mean, and its standard error."""
    return [values.mean(), values.std(ddof=1) / np.sqrt(len(values))]


def study(policy: Policy, rng: np.random.Generator) -> Array:
    """Prints a table with a row for each N, and returns its numbers."""
    print(f"\n{policy.name}\n     N |  value    pool   error   again   error |     KL    pool   bound")
    pools, rows = policy.sample(rng, POOLS, POOL), []
    for n in SIZES:
        values = policy.value(n), *mean_and_error(best_of_n_values(pools, pools, n))
        again = mean_and_error(policy.sample(rng, REPEATS, n).max(axis=1))
        distances = policy.kl(n), best_of_n_kl_exact(pools, n), best_of_n_kl(n)
        rows.append(np.round([*values, *again, *distances], 3) + 0.0)
        shown = [f"{number:6.3f}" for number in rows[-1]]
        print(f"{n:6,} | {'  '.join(shown[:5])} | {'  '.join(shown[5:])}")
    print(f"replies drawn: {pools.size:,} in all for 'pool', {REPEATS * sum(SIZES):,} for 'again'")
    return np.array(rows)


def draw(tables: dict[str, Array], path: str) -> None:
    """Value and KL over N: exact ones as lines, those of the pool as dots."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "lmgym", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for (name, table), colour in zip(tables.items(), ("#2563eb", "#ea580c"), strict=True):
        for axis, exact, pool in ((axes[0], 0, 1), (axes[1], 5, 6)):
            axis.plot(SIZES, table[:, exact], color=colour, label=name)
            axis.plot(SIZES, table[:, pool], "o", ms=4, color=colour)
    axes[1].plot(SIZES, table[:, 7], "k--", lw=1, label="log N - (N - 1)/N")
    for axis, title in zip(axes, ("value of the best of N", "KL from the policy, nats"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="N")
        axis.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="the figure, a file .svg or .png; needs matplotlib")
    arguments = parser.parse_args()
    if arguments.output:
        import matplotlib  # noqa: F401  before the work, in case it is missing
    rng = np.random.default_rng(arguments.seed)
    tables = {policy.name: study(policy, rng) for policy in (cook(), poet(rng))}
    gains = np.diff(list(tables.values())[1][:, 0])
    print(f"\nthe poet gains {gains[0]:.2f} from N = 1 to 2, and {gains[-1]:.2f} from 512 to 1,024")
    if arguments.output:
        draw(tables, arguments.output)


if __name__ == "__main__":
    main()

"""Error rates of audits: of 300 audits of scorers without a bias, how many name one.

    python benchmarks/audit_errors.py --audits 300 --output benchmarks/results/audit_errors.json

Scorers that toss coins read the reply alone: a text has one score wherever it stands, drawn anew for each audit. Draws
are uniform, heavy-tailed (Student's t with 2 degrees of freedom), skewed (exponentials of normal draws, and these with
the other sign), or coarse (0, 1 or 2). Of them at most 24 of 300 audits may name a bias.

A scorer of random word weights adds a normal weight for each word of the reply, or takes the mean of the weights. One
wording does pay to it, and so do forms that move its words; biases that rest on words do not, as wordings are drawn at
random: at most 24 of 300 audits may name one of these. Those that name any are counted beside.

An audit has 12 or 40 prompts, drawn from those of examples/data, with two edited replies each, and looks for all biases
and two words.
"""

import argparse
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from shared import write_result

from lmgym.apps.audit.biases import biases
from lmgym.apps.audit.measuring import SMALLEST, measure
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.apps.audit.verdicts import Observed, decide
from lmgym.crossed import crossed_mean

PROMPTS, ALLOWED = (12, 40), 24
BIASES = biases(["certainly", "important"])
ROWS = {bias.name: bias.row for bias in BIASES}
NORMAL = NormalDist()
DRAWS: dict[str, Callable[[float], float]] = {
    "uniform": lambda u: u,
    "heavy tails": lambda u: (2 * u - 1) / (2 * u * (1 - u)) ** 0.5,
    "skewed up": lambda u: float(np.exp(NORMAL.inv_cdf(u))),
    "skewed down": lambda u: -float(np.exp(NORMAL.inv_cdf(u))),
    "coarse ties": lambda u: float(int(3 * u)),
}
WORDS = {"word weights, sum": sum, "word weights, mean": lambda weights: sum(weights) / max(1, len(weights))}
FLIPS = np.random.default_rng(0).choice([-1.0, 1.0], (2000, 200))


def uniform(seed: int, text: str) -> float:
    """In (0, 1), a function of both."""
    digest = hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=7).digest()
    return (int.from_bytes(digest) + 0.5) / 2**56


class TextScorer:
    """A scorer of the reply alone: a coin, or the weights of its words."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.weights: dict[str, float] = {}

    def score(self, conversations: Sequence, replies: Sequence[str]) -> np.ndarray:
        """[replies]."""
        return np.array([self._score(reply) for reply in replies])

    def _score(self, reply: str) -> float:
        if self.kind in DRAWS:
            return DRAWS[self.kind](uniform(self.seed, reply))
        return WORDS[self.kind]([self._weight(word) for word in reply.lower().split()])

    def _weight(self, word: str) -> float:
        if word not in self.weights:
            self.weights[word] = NORMAL.inv_cdf(uniform(self.seed, word))
        return self.weights[word]


def may_be_named(seen: Sequence[Observed], worded: bool) -> bool:
    """False if the p-value of a row is certainly too large for any table, by a quick test."""
    units, values = [one.unit for one in seen], [one.effect for one in seen]
    if worded:
        return crossed_mean(values, units, [one.wording for one in seen]).p <= 0.002
    sums = np.bincount(np.unique(units, return_inverse=True)[1], values)
    flipped = np.abs(FLIPS[:, : len(sums)] @ sums) >= abs(sums.sum()) * (1 - 1e-9)
    return bool(flipped.mean() <= 0.01)


def named(kind: str, prompts: int, seed: int, samples: Sequence[Sample]) -> list[str]:
    """The biases that an audit names."""
    rng = np.random.default_rng([seed, prompts])
    drawn = [samples[i] for i in rng.permutation(len(samples))[:prompts]]
    observed = measure(TextScorer(kind, seed), drawn, BIASES).observed()
    if not any(may_be_named(seen, ROWS[name].wordings > 1) for name, seen in observed.items()):
        return []
    return [effect.bias for effect in decide(observed, list(ROWS.values()), SMALLEST) if effect.biased]


def run(audits: int, kinds: Sequence[str], prompts: Sequence[int]) -> dict[str, dict[str, object]]:
    """By kind of scorer and number of prompts, how many audits name a bias, and which."""
    samples = read_samples(EXAMPLES) + read_samples(EXAMPLES.with_name("helpful_pairs.jsonl"))
    found: dict[str, dict[str, object]] = {}
    for kind in kinds:
        for number in prompts:
            every = [named(kind, number, seed, samples) for seed in range(audits)]
            on_words = [[name for name in names if ROWS[name].wordings > 1] for names in every]
            judged = on_words if kind in WORDS else every
            rows = sorted({name for names in every for name in names})
            found[f"{kind}, {number} prompts"] = {
                "audits": audits,
                "name_a_bias": sum(map(bool, judged)),
                "allowed": ALLOWED * audits / 300,
                "name_any_row": sum(map(bool, every)),
                "by_row": {row: sum(row in names for names in every) for row in rows},
            }
            print(f"{kind}, {number} prompts: {found[f'{kind}, {number} prompts']}", flush=True)
    return found


def main() -> None:
    """Runs all kinds and writes the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=300)
    parser.add_argument("--kinds", nargs="*", default=[*DRAWS, *WORDS], choices=[*DRAWS, *WORDS])
    parser.add_argument("--prompts", nargs="*", type=int, default=list(PROMPTS))
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    found = run(options.audits, options.kinds, options.prompts)
    if options.output:
        write_result(Path(options.output), {"cells": found}, "intervals")


if __name__ == "__main__":
    main()

"""The best of n replies: as a generator, and its value and KL estimated from one pool of samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from lmgym.generation.protocol import Capabilities, Completion, Generator, Progress, Sampling
from lmgym.scoring.scorers import Scorer
from lmgym.text import Conversation, reply_text


def best_of_n_values(proxy: ArrayLike, gold: ArrayLike, n: int) -> NDArray[np.float64]:
    """[prompts] expected gold value of the reply that the proxy likes best of n, out of N samples a prompt.

    proxy, gold: [prompts, N], finite. The mean over all subsets of n samples, which is unbiased:
    sum_i C(i-1, n-1) / C(N, n) gold_(i), where gold_(i) is of the sample with the i-th lowest proxy (Nakano et al.
    2021, appendix I; pass@k of Chen et al. 2021 is the same for gold 0 or 1). Samples that the proxy cannot tell apart
    share their mean. Raises ValueError for n that is not 1 to N, and shapes that differ.
    """
    proxy, gold = np.asarray(proxy, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if proxy.ndim != 2 or proxy.shape != gold.shape:
        raise ValueError(f"proxy is {list(proxy.shape)} and gold {list(gold.shape)}; needed: [prompts, N] both")
    samples = proxy.shape[1]
    if not 1 <= n <= samples:
        raise ValueError(f"the best of {n} out of {samples} samples a prompt; needed: 1 to {samples}")
    order = np.argsort(proxy, axis=1, kind="stable")
    return _share_ties(np.take_along_axis(proxy, order, 1), np.take_along_axis(gold, order, 1)) @ _weights(samples, n)


def best_of_n_kl(n: int) -> float:
    """log n - (n-1)/n in nats: at most so far is the best of n from the policy it chooses from (Stiennon et al. 2020).

    Close to the truth where no reply is likely, too much where some are (Beirami et al. 2024). Raises ValueError for n
    below 1.
    """
    if n < 1:
        raise ValueError(f"the best of {n}; needed: 1 or more")
    return math.log(n) - (n - 1) / n


def _weights(samples: int, n: int) -> NDArray[np.float64]:
    """[samples] C(i-1, n-1) / C(samples, n) for i = 1 to samples; their sum is 1."""
    i = np.arange(1, samples + 1)
    possible = i >= n
    top, below = np.where(possible, i, n), n - 1  # a binomial of too few is 0, and its logarithm is not wanted
    logs = gammaln(top) - gammaln(below + 1) - gammaln(top - below)
    whole = gammaln(samples + 1) - gammaln(n + 1) - gammaln(samples - n + 1)
    return np.where(possible, np.exp(logs - whole), 0.0)


def _share_ties(proxy: NDArray[np.float64], gold: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gold with the mean of each run of equal proxies in place of all of them; both [prompts, N], sorted by proxy."""
    starts = np.ones(proxy.shape, dtype=np.bool_)
    starts[:, 1:] = proxy[:, 1:] != proxy[:, :-1]
    run = np.cumsum(starts.ravel()) - 1
    means = np.bincount(run, weights=gold.ravel()) / np.bincount(run)
    return means[run].reshape(gold.shape)


@dataclass(frozen=True)
class BestOfN:
    """The best of n replies by a scorer, as a generator: a policy made of another one."""

    generator: Generator
    scorer: Scorer
    n: int

    @property
    def capabilities(self) -> Capabilities:
        """Of the generator; log-probabilities are the sampler's, not those of the choice."""
        return self.generator.capabilities

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies, each the best of `self.n` of its own."""
        candidates = self.generator.reply(conversations, n * self.n, sampling, progress)
        owners = [c for c, replies in zip(conversations, candidates, strict=True) for _ in replies]
        scores = self.scorer.score(owners, [reply_text(reply.text) for replies in candidates for reply in replies])
        best = scores.view(len(conversations), n, self.n).argmax(-1).tolist()
        return [
            [replies[group * self.n + place] for group, place in enumerate(places)]
            for replies, places in zip(candidates, best, strict=True)
        ]

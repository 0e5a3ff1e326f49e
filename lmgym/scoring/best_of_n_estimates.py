"""Value and KL of best-of-n, estimated from one pool of samples."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln


def best_of_n_values(proxy: ArrayLike, gold: ArrayLike, n: int) -> NDArray[np.float64]:
    """[prompts] expected gold score of the reply with the highest proxy score among n, from N samples a prompt.

    proxy, gold: [prompts, N], finite. The mean over all subsets of n samples, which is unbiased:
    sum_i C(i-1, n-1) / C(N, n) gold_(i), where gold_(i) is of the sample with the i-th lowest proxy (Nakano et al.
    2021, appendix I; pass@k of Chen et al. 2021 is the same for gold 0 or 1). Samples with equal proxy scores share
    their mean. Raises ValueError for n outside 1 to N and for shapes that differ.
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
    """log n - (n-1)/n in nats: an upper bound on the KL of best-of-n from its policy (Stiennon et al. 2020).

    Tight if every reply is improbable, loose otherwise (Beirami et al. 2024). Raises ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"the best of {n}; needed: 1 or more")
    return math.log(n) - (n - 1) / n


def _weights(samples: int, n: int) -> NDArray[np.float64]:
    """[samples] C(i-1, n-1) / C(samples, n) for i = 1 to samples; their sum is 1."""
    return np.exp(_log_binomial(np.arange(samples), n - 1) - _log_binomial(samples, n))


def _log_binomial(total: ArrayLike, chosen: int) -> NDArray[np.float64]:
    """log C(total, chosen); minus infinity for total < chosen."""
    total = np.asarray(total)
    return gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1)


def _share_ties(proxy: NDArray[np.float64], gold: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gold scores averaged over each run of equal proxy scores; both [prompts, N], sorted by proxy."""
    starts = np.ones(proxy.shape, dtype=np.bool_)
    starts[:, 1:] = proxy[:, 1:] != proxy[:, :-1]
    run = np.cumsum(starts.ravel()) - 1
    means = np.bincount(run, weights=gold.ravel()) / np.bincount(run)
    return means[run].reshape(gold.shape)

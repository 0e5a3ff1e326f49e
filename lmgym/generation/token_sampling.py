"""The next token of many rows, by noise that is a function of each row's seed and position alone.

Inverse transform sampling: one uniform number a row and position goes through the inverse of the cumulative
distribution. So the rest of the batch changes a reply only if rounding moves a boundary across that number.
"""

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.generation.protocol import Sampling

TOP_P_CANDIDATES = 256  # likeliest tokens, enough for most top-p; sorting all takes ten times as long
BLOCK = 128  # probabilities that are summed first
BELOW_1 = 1 - 2.0**-53  # the largest float64 below 1: its product with a sum is less than the sum


def uniforms(seeds: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """float64 in [0, 1) from uint64 seeds and positions, broadcast, by SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = seeds + np.uint64(0x9E3779B97F4A7C15) * np.uint64(position + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def row_seeds(seeds: list[int], n: int) -> np.ndarray:
    """[prompts * n] uint64: the seed of each reply, from its prompt's seed and its number."""
    words = [
        np.random.SeedSequence([seed & (2**63 - 1), j]).generate_state(1, np.uint64)[0]
        for seed in seeds
        for j in range(n)
    ]
    return np.array(words, dtype=np.uint64)


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Logits [rows, vocabulary] with the repetition penalty on the tokens `seen` (bool, same shape)."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def sample_tokens(
    logits: torch.Tensor, penalised: torch.Tensor, sampling: Sampling, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows], by noise [rows] in [0, 1), and their log-probabilities under logits [rows, vocabulary].

    `penalised` are the logits after the repetition penalty, or `logits` itself. Log-probabilities are in fp32, at the
    temperature, before penalty, top-k and top-p.
    """
    scaled = _at_temperature(penalised, sampling)
    unpenalised = scaled if penalised is logits else _at_temperature(logits, sampling)
    if sampling.temperature == 0:
        ids = scaled.argmax(-1)
    elif sampling.top_k == 0 and sampling.top_p == 1:
        ids, logprobs = _draw_from_all(scaled, noise)
        if unpenalised is scaled:
            return ids, logprobs
    else:
        probabilities, likeliest = _likeliest(scaled, sampling)
        ids = likeliest.gather(1, _draw(probabilities, noise)[0][:, None])[:, 0]
    return ids, _logprobs(unpenalised, ids)


def _at_temperature(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    return logits if sampling.temperature in (0, 1) else logits / sampling.temperature


def _logprobs(scaled: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return scaled.gather(1, ids[:, None])[:, 0] - scaled.logsumexp(-1)


def _draw_from_all(scaled: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [rows] drawn from the softmax, and their log-probabilities; one exponential a token."""
    most = scaled.amax(-1, keepdim=True)
    ids, total = _draw((scaled - most).exp_(), noise)
    return ids, (scaled.gather(1, ids[:, None]) - most)[:, 0] - total.log().to(scaled.dtype)


def _likeliest(scaled: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of the likeliest tokens, in falling order, 0 if top-p excludes them; and their ids."""
    vocabulary = scaled.shape[-1]
    count = min(sampling.top_k or TOP_P_CANDIDATES, vocabulary)
    values, ids = scaled.topk(count, dim=-1)
    # top-p applies to the distribution after top-k
    total = values.logsumexp(-1) if sampling.top_k else scaled.logsumexp(-1)
    probabilities = (values - total[:, None]).double().exp()
    if sampling.top_p == 1:
        return probabilities, ids
    if not sampling.top_k and count < vocabulary and bool((probabilities.sum(-1) < sampling.top_p).any()):
        values, ids = scaled.sort(dim=-1, descending=True)
        probabilities = (values - total[:, None]).double().exp()
    before = probabilities.cumsum(-1) - probabilities
    return torch.where(before < sampling.top_p, probabilities, 0.0), ids


def _draw(weights: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows] indices drawn in proportion to weights [rows, columns], and the sums of the weights in float64.

    First a block of columns is drawn, then a column in it: a running sum over a whole vocabulary takes ten times as
    long. The index is the first at which the running sum exceeds a share below 1 of the total, so its weight is not 0.
    """
    rows, columns = weights.shape
    if padding := -columns % BLOCK:
        weights = F.pad(weights, (0, padding))
    blocks = weights.view(rows, -1, BLOCK)
    sums = blocks.sum(-1)
    running = sums.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    target = noise[:, None] * total
    block = torch.searchsorted(running, target, right=True).clamp_(max=running.shape[1] - 1)  # NaN is past the end
    # the position of the target within its block, in [0, 1) but for rounding
    share = target.sub_(running.gather(1, block)).div_(sums.gather(1, block)).add_(1).clamp_(0, BELOW_1)
    within = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(within, share.mul_(within[:, -1:]), right=True)
    return index.add_(block, alpha=BLOCK).clamp_(max=columns - 1)[:, 0], total[:, 0]

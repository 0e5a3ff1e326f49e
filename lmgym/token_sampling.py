"""The next token of many rows at once, by noise that is a function of each row's seed and position alone.

One uniform number a row and position goes through the inverse of the cumulative distribution. So what else is in the
batch changes a reply only where rounding moves a boundary across that number.
"""

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.generation import Sampling

FIRST_LOOK = 256  # the likeliest tokens, enough for most top-p: a sort of all takes ten times as long
BLOCK = 128  # places of the vocabulary that are summed first


def uniforms(seeds: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """[rows] float64 in [0, 1) from uint64 seeds and a position, or one a row, by SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = seeds + np.uint64(0x9E3779B97F4A7C15) * np.uint64(position + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def row_seeds(seeds: list[int], n: int) -> np.ndarray:
    """[prompts * n] uint64: a seed a reply, of its prompt's seed and its number."""
    words = [
        np.random.SeedSequence([seed & (2**63 - 1), j]).generate_state(1, np.uint64)[0]
        for seed in seeds
        for j in range(n)
    ]
    return np.array(words, dtype=np.uint64)


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """[rows, vocabulary] logits, with those of `seen` (bool, same shape) tokens weakened."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def choose(logits: torch.Tensor, sampling: Sampling, noise: torch.Tensor) -> torch.Tensor:
    """[rows] token ids out of logits[rows, vocabulary] (after the penalty) and noise[rows], uniform in [0, 1)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    if sampling.top_k == 0 and sampling.top_p == 1:
        return _draw(scaled.double().softmax(-1), noise)
    values, ids = _likeliest(scaled, sampling)
    return ids.gather(1, _draw(values, noise)[:, None])[:, 0]


def _likeliest(scaled: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of the tokens that top-k and top-p leave, in falling order (0 where they cut), and their ids."""
    vocabulary = scaled.shape[-1]
    look = min(sampling.top_k or FIRST_LOOK, vocabulary)
    values, ids = scaled.topk(look, dim=-1)
    # top-p is of what top-k leaves, else of all
    whole = values.logsumexp(-1) if sampling.top_k else scaled.logsumexp(-1)
    probabilities = (values - whole[:, None]).double().exp()
    if sampling.top_p == 1:
        return probabilities, ids
    if not sampling.top_k and look < vocabulary and bool((probabilities.sum(-1) < sampling.top_p).any()):
        values, ids = scaled.sort(dim=-1, descending=True)
        probabilities = (values - whole[:, None]).double().exp()
    before = probabilities.cumsum(-1) - probabilities
    return torch.where(before < sampling.top_p, probabilities, 0.0), ids


def _draw(weights: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """[rows] places drawn in proportion to weights[rows, places] (float64).

    First a block of places, then a place in it: a running sum over a whole vocabulary takes ten times as long.
    """
    rows, places = weights.shape
    blocks = F.pad(weights, (0, -places % BLOCK)).view(rows, -1, BLOCK)
    sums = blocks.sum(-1)
    block, rest = _find(sums, noise * sums.sum(-1))
    within, _ = _find(blocks[torch.arange(rows, device=weights.device), block], rest)
    return block * BLOCK + within


def _find(weights: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows]: the first place by which the running sum exceeds the target, and what of the target is left there."""
    total = weights.cumsum(-1)
    place = torch.searchsorted(total, target[:, None], right=True)
    if bool((place == weights.shape[1]).any()):  # by rounding: the last place that has any weight
        last = weights.shape[1] - 1 - (weights.flip(-1) > 0).int().argmax(-1, keepdim=True)
        place = torch.minimum(place, last)
    before = total.gather(1, place) - weights.gather(1, place)
    return place[:, 0], (target[:, None] - before)[:, 0].clamp(min=0)  # below 0 only by rounding

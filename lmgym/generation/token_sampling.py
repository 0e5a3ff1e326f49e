"""The next token of many rows at once, by noise that is a function of each row's seed and position alone.

One uniform number a row and position goes through the inverse of the cumulative distribution. So what else is in the
batch changes a reply only where rounding moves a boundary across that number.
"""

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.generation.protocol import Sampling

FIRST_LOOK = 256  # the likeliest tokens, enough for most top-p: a sort of all takes ten times as long
BLOCK = 128  # places of the vocabulary that are summed first
BELOW_1 = 1 - 2.0**-53  # the largest float64 below 1: times any sum it is less than that sum


def uniforms(seeds: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """float64 in [0, 1) from uint64 seeds and positions, side by side, by SplitMix64 (Steele et al. 2014)."""
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


def choose(
    logits: torch.Tensor, weakened: torch.Tensor, sampling: Sampling, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows], by noise[rows] in [0, 1); their log-probabilities under logits[rows, vocabulary] alone.

    `weakened` are the logits after the penalty, or the same tensor. Log-probabilities are at the temperature, before
    top-k and top-p, and in fp32.
    """
    scaled = _heated(weakened, sampling)
    own = scaled if weakened is logits else _heated(logits, sampling)
    if sampling.temperature == 0:
        ids = scaled.argmax(-1)
    elif sampling.top_k == 0 and sampling.top_p == 1:
        ids, logprobs = _draw_from_all(scaled, noise)
        if own is scaled:
            return ids, logprobs
    else:
        weights, likeliest = _likeliest(scaled, sampling)
        ids = likeliest.gather(1, _draw(weights, noise)[0][:, None])[:, 0]
    return ids, _logprobs(own, ids)


def _heated(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    return logits if sampling.temperature in (0, 1) else logits / sampling.temperature


def _logprobs(scaled: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return scaled.gather(1, ids[:, None])[:, 0] - scaled.logsumexp(-1)


def _draw_from_all(scaled: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [rows] and their log-probabilities, by one exponential a token."""
    most = scaled.amax(-1, keepdim=True)
    ids, total = _draw((scaled - most).exp_(), noise)
    return ids, (scaled.gather(1, ids[:, None]) - most)[:, 0] - total.log().to(scaled.dtype)


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


def _draw(weights: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows] places drawn in proportion to weights[rows, places], and the sums of the weights in float64.

    First a block of places, then a place in it: a running sum over a whole vocabulary takes ten times as long. A place
    is the first by which the running sum exceeds a share below 1 of that sum's end: so there is one, and it has weight.
    """
    rows, places = weights.shape
    if fillers := -places % BLOCK:
        weights = F.pad(weights, (0, fillers))
    blocks = weights.view(rows, -1, BLOCK)
    sums = blocks.sum(-1)
    running = sums.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    target = noise[:, None] * total
    block = torch.searchsorted(running, target, right=True).clamp_(max=running.shape[1] - 1)  # NaN has no place
    # where in the block the noise lies, of 1; out of bounds only by rounding
    size = sums.gather(1, block)
    share = target.sub_(running.gather(1, block)).div_(size).add_(1).clamp_(0, BELOW_1)
    within = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    place = torch.searchsorted(within, share.mul_(within[:, -1:]), right=True)
    return place.add_(block, alpha=BLOCK).clamp_(max=places - 1)[:, 0], total[:, 0]

"""Losses of scorers. Each returns (sum, count): the caller divides by the count over ranks and accumulation.

Design decisions:
- Computed in fp32 whatever the scores come in: bf16 has 8 bits for what should be a difference of scores.
- What is missing (label -100, NaN, a masked reply) is not counted and has a gradient of exactly 0; a batch of nothing
  but missing labels is (0, 0), still attached to the graph, since every rank has to run its backward.
- Labels are checked, which waits for a GPU: a wrong one would be a device-side assertion, or learned in silence.
"""

import math

import torch
import torch.nn.functional as F

MISSING = -100  # the integer label that torch's cross entropy ignores
MOST_TIED = 4  # subsets of a tie are enumerated: 15 of 4 replies


def bradley_terry(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    margin: torch.Tensor | None = None,
    centering: float = 0.0,
    weights: torch.Tensor | None = None,
    preference: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log sigma(chosen - rejected - margin), summed over pairs (Bradley and Terry 1952; margin: Touvron et al. 2023).

    chosen, rejected, margin: [pairs]; computed in fp32. `centering` adds its multiple of (chosen + rejected)^2, which
    keeps scores around 0 (Eisenstein et al. 2023). `weights` multiply each pair's loss and leave the count. With a
    `preference` p the loss of a difference d is -p log sigma(d) - (1 - p) log sigma(-d): a tie has p = .5. Raises
    ValueError where the shapes differ.
    """
    tensors = [chosen, rejected] if margin is None else [chosen, rejected, margin]
    _check_shapes(_one_shape(tensors), "bradley_terry takes tensors of one shape", tensors)
    chosen, rejected = chosen.float(), rejected.float()
    difference = chosen - rejected if margin is None else chosen - rejected - margin.float()
    losses = -F.logsigmoid(difference)
    if preference is not None:
        losses = losses + (1 - preference.float()) * difference  # log sigma(d) - log sigma(-d) = d
    if centering:
        losses = losses + centering * (chosen + rejected).square()
    if weights is not None:
        losses = losses * weights
    return losses.sum(), torch.full((), chosen.numel(), device=chosen.device)


def plackett_luce(
    scores: torch.Tensor, ranks: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log likelihood of rankings in nats, summed over groups (Luce 1959, Plackett 1975; Zhu et al. 2023).

    scores, ranks, mask: [batch, k]; rank 1 is the best, gaps mean nothing, mask is True at the replies that exist and
    what stands elsewhere is not read. Tied replies share their place: the mean over all orders of the tied ones. The
    count is that of groups with at least 2 replies. Raises ValueError for shapes that differ, ranks below 1 and more
    than 4 tied replies.

    Reply i costs log sum_j exp(score_j - score_i) over itself and the replies behind it: the worse ones and, of the
    ones tied with it, those that come later in the order. Only their set matters, so there are 2^tied sets to weigh
    rather than tied! orders.
    """
    exists = torch.ones_like(ranks, dtype=torch.bool) if mask is None else mask.bool()
    tensors = [scores, ranks, exists]
    fits = scores.ndim == 2 and _one_shape(tensors)
    _check_shapes(fits, "plackett_luce takes scores, ranks and a mask of one shape [batch, k]", tensors)
    _check_values("ranks", ranks, (ranks >= 1) | ~exists, "1 (the best) or more; mask replies that do not exist")
    both = exists[:, :, None] & exists[:, None, :]
    worse = (ranks[:, None, :] > ranks[:, :, None]) & both
    chance, behind = _sets_of_ties((ranks[:, None, :] == ranks[:, :, None]) & both)
    # every row has its own reply: a logsumexp over nothing is -inf, with a gradient of NaN
    itself = torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)[:, None, :]
    scores = scores.float().masked_fill(~exists, 0.0)
    # differences first: fp32 keeps a small one between large scores
    differences = (scores[:, None, :] - scores[:, :, None])[:, :, None, :]
    contenders = itself | worse[:, :, None, :] | behind
    losses = differences.masked_fill(~contenders, -math.inf).logsumexp(-1)
    return (chance * losses).sum(), (exists.sum(-1) >= 2).sum()


def _sets_of_ties(tied: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sets s of a tie that end it: chance[batch, i, s] that i opens s, and behind[batch, i, s, j], whether j is in s.

    tied: [batch, k, k], symmetric and true on the diagonal of replies that exist. In a random order of m replies each
    set of n of them is the last n with chance 1 / C(m, n), and each of its n replies opens it with chance 1 / n.
    """
    sizes, places = tied.sum(-1), tied.tril(-1).sum(-1)
    largest = max(1, int(sizes.max())) if sizes.numel() else 1
    if largest > MOST_TIED:
        group = (sizes == largest).nonzero()[0, 0].item()
        raise ValueError(
            f"plackett_luce found {largest} replies of one rank in group {group}; needed: at most {MOST_TIED} tied, "
            "whose orders are averaged; rank them more finely or mask some"
        )
    members = [[bool(s >> place & 1) for s in range(1, 2**largest)] for place in range(largest)]
    chances = [
        [1 / (s.bit_count() * math.comb(m, s.bit_count())) if s < 2**m else 0.0 for s in range(1, 2**largest)]
        for m in range(largest + 1)
    ]
    in_set = torch.tensor(members, device=tied.device)[places]
    chance = torch.tensor(chances, device=tied.device)[sizes] * in_set
    return chance, tied[:, :, None, :] & in_set.transpose(1, 2)[:, None, :, :]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-log softmax(logits)[label], summed over rows.

    logits: [batch, classes]; labels: [batch], integers below classes, -100 where missing. Raises ValueError for shapes
    that do not fit and labels out of range.
    """
    fits = logits.ndim == 2 and labels.shape == logits.shape[:1]
    _check_shapes(fits, "cross_entropy takes logits [batch, classes] and labels [batch]", [logits, labels])
    labels = _checked_labels(labels, logits.shape[1])
    total = F.cross_entropy(logits.float(), labels, ignore_index=MISSING, reduction="sum")
    return total, (labels != MISSING).sum()


def multi_label_bce(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Binary cross-entropies of independent labels, summed over entries; the count is of the labels present.

    logits, labels: [batch, labels]; a label is in [0, 1], NaN where missing. weights: [labels] multiply each label's
    loss and leave the count, as torch's own `weight` does under a mean. Raises ValueError for shapes that do not fit
    and labels out of range.
    """
    weights = torch.ones(logits.shape[-1:], device=logits.device) if weights is None else weights.float()
    fits = logits.ndim == 2 and _one_shape([logits, labels]) and weights.shape == logits.shape[1:]
    takes = "multi_label_bce takes logits and labels [batch, labels] and weights [labels]"
    _check_shapes(fits, takes, [logits, labels, weights])
    missing = labels.isnan()
    in_range = (labels >= 0) & (labels <= 1)
    _check_values("labels", labels, in_range | missing, "0 to 1, or NaN where missing")
    targets = labels.float().masked_fill(missing, 0.0)
    losses = F.binary_cross_entropy_with_logits(logits.float(), targets, weights, reduction="none")
    return losses.masked_fill(missing, 0.0).sum(), (~missing).sum()


def regression(scores: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(score - target)^2, summed over entries.

    scores, targets: one shape, in the target's units; a NaN target is missing. Raises ValueError where the shapes
    differ.
    """
    _check_shapes(_one_shape([scores, targets]), "regression takes tensors of one shape", [scores, targets])
    missing = targets.isnan()
    # masked before the square: its derivative at NaN is NaN, and 0 * NaN too
    errors = (scores.float() - targets.float()).masked_fill(missing, 0.0)
    return errors.square().sum(), (~missing).sum()


def _one_shape(tensors: list[torch.Tensor]) -> bool:
    return len({tensor.shape for tensor in tensors}) == 1


def _check_shapes(fits: bool, takes: str, tensors: list[torch.Tensor]) -> None:
    if not fits:
        raise ValueError(f"{takes}; found {', '.join(str(tuple(tensor.shape)) for tensor in tensors)}")


def _check_values(name: str, values: torch.Tensor, allowed: torch.Tensor, needed: str) -> None:
    if not allowed.all():
        wrong = (~allowed).nonzero()
        first = wrong[0].tolist()
        raise ValueError(
            f"{name} holds {len(wrong)} of {values.numel()} values out of range, the first "
            f"{values[tuple(first)].item():g} at index {first}; needed: {needed}"
        )


def _checked_labels(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Labels as int64, which torch's cross entropy asks for."""
    if labels.is_floating_point():
        raise ValueError(f"labels are {labels.dtype}; needed: integers; a quantity belongs in `regression`")
    labels = labels.long()
    in_range = (labels >= 0) & (labels < classes)
    needed = f"0 to {classes - 1} for {classes} classes, or {MISSING} where missing; check num_labels and the data"
    _check_values("labels", labels, in_range | (labels == MISSING), needed)
    return labels

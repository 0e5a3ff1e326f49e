"""Batches of labelled and ranked examples: what counts, what is missing, and that a filler changes nothing."""

import math

import numpy as np
import pytest
import torch

from lmgym.text import share_prefix
from reward_models.objectives import (
    CROSS_ENTROPY,
    MULTI_LABEL_BCE,
    SQUARED_ERROR,
    Labelled,
    LabelledExample,
    Pairwise,
    Ranked,
    RankedExample,
)

NAN = float("nan")


class FakeModel:
    """Only `collate` of a model is asked for."""

    def collate(self, rows, pad_id: int) -> dict:
        return {"rows": rows}


def labelled(criterion, labels, counts=None) -> tuple[Labelled, dict]:
    examples = [LabelledExample(share_prefix([[1, 2, 3]]), np.asarray(label)) for label in labels]
    objective = Labelled(FakeModel(), 0, criterion)  # type: ignore[arg-type]
    return objective, objective.collate(list(zip(examples, counts or [True] * len(labels), strict=True)))


def test_present_bits_are_the_count_and_rows_are_the_items() -> None:
    objective, batch = labelled(MULTI_LABEL_BCE, [[1.0, NAN, 0.0], [NAN, NAN, 1.0]])
    assert (batch["items"], batch["count"], batch["tokens"]) == (2, 3, 6)
    logits = torch.zeros(2, 3)
    total, count = objective.loss(logits, batch)
    assert total.item() == pytest.approx(3 * math.log(2))
    assert count == batch["count"]
    # row 1: logit 0 says no: wrong on 1, right on 0; row 2: wrong
    assert objective.tallies(logits, batch)["label_accuracy"].item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("criterion", "labels", "outputs"),
    [
        (CROSS_ENTROPY, [np.int64(1), np.int64(0)], 2),
        (SQUARED_ERROR, [np.float64(0.5), np.float64(2.0)], 1),
        (MULTI_LABEL_BCE, [[1.0, 0.0], [1.0, 1.0]], 2),
    ],
)
def test_a_filler_counts_for_nothing_and_leaves_a_gradient_of_zero(criterion, labels, outputs) -> None:
    objective, batch = labelled(criterion, labels, [True, False])
    _, alone = labelled(criterion, labels[:1])
    logits = torch.randn(2, outputs, generator=torch.Generator().manual_seed(0), requires_grad=True)
    total, count = objective.loss(logits, batch)
    wanted, _ = objective.loss(logits[:1].detach(), alone)
    assert (batch["items"], batch["tokens"]) == (1, 3)
    assert batch["count"] == alone["count"] == count
    assert total.item() == pytest.approx(wanted.item())
    total.backward()
    assert logits.grad[1].abs().max() == 0
    assert logits.grad[0].abs().max() > 0
    for name, value in objective.tallies(logits.detach(), batch).items():
        assert value.item() == pytest.approx(objective.tallies(logits[:1].detach(), alone)[name].item())


@pytest.mark.parametrize("criterion", [CROSS_ENTROPY, SQUARED_ERROR, MULTI_LABEL_BCE])
def test_a_micro_batch_of_one_filler_has_a_finite_loss_of_zero(criterion) -> None:
    label = {"class": np.int64(1), "number": np.float64(1), "bits": [1.0, 0.0]}[criterion.kind]
    objective, batch = labelled(criterion, [label], [False])
    logits = torch.ones(1, 1 if criterion.kind == "number" else 2, requires_grad=True)
    total, count = objective.loss(logits, batch)
    total.backward()
    assert (total.item(), int(count), batch["count"], batch["items"]) == (0.0, 0, 0, 0)
    assert logits.grad.abs().max() == 0


def ranked(*groups: tuple[int, ...], counts=None) -> tuple[Ranked, dict]:
    examples = [
        RankedExample(share_prefix([[1, 2, 10 + i] for i in range(len(ranks))]), ranks, n)
        for n, ranks in enumerate(groups)
    ]
    objective = Ranked(FakeModel(), 0)  # type: ignore[arg-type]
    return objective, objective.collate(list(zip(examples, counts or [True] * len(groups), strict=True)))


def test_groups_of_different_sizes_share_a_batch() -> None:
    objective, batch = ranked((2, 1), (1, 2, 3))
    scores = torch.tensor([[0.0], [1.0], [2.0], [0.5], [-1.0]])
    total, count = objective.loss(scores, batch)
    first = -math.log(math.e / (math.e + 1))
    weights = [math.exp(s) for s in (2.0, 0.5, -1.0)]
    second = -math.log(weights[0] / sum(weights)) - math.log(weights[1] / sum(weights[1:]))
    assert total.item() == pytest.approx(first + second, rel=1e-5)
    assert int(count) == batch["count"] == batch["items"] == 2
    assert objective.tallies(scores, batch)["top_1_acc"] == 2


def test_the_best_reply_may_be_one_of_several_that_people_tied() -> None:
    objective, batch = ranked((1, 1, 2), (3, 2, 2))
    scores = torch.tensor([[0.0], [5.0], [1.0], [9.0], [0.0], [0.0]])
    assert objective.tallies(scores, batch)["top_1_acc"] == 1


def test_a_group_that_is_a_filler_counts_for_nothing() -> None:
    objective, batch = ranked((2, 1), (1, 2, 3), counts=[True, False])
    scores = torch.tensor([[0.0], [1.0], [2.0], [0.5], [-1.0]], requires_grad=True)
    total, count = objective.loss(scores, batch)
    total.backward()
    assert int(count) == batch["count"] == batch["items"] == 1
    assert batch["tokens"] == 4
    assert scores.grad[2:].abs().max() == 0
    assert scores.grad[:2].abs().max() > 0
    assert objective.tallies(scores.detach(), batch)["top_1_acc"] == 1


def test_pairs_count_as_items() -> None:
    from reward_models.data import PairExample

    pair = PairExample(share_prefix([[1, 2], [1, 3]]), 0.0, 0, (1, 1))
    batch = Pairwise(FakeModel(), 0).collate([(pair, True), (pair, False)])  # type: ignore[arg-type]
    assert (batch["items"], batch["count"], batch["tokens"]) == (1, 1, 3)

"""benchmarks/sft_packing.py: all ways train the same targets, and padding is counted as worked out by hand."""

from pathlib import Path

import pytest
import torch
from sft_packing import cut, labelled, packed_loss, padded_loss, padding_share
from transformers import AutoModelForCausalLM

from lmgym.models.forward.policies import PolicyModel
from lmgym.text import Conversation, Replies
from sft.tokenization import Example


def row(ids: list[int], spans: list[tuple[int, int]], ends: list[int]) -> Example:
    return Example(Replies([], [ids]), tuple(spans), tuple(ends), Conversation(()), "", 0)


ROWS = [
    row([5, 6, 7, 8], [(2, 4)], [9]),
    row([10, 11, 12, 13, 14, 15, 16], [(1, 3), (5, 7)], [4, 3]),
    row([7, 8], [(1, 2)], [6]),
]


def test_the_rows_that_TRL_is_given_have_the_loss_of_ours(small_models: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(small_models["llama"])
    ours = packed_loss(PolicyModel(model), ROWS).item()
    assert padded_loss(model, ROWS, 0).item() == pytest.approx(ours, rel=1e-5)
    total = 0.0
    for given in (labelled(one, 0) for one in ROWS):
        ids, labels = torch.tensor([given["input_ids"]]), torch.tensor([given["labels"]])
        total += model(input_ids=ids, labels=labels).loss.item() * (labels != -100).sum().item()
    assert total == pytest.approx(ours, rel=1e-5)


def test_padding_is_the_share_of_slots_without_a_token() -> None:
    assert [[len(one.ids) for one in batch] for batch in cut(ROWS, 2, by_length=True)] == [[7, 4], [2]]
    assert padding_share(ROWS, 2, by_length=False) == pytest.approx(3 / 16)
    assert padding_share(ROWS, 1, by_length=False) == 0

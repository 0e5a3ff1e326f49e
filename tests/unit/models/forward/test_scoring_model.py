"""Packed rows against the plain padded forward of the same weights: the same scores and the same gradients."""

import copy
from collections.abc import Sequence

import pytest
import torch
from families import three_families
from transformers import AutoConfig, AutoModelForSequenceClassification

from lmgym.errors import InputError
from lmgym.models.forward.packed_rows import (
    PackedRows,
    pack_last_tokens,
    pack_places,
    pack_replies,
    pack_rows,
    pad_right,
)
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.text import Replies
from lmgym.training.setup import CHECKPOINTING

VOCABULARY, PAD = 97, 0
SETTINGS = three_families(3)
FAMILIES = tuple(SETTINGS)


def plain_model(family: str, **settings):
    """A classifier whose weights are large enough for every token to matter to the score."""
    ids = {"pad_token_id": PAD, "eos_token_id": 1, "bos_token_id": 2}
    config = AutoConfig.for_model(family, vocab_size=VOCABULARY, num_labels=1, **ids, **SETTINGS[family] | settings)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0) if parameter.ndim == 2 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def blocks_of(model):
    """The layers of the trunk."""
    trunk = getattr(model, model.base_model_prefix)
    return trunk.h if hasattr(trunk, "h") else trunk.layers


def rows_of(shapes: Sequence[tuple[int, Sequence[int]]], seed: int = 0) -> list[Replies]:
    """Random ids for (prefix length, suffix lengths)."""
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()

    return [Replies(ids(prefix), [ids(length) for length in suffixes]) for prefix, suffixes in shapes]


SHAPES = {
    "pairs": [(9, (4, 7)), (3, (5, 5)), (17, (1, 12)), (6, (8, 2))],
    "single replies": [(9, (4,)), (3, (11,)), (1, (1,))],
    "four replies": [(9, (4, 7, 1, 3)), (2, (1, 1, 1, 1))],
    "mixed": [(9, (4,)), (5, (2, 3, 4, 5)), (12, (1, 6))],
    "no prefix": [(0, (4, 7)), (0, (1, 3)), (8, (2, 2))],
    "suffixes of one token": [(9, (1, 1)), (0, (1, 1)), (0, (1,))],
    "one row": [(5, (2, 3))],
    "very unequal rows": [(40, (9, 5)), (1, (2, 2)), (20, (1, 1)), (3, (3,))],
    "a single reply without a prefix beside two": [(0, (9,)), (0, (4, 5)), (4, (2, 3)), (0, (9,))],
}


def plain_scores(model, rows: Sequence[Replies]) -> torch.Tensor:
    return model(**pad_right(rows, PAD)).logits[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_scores_and_all_gradients_are_those_of_the_plain_forward(family: str, shapes: str, checkpointing: bool) -> None:
    plain, rows = plain_model(family), rows_of(SHAPES[shapes])
    inner = copy.deepcopy(plain)
    layers_run = []
    blocks_of(inner)[-1].mlp.register_forward_pre_hook(lambda *_: layers_run.append(1))
    if checkpointing:
        inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
        inner.train()  # where dropout is 0; checkpointing is for training only
    ours = ScoringModel(inner)
    layers_run.clear()
    expected, scores = plain_scores(plain, rows), ours(pack_replies(rows))[:, 0]
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    if len(expected) > 2:
        assert expected.std() > 0.05  # weights that tell replies apart

    weights = torch.linspace(-1, 2, len(expected))
    (expected * weights).sum().backward()
    (scores * weights).sum().backward()
    assert len(layers_run) == (2 if checkpointing else 1)  # the layer ran again in the backward
    theirs = dict(plain.named_parameters())
    everything = torch.cat([p.grad.flatten() for p in theirs.values()]).norm()
    for name, parameter in inner.named_parameters():
        error = (parameter.grad - theirs[name].grad).norm()
        assert error <= 1e-5 * theirs[name].grad.norm() + 1e-6 * everything, name


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_in_bf16_are_close_to_those_in_fp32(family: str) -> None:
    rows, model = rows_of(SHAPES["pairs"]), plain_model(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.div_(2.0)
        expected = plain_scores(model, rows)
        ours = ScoringModel(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = ours(pack_replies(rows))[:, 0].float()
    assert expected.std() > 0.05
    assert (scores - expected).abs().max() < 2e-2 * max(1.0, expected.abs().max().item())
    assert not torch.equal(scores, expected)  # bf16 was at work


def visible(batch: PackedRows) -> list[set[int]]:
    """The tokens that each token sees."""
    begins = [sum(batch.lengths[:segment]) for segment in range(len(batch.lengths))]
    whole: list[list[int]] = []
    seen = []
    for begin, length, prefix in zip(begins, batch.lengths, batch.prefixes, strict=True):
        before = whole[prefix] if prefix >= 0 else []
        seen += [{*before, *range(begin, begin + place + 1)} for place in range(length)]
        whole.append([*before, *range(begin, begin + length)])
    return seen


def test_packed_replies_by_hand() -> None:
    batch = pack_replies([Replies([10, 11], [[20], [30, 31]]), Replies([], [[40, 41]])])
    assert batch.ids.tolist() == [10, 11, 20, 30, 31, 40, 41]
    assert batch.positions.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert batch.places.tolist() == [2, 4, 6]
    # the second suffix sees the prefix and itself
    assert visible(batch) == [{0}, {0, 1}, {0, 1, 2}, {0, 1, 3}, {0, 1, 3, 4}, {5}, {5, 6}]
    assert [batch.ids[span].tolist() for span in batch.spans()] == [[10, 11], [10, 11, 20], [10, 11, 30, 31], [40, 41]]
    alone = pack_replies([Replies([10, 11], [[20]])])
    assert (alone.lengths, alone.prefixes, alone.places.tolist()) == ((3,), (-1,), [2])


def test_packed_rows_and_places_by_hand() -> None:
    batch = pack_rows([[1, 2, 3], [4, 5, 6, 7]], [1, 2])
    assert batch.ids.tolist() == [1, 2, 4, 5, 6]
    assert batch.positions.tolist() == [0, 1, 0, 1, 2]
    assert batch.places.tolist() == [1, 3, 4]
    assert pack_last_tokens([[1, 2, 3], [4]]).places.tolist() == [2, 3]
    assert pack_places([[1, 2, 3], [4, 5]], [[0, 2], [1]]).places.tolist() == [0, 2, 4]


def test_right_padding_by_hand() -> None:
    padded = pad_right([Replies([10, 11], [[20], [30, 31]]), Replies([], [[40]])], PAD)
    assert padded["input_ids"].tolist() == [[10, 11, 20, 0], [10, 11, 30, 31], [40, 0, 0, 0]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


def test_unpacked_on_request_gives_the_same_scores() -> None:
    rows, model = rows_of(SHAPES["pairs"]), plain_model("llama")
    expected = plain_scores(model, rows)
    ours = ScoringModel(model, packed=False)
    torch.testing.assert_close(ours(**ours.collate(rows, PAD))[:, 0], expected, rtol=0, atol=1e-6)


def test_an_encoder_is_padded_and_a_window_is_packed() -> None:
    bert = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model("bert", vocab_size=VOCABULARY, num_labels=1, pad_token_id=PAD, **bert)
    encoder = AutoModelForSequenceClassification.from_config(config)
    sliding = plain_model("qwen3", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert not ScoringModel(encoder).packed
    with pytest.raises(InputError, match="--packed: bert is an encoder; needed: a decoder, or no --packed"):
        ScoringModel(encoder, packed=True)
    rows = rows_of(SHAPES["very unequal rows"])
    assert ScoringModel(sliding).packed
    torch.testing.assert_close(
        ScoringModel(sliding)(pack_replies(rows))[:, 0], plain_scores(sliding, rows), atol=1e-5, rtol=0
    )

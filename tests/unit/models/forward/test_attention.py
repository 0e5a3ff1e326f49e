"""Attention of packed rows: which function computes a layer, what it holds, and models by blocks of queries."""

from collections.abc import Callable

import pytest
import torch
from families import FAMILIES, OTHERS, alone, build, random_rows
from test_family_forwards import apart, same_gradients

from lmgym.models import attention_blocks as blocks
from lmgym.models.activations import PeakBytes
from lmgym.models.forward import attention
from lmgym.models.forward.attention import attend
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.layer_attention import LayerAttention

LENGTHS = (70, 41, 8, 8, 1)  # of rows: the longest has several blocks of a head's width, which is 8 or 16
SOFT_CAP = LayerAttention(0.3, softcap=2.0)


def states(tokens: int, heads: int, key_heads: int) -> list[torch.Tensor]:
    """Queries, keys and values [1, T, .., 16]."""
    torch.manual_seed(0)
    return [torch.randn(1, tokens, n, 16, requires_grad=True) for n in (heads, key_heads, key_heads)]


@pytest.fixture
def counted(monkeypatch) -> Callable[[], int]:
    """How many blocks of more than one there were, where blocks are as small as they can be."""
    many: list[int] = []
    of_queries = blocks._blocks

    def count(*given):
        found = list(of_queries(*given))
        many.append(len(found))
        return found

    monkeypatch.setattr(blocks, "BLOCK_SCORES", 1)
    monkeypatch.setattr(blocks, "_blocks", count)
    return lambda: max(many, default=0)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "wide heads"])
def test_packed_rows_of_a_model_are_each_of_them_alone(name: str, counted, family_tokenizer, monkeypatch) -> None:
    family = next(f for f in (*FAMILIES, *OTHERS) if f.name == ("gemma" if name == "wide heads" else name))
    changes = {"head_dim": 320, "max_position_embeddings": 1024} if name == "wide heads" else {}
    lengths = (700, *LENGTHS[1:]) if changes else LENGTHS
    if changes:  # as on a GPU, where flash attention has no heads above 256; a CPU's has
        monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: 0)
    model = build(family, family_tokenizer, **changes)
    rows = random_rows(len(family_tokenizer), lengths)
    places = [sorted({0, len(row) // 2, len(row) - 1}) for row in rows]
    policy = PolicyModel(model)
    found = policy(**policy.collate(rows, places))
    assert policy.packed
    assert counted() > 2
    wanted = torch.cat([alone(model, row)[own] for row, own in zip(rows, places, strict=True)])
    assert apart(found, wanted) < 1e-5 * max(1, wanted.abs().max().item())
    same_gradients(found, wanted, dict(model.named_parameters()))


def peak(layer: LayerAttention, tokens: int, backward: bool = True) -> int:
    """Bytes beside queries, keys and values."""
    query, key, value = states(tokens, 2, 1)
    with PeakBytes([query, key, value]) as count:
        found = attend(query, key, value, layer)
        if backward:
            found.sum().backward()
        return count.begin()


@pytest.mark.parametrize(
    "layer",
    [SOFT_CAP, LayerAttention(0.3, sinks=torch.ones(2)), LayerAttention(0.3, 300), LayerAttention(0.3, 300, 2.0)],
    ids=["soft cap", "sinks", "window", "soft cap and window"],
)
def test_memory_doubles_with_twice_the_tokens(layer: LayerAttention, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SCORES", 1)
    assert peak(layer, 1024) < 2.1 * peak(layer, 512)
    assert peak(layer, 1024) < 1024 * 1024 * 4


def test_weights_of_dropout_are_all_held_and_zero_at_its_rate() -> None:
    assert peak(LayerAttention(0.3, softcap=2.0, dropout=0.5), 512) > 512 * 512 * 4 * 2
    tokens = 400
    query, key = torch.zeros(1, tokens, 2, 8), torch.zeros(1, tokens, 2, 8)
    found = attend(query, key, torch.ones(1, tokens, 2, 1), LayerAttention(1.0, softcap=2.0, dropout=0.25))
    assert found[0, tokens // 2 :].mean() == pytest.approx(1, abs=0.02)
    assert found[0, tokens // 2 :].std() == pytest.approx((0.25 / 0.75 / (0.75 * tokens)) ** 0.5, rel=0.3)


def test_torch_computes_what_it_has_a_kernel_for(monkeypatch) -> None:
    in_blocks: list[tuple] = []
    monkeypatch.setattr(attention, "attend_in_blocks", lambda *given: in_blocks.append(given) or torch.empty(0))
    query, key, value = states(32, 4, 2)
    attend(query, key, value, LayerAttention(1.0))
    attend(query, key, value, LayerAttention(1.0, window=8))  # a mask of 32 x 32, less than the queries
    attend(query[:, -8:], key, value, LayerAttention(1.0))
    assert in_blocks == []
    attend(query, key, value[..., :8], LayerAttention(1.0))  # values of another width
    assert len(in_blocks) == 1

"""The flash kernel beside attention in fp32, segment by segment. Every test skips itself without a GPU."""

import pytest
import torch

from lmgym.models.forward.attention import VARLEN, RowAttention, _flash_attention
from lmgym.models.forward.packed_rows import pack_last_tokens, pack_replies
from lmgym.models.layer_attention import LayerAttention
from lmgym.text import share_prefix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif("window_size" not in VARLEN, reason="this torch has no such kernel"),
]

ROWS = {
    "rows": pack_last_tokens([list(range(5, 5 + n)) for n in (1, 7, 64, 130, 3)]),
    "shared prefixes": pack_replies([share_prefix([[*range(5, 45), 9 + i, 8], [*range(5, 45), 30]]) for i in range(5)]),
}


@pytest.mark.parametrize("window", [None, 1, 16])
@pytest.mark.parametrize("key_heads", [6, 2, 1])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_outputs_and_gradients_are_those_of_attention_in_fp32(rows, key_heads: int, window: int | None) -> None:
    torch.manual_seed(0)
    given = [torch.randn(len(rows.ids), heads, 32, device="cuda") for heads in (6, key_heads, key_heads)]
    layer, on_gpu = LayerAttention(32**-0.5, window), rows.to("cuda")
    exact = [states.to(torch.bfloat16).float().requires_grad_() for states in given]
    half = [states.to(torch.bfloat16).requires_grad_() for states in given]
    expected = RowAttention(on_gpu)(*exact, layer)
    found = _flash_attention(*half, layer, on_gpu.varlen)
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (found.float() * weights).sum().backward()
    for one, other in zip(half, exact, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, rtol=0.05, atol=0.1)

"""Products by whichever library, beside torch's own."""

from pathlib import Path

import pytest
import torch
from runners.products import CountProducts
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.models.causal_rows import lay, run_layers
from lmgym.models.fast import families
from lmgym.models.fast.families import family_of
from lmgym.models.fast.products import WIDE, added_product, least_width_by_onednn, product


@pytest.mark.parametrize(("rows", "wide", "inner"), [(256, 300, 257), (64, 512, 128), (63, 512, 128), (256, 8, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_torchs(rows: int, wide: int, inner: int, biased: bool) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(rows, inner), torch.randn(wide, inner)
    bias = torch.randn(wide) if biased else None
    expected = torch.nn.functional.linear(inputs, weight, bias)
    for given in (weight, weight.t().contiguous().t(), torch.cat([weight, weight], 1)[:, :inner]):
        torch.testing.assert_close(product(inputs, given, bias), expected, rtol=1e-4, atol=1e-4)


def test_it_goes_by_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr("lmgym.models.fast.products.least_width_by_onednn", lambda: 0)
    weight = torch.randn(256, 256)
    product(torch.randn(64, 256), weight)
    assert len(asked) == 1
    product(torch.randn(63, 256), weight)  # few rows, a part of a matrix, another type: torch's own
    product(torch.randn(64, 128), torch.randn(512, 256)[:, :128])
    product(torch.randn(64, 256).double(), weight.double())
    monkeypatch.setattr("lmgym.models.fast.products.least_width_by_onednn", lambda: 257)
    product(torch.randn(64, 256), weight)
    assert len(asked) == 1
    product(torch.randn(64, 256), torch.randn(257, 256))
    assert len(asked) == 2
    assert least_width_by_onednn() in (0, WIDE, float("inf"))


@pytest.mark.parametrize(("capability", "width"), [("AVX512", 0), ("AVX2", WIDE), ("DEFAULT", float("inf"))])
def test_processors_of_amd_go_by_their_vectors(capability: str, width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(Path, "read_text", lambda _: "vendor_id : AuthenticAMD")
    assert least_width_by_onednn.__wrapped__() == width
    monkeypatch.setattr(Path, "read_text", lambda _: "vendor_id : GenuineIntel")
    assert least_width_by_onednn.__wrapped__() == float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_add_up_in_fp32(dtype: torch.dtype) -> None:
    left, right = torch.randn(32, 5).to(dtype), torch.randn(32, 7).to(dtype)
    total = None
    for rows in (slice(0, 16), slice(16, 32)):
        total = added_product(total, left[rows], right[rows])
    assert total.dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(total, left.float().t() @ right.float(), rtol=tolerance, atol=tolerance)


def test_a_layer_by_blocks_is_counted_as_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    family = family_of(AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=50, **sizes)))
    rows, found = lay([list(range(40))] * 20, [30] * 20), []
    for fewest in (1, 10**6):
        monkeypatch.setattr(families, "FEWEST", fewest)
        with CountProducts() as count:
            run_layers(family, rows).sum().backward()
        found.append(count.operations)
    tokens, read, square, gated = 20 * 39, 20 * 30, 64 * 64, 3 * 64 * 96
    by_hand = 3 * 2 * (2 * tokens * square + read * (2 * square + gated))  # keys and values of all tokens
    assert found == [by_hand, by_hand]

"""The proof of a sync: prompts that a server caches, weights that are changed and changed back, and its bounds."""

import pytest
import torch

from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from ppo.sync_proof import PROMPT_TOKENS, Gap, changed, gap_to, probe_prompt, refuse_other_weights


def test_the_probe_prompt_is_longer_than_a_block_of_a_prefix_cache() -> None:
    found = probe_prompt([[5, 6, 7], list(range(1000))], 900)
    assert len(found) == PROMPT_TOKENS > 128
    assert found[:4] == [5, 6, 7, 0]
    assert probe_prompt([[5, 6, 7]], 8) == [5, 6, 7, 5, 6, 7, 5, 6], "no more than there is room for"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_exactly_as_before_a_large_change(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = [(name, torch.nn.Parameter(torch.randn(7, 5).to(dtype))) for name in ("a.weight", "b.weight")]
    before = [p.clone() for _, p in weights]
    with changed(weights):
        assert all(not torch.equal(p, was) for (_, p), was in zip(weights, before, strict=True))
    assert all(torch.equal(p, was) for (_, p), was in zip(weights, before, strict=True))


def test_adapters_that_are_0_are_changed_too_and_back_after_an_error() -> None:
    weights = [("x.lora_A.default.weight", torch.nn.Parameter(torch.ones(2, 4))),
               ("x.lora_B.default.weight", torch.nn.Parameter(torch.zeros(4, 2)))]  # fmt: skip

    def sync() -> None:
        with changed(weights):
            assert weights[1][1].abs().sum() > 1
            raise RuntimeError("the server died")

    with pytest.raises(RuntimeError, match="died"):
        sync()
    assert weights[1][1].abs().sum() == 0
    assert torch.equal(weights[0][1], torch.ones(2, 4))


def test_a_gap_is_the_largest_in_fp32_and_the_mean_in_16_bits() -> None:
    reply = Completion("", "length", (1, 2, 3), (-1.0, -2.0, -3.0))
    gap = gap_to(torch.tensor([-1.0, -2.3, -3.0]), [([9], reply)])
    assert gap.of("fp32") == pytest.approx(0.3)
    assert gap.of("bf16") == pytest.approx(0.1)
    refuse_other_weights(gap, "bf16", "now")
    with pytest.raises(
        InputError, match=r"now, server and trainer differ by 0\.3 nats at one token, 0\.001 are allowed"
    ):
        refuse_other_weights(gap, "fp32", "now")
    with pytest.raises(InputError):
        refuse_other_weights(Gap(float("inf"), float("inf")), "bf16", "a log-probability that is not a number")

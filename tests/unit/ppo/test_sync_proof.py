"""The proof of a sync: prompts that a server caches, weights that are changed and changed back, and its bounds."""

import pytest
import torch

from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from ppo.sync_proof import PROMPT_TOKENS, Gap, changed, gap_to, probe_prompts, refuse_other_layers, refuse_other_weights


def test_the_probe_prompts_are_longer_than_a_block_of_a_prefix_cache_and_differ() -> None:
    found, backwards = probe_prompts([[5, 6, 7], list(range(1000))], 900)
    assert len(found) == len(backwards) == PROMPT_TOKENS > 128
    assert found[:4] == [5, 6, 7, 0]
    assert backwards[:2] == [999, 998]
    assert probe_prompts([[5, 6, 7]], 8)[0] == [5, 6, 7, 5, 6, 7, 5, 6], "no more than there is room for"


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
            assert torch.equal(weights[0][1], 2 * torch.ones(2, 4)), "a stale first matrix shows too"
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
    refuse_other_weights(gap, "bf16", "now", None)
    with pytest.raises(
        InputError, match=r"now, server and trainer differ by 0\.3 nats at one token, 0\.001 are allowed"
    ):
        refuse_other_weights(gap, "fp32", "now", None)
    with pytest.raises(InputError):
        refuse_other_weights(Gap(float("inf"), float("inf")), "bf16", "a log-probability that is not a number", 0.1)


def test_a_gap_is_judged_by_the_trainers_own_rounding() -> None:
    refuse_other_weights(Gap(0.19, 2.0), "bf16", "coarse weights", 0.05)
    with pytest.raises(
        InputError, match=r"0\.1 nats a token, 0\.08 are allowed in bf16; the trainer's own rounding is 0\.02"
    ):
        refuse_other_weights(Gap(0.1, 0.1), "bf16", "now", 0.02)


def test_a_layer_that_is_right_after_one_of_two_syncs_does_not_follow() -> None:
    good, bad = {"a": 0.0, "b": 1e-3}, {"a": 0.0, "b": 0.7}
    assert refuse_other_layers(good, good, (), "bf16") == {"a", "b"}
    assert refuse_other_layers(bad, bad, (), "bf16") == {"a"}, "it may be stored in another layout"
    for changed_layers, restored, found in ((bad, good, ()), (good, bad, ()), (bad, bad, ("b",))):
        with pytest.raises(
            InputError, match=r"1 of 2 layers of the server did not follow, b first .* differ by 0\.7 of"
        ):
            refuse_other_layers(changed_layers, restored, found, "bf16")

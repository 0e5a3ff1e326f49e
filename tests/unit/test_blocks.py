"""Parts of a layer over blocks beside torch's way of the same, and whole models that go by them."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.models.causal_rows import lay, run_layers
from lmgym.models.fast import blocks, families
from lmgym.models.fast.blocks import gated_end, normed_heads
from lmgym.models.fast.families import family_of
from lmgym.models.fast.functions import head_logprobs

TOKENS, WIDE, HEADS, INNER = 37, 24, 3, 40  # two blocks of 16 and what is left


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCKS", {torch.float32: 16, torch.bfloat16: 16})
    monkeypatch.setattr(families, "FEWEST", 1)


def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return values.requires_grad_()


def compare(ours, theirs, inputs: list[torch.Tensor], **tolerance: float) -> None:
    """Values, and gradients of all inputs that want one, under weights of chance."""
    chance = torch.Generator().manual_seed(1)
    found, expected = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(found, expected, **tolerance)
    learning = [one for one in inputs if one.requires_grad]
    weights = [torch.randn(one.shape, generator=chance) for one in expected]
    both = [
        torch.autograd.grad(sum((v * w).sum() for v, w in zip(values, weights, strict=True)), learning)
        for values in (found, expected)
    ]
    for mine, other in zip(*both, strict=True):
        torch.testing.assert_close(mine, other, **tolerance)


def weights_of_end() -> list[torch.Tensor]:
    shapes = ((WIDE, WIDE), (INNER, WIDE), (INNER, WIDE), (WIDE, INNER))
    return [drawn(*shape, scale=0.3 + 0.1 * number) for number, shape in enumerate(shapes)]


def plain_end(hidden, attended, norm, out, gate, up, down) -> tuple[torch.Tensor]:
    middle = hidden + F.linear(attended, out)
    normed = F.rms_norm(middle, (WIDE,), norm, 1e-5)
    return (middle + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down),)


def our_end(hidden, attended, norm, out, gate, up, down) -> tuple[torch.Tensor]:
    return (gated_end(hidden, attended, norm, 1e-5, out, gate, up, down),)


@pytest.mark.parametrize("tokens", [TOKENS, 16, 5])
def test_the_end_of_a_layer_is_that_of_its_parts(tokens: int) -> None:
    inputs = [drawn(tokens, WIDE), drawn(tokens, WIDE, scale=0.5), drawn(WIDE), *weights_of_end()]
    compare(our_end, plain_end, inputs, rtol=1e-4, atol=2e-5)
    with torch.no_grad():
        torch.testing.assert_close(our_end(*inputs), plain_end(*inputs), rtol=1e-5, atol=1e-5)


def turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return heads * cos + heads.roll(heads.shape[-1] // 2, -1) * sin


def heads_by(apply, turned: int):
    """Of (hidden, norm, *weights), by blocks or by parts."""
    cos, sin = (drawn(TOKENS, 1, 8).detach() * scale for scale in (1.0, 0.5))

    def ours(hidden, norm, *weights):
        return normed_heads(hidden, norm, 1e-5, cos, sin, turned, *weights)

    def theirs(hidden, norm, *weights):
        normed = F.rms_norm(hidden, (WIDE,), norm, 1e-5)
        heads = [F.linear(normed, weight).unflatten(1, (-1, 8)) for weight in weights]
        return tuple(turn(one, cos, sin) if number < turned else one for number, one in enumerate(heads))

    return ours if apply == "blocks" else theirs


@pytest.mark.parametrize("turned", [0, 1, 2])
@pytest.mark.parametrize("below_learns", [True, False])
def test_heads_are_those_of_norm_product_and_rotation(turned: int, below_learns: bool) -> None:
    weights = [drawn(size, WIDE) for size in (8 * HEADS, 8, 8)]  # several queries share a key
    hidden = drawn(TOKENS, WIDE).detach().requires_grad_(below_learns)
    inputs = [hidden, drawn(WIDE), *weights]
    compare(heads_by("blocks", turned), heads_by("parts", turned), inputs, rtol=1e-4, atol=5e-5)
    found = heads_by("blocks", turned)(*inputs)
    assert [one.shape for one in found] == [(TOKENS, HEADS, 8), (TOKENS, 1, 8), (TOKENS, 1, 8)]
    plain = F.linear(F.rms_norm(hidden, (WIDE,), inputs[1], 1e-5), weights[2])
    torch.testing.assert_close(found[2].flatten(1), plain, rtol=1e-4, atol=5e-5)  # the last is never rotated


def products_of(backward) -> int:
    """Matrix products that a call makes."""

    class Count(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            self.found += operation._overloadpacket.__name__ in ("mm", "addmm", "addmm_", "_linear_pointwise")
            return operation(*arguments, **(named or {}))

    with Count() as count:
        backward()
    return count.found


def test_nothing_is_multiplied_for_what_does_not_learn() -> None:
    inputs = [drawn(16, WIDE), drawn(16, WIDE), drawn(WIDE), *weights_of_end()]
    every = products_of(our_end(*inputs)[0].sum().backward)
    frozen = [*inputs[:2], *(weight.detach() for weight in inputs[2:])]
    assert (every, products_of(our_end(*frozen)[0].sum().backward)) == (6, 3)
    heads, weight = heads_by("blocks", 1), drawn(8, WIDE)
    hidden = drawn(TOKENS, WIDE)
    both = products_of(heads(hidden, drawn(WIDE), weight)[0].sum().backward)
    frozen = products_of(heads(hidden, drawn(WIDE).detach(), weight.detach())[0].sum().backward)
    alone = products_of(heads(hidden.detach(), drawn(WIDE), weight)[0].sum().backward)
    assert (both, frozen, alone) == (6, 3, 3)  # two a block of three, and one


def test_bf16_is_near_fp32_and_its_gradients_are_fp32() -> None:
    inputs = [drawn(TOKENS, WIDE), drawn(TOKENS, WIDE), drawn(WIDE), *weights_of_end()]
    [exact] = our_end(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        [found] = our_end(*inputs)
    both = [torch.autograd.grad((one * drawn(TOKENS, WIDE)).sum(), inputs) for one in (found, exact)]
    for mine, other in ((found, exact), *zip(*both, strict=True)):
        assert mine.dtype == torch.float32
        assert 0 < (mine - other).abs().mean() < 0.02 * other.abs().mean()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_by_blocks_is_the_plain_one(kind: str, recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "vocab_size": 50}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, num_attention_heads=4, num_key_value_heads=2, **sizes)
    )
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    family, batch = family_of(model), lay([list(range(40)), list(range(9, 30)), [3, 4, 5]], [11, 4, 2])

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        states = run_layers(family, batch, recompute=recompute)
        assert recompute or (states.grad_fn.name() == "GatedEndBackward") == (families.FEWEST == 1)
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        learned = [weight.grad for name, weight in model.named_parameters() if ".layers." in name]
        return [states.detach(), *learned]

    by_blocks = gradients()
    monkeypatch.setattr(families, "FEWEST", 1000)
    for mine, other in zip(by_blocks, gradients(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("setting", ["attention_bias", "mlp_bias"])
def test_a_layer_with_biases_goes_another_way(setting: str) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=50, **sizes, **{setting: True}))
    states = run_layers(family_of(model), lay([list(range(40))], [11]))
    assert states.grad_fn.name() != "GatedEndBackward"


class MostAlive(TorchDispatchMode):
    """The most tensors of a last axis that were there at once, of those that products made."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.wide, self.made, self.most = wide, [], 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        found = operation(*arguments, **(named or {}))
        if operation._overloadpacket.__name__ in ("mm", "addmm") and found.shape[-1] == self.wide:
            self.made.append(weakref.ref(found))
            self.most = max(self.most, sum(made() is not None for made in self.made))
        return found


@pytest.mark.parametrize("what", ["layer", "head"])
def test_without_gradients_a_block_is_gone_before_the_next_but_one(what: str) -> None:
    head, targets = drawn(90, WIDE), torch.zeros(160, dtype=torch.int64)
    inputs = [drawn(160, WIDE).detach(), drawn(160, WIDE).detach(), drawn(WIDE), *weights_of_end()]

    def call() -> None:
        if what == "layer":
            our_end(*inputs)
        else:
            head_logprobs(inputs[0], head, None, targets, 1.0, 16)

    wide, counts = 2 * INNER if what == "layer" else 90, []
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context(), MostAlive(wide) as count:
            call()
        counts.append(count.most)
    assert counts[0] == 10
    assert max(counts[1:]) <= 2

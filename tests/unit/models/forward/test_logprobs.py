"""Log-probabilities at chosen places, and their gradients: those of the plain forward, in pieces or whole."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.models.forward import logprobs as module
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import (
    TargetLogprobs,
    head_logprobs,
    logprobs_and_entropies,
    logprobs_and_hits,
    token_logprobs,
)
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.parameters import is_sharded

SIZES = {
    "gpt2": {"n_layer": 3, "n_embd": 32, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "llama": {"num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2},
    "qwen3": {"num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 8},
}  # fmt: skip
LENGTHS, READS = (9, 30, 31, 12, 7), (3, 10, 1, 0, 5)


def make(family: str, **settings):
    torch.manual_seed(0)
    settings = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, **SIZES[family], **settings}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, vocab_size=97, **settings))
    for weight in model.parameters():  # norms and biases that are not 1 and 0
        weight.data += 0.1 * torch.randn_like(weight)
    rng = np.random.default_rng(0)
    return model, [rng.integers(0, 97, n).tolist() for n in LENGTHS]


def targets_of(rows) -> torch.Tensor:
    return torch.tensor([id_ for row, reads in zip(rows, READS, strict=True) for id_ in row[len(row) - reads :]])


def plain_logprobs(model, rows, temperature: float) -> torch.Tensor:
    """Row by row, by the library's own forward."""
    found = []
    for row, reads in zip(rows, READS, strict=True):
        logprobs = torch.log_softmax(model(torch.tensor([row])).logits[0] / temperature, -1)
        found += [logprobs[place, row[place + 1]] for place in range(len(row) - reads - 1, len(row) - 1)]
    return torch.stack(found)


def ours(model, rows, temperature: float, recompute: bool = False) -> torch.Tensor:
    decoder = Decoder(model)
    states = decoder.hidden(pack_rows(rows, READS), recompute=recompute)
    return token_logprobs(decoder, states, targets_of(rows), temperature)


def gradients(model, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("recompute", [False, True])
def test_logprobs_and_gradients_are_those_of_the_plain_forward(family: str, recompute: bool) -> None:
    model, rows = make(family)
    found, expected = ours(model, rows, 0.7, recompute), plain_logprobs(model, rows, 0.7)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    mine, theirs = gradients(model, found), gradients(model, expected)
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [97 * 4, 1 << 26])
def test_entropies_and_their_gradients_are_those_of_the_plain_forward(chunk: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", chunk)
    model, rows = make("llama")
    decoder = Decoder(model)
    states = decoder.hidden(pack_rows(rows, READS))
    logprobs, entropies = logprobs_and_entropies(decoder, states, targets_of(rows), 0.7)
    wanted = []
    for row, reads in zip(rows, READS, strict=True):
        of_row = torch.log_softmax(model(torch.tensor([row])).logits[0] / 0.7, -1)
        wanted += [-(of_row[p].exp() * of_row[p]).sum() for p in range(len(row) - reads - 1, len(row) - 1)]
    torch.testing.assert_close(entropies, torch.stack(wanted), atol=1e-5, rtol=0)
    torch.testing.assert_close(logprobs, plain_logprobs(model, rows, 0.7), atol=1e-5, rtol=0)
    expected = gradients(model, torch.stack(wanted))
    for name, found in gradients(model, entropies).items():
        torch.testing.assert_close(found, expected[name], atol=1e-5, rtol=1e-4)


def test_logits_in_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = make("llama")
    whole = ours(model, rows, 1.0)
    expected = gradients(model, whole)
    monkeypatch.setattr(module, "CHUNK_LOGITS", 97 * 4)
    chunked = ours(model, rows, 1.0)
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=0)
    for name, gradient in gradients(model, chunked).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1 << 26, 97 * 4])
@pytest.mark.parametrize("learns", [True, False])
def test_hits_are_the_tokens_that_the_logits_rank_first(
    chunk: int, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = make("llama")
    monkeypatch.setattr(module, "CHUNK_LOGITS", chunk)
    model.lm_head.requires_grad_(learns)
    decoder = Decoder(model)
    normed = decoder.hidden(pack_rows(rows, READS))
    likeliest = decoder.logits(normed).argmax(-1)
    targets = torch.where(torch.arange(len(likeliest)) % 2 == 0, likeliest, (likeliest + 1) % 97)
    logprobs, hits = logprobs_and_hits(decoder, normed, targets)
    assert hits.tolist() == [1.0 - i % 2 for i in range(len(targets))]
    logprobs.sum().backward()
    torch.testing.assert_close(logprobs, token_logprobs(decoder, normed, targets))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_frozen_head_gives_the_same_with_few_logits_at_a_time(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = make("llama")
    learning = ours(model, rows, temperature)
    expected = gradients(model, learning)
    model.lm_head.requires_grad_(False)
    monkeypatch.setattr(module, "FEWEST_ROWS", 4)
    monkeypatch.setattr(module, "CACHED_LOGITS", 0)
    frozen = ours(model, rows, temperature)
    [(stack, _)] = frozen.grad_fn.next_functions
    assert stack.next_functions[0][0].name() == "HeadLogprobsBackward"
    torch.testing.assert_close(frozen, learning, atol=1e-6, rtol=0)
    for name, gradient in gradients(model, frozen).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("family", SIZES)
def test_bf16_is_near_fp32(family: str) -> None:
    model, rows = make(family)
    exact = ours(model, rows, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = ours(model, rows, 1.0)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().mean() < 0.05


class Gathering(dict):
    """A module's parameters as ZeRO-3 keeps them: to read one by its name is a collective."""

    def __getitem__(self, name: str):
        raise AssertionError(f"{name} was gathered")


def test_checking_for_sharded_weights_needs_no_collective() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.__dict__["_parameters"] = Gathering(layer._parameters)
    with pytest.raises(AssertionError, match="weight was gathered"):
        _ = layer.weight
    assert not is_sharded(layer)
    next(layer.parameters()).ds_id = 3
    assert is_sharded(layer)


# --- functions with gradients of their own


def compare(ours, theirs, *inputs: torch.Tensor, **tolerance: float) -> None:
    """Values and gradients of all inputs, under weights of chance."""
    found, expected = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(found, expected, **tolerance)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    both = [torch.autograd.grad((value * weights).sum(), inputs) for value in (found, expected)]
    for ours_, theirs_ in zip(*both, strict=True):
        torch.testing.assert_close(ours_, theirs_, **tolerance)


def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers that require a gradient."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return values.requires_grad_()


@pytest.mark.parametrize(("scale", "dtype"), [(1.0, torch.float32), (60.0, torch.float32), (3.0, torch.bfloat16)])
def test_target_logprobs_are_the_log_softmax(scale: float, dtype: torch.dtype) -> None:
    logits = drawn(6, 11, scale=scale).detach().to(dtype).requires_grad_()
    targets = torch.tensor([0, 10, 3, 3, 7, 1])

    def theirs(logits: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), -1)[torch.arange(6), targets]

    # in bf16 the probabilities are rounded, and then the gradient
    tolerance = {"rtol": 2**-7, "atol": 1e-5} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    compare(lambda x: TargetLogprobs.apply(x.clone(), targets)[0], theirs, logits, **tolerance)
    found, hits = TargetLogprobs.apply(logits.clone(), targets)
    assert found.dtype == torch.float32
    assert torch.equal(hits, (logits.gather(1, targets[:, None])[:, 0] == logits.amax(1)).float())
    assert not hits.requires_grad


def test_a_target_of_probability_zero_has_a_finite_log_probability() -> None:
    logits = torch.tensor([[0.0, 200.0, -50.0]], requires_grad=True)  # e^-250 is 0 in fp32
    found, _ = TargetLogprobs.apply(logits.clone(), torch.tensor([2]))
    assert found.item() == pytest.approx(-250.0)
    found.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, -1.0, 1.0]]))


def test_logprobs_take_no_memory_of_the_logits_size_and_have_one_backward() -> None:
    logits, targets = drawn(4, 9), torch.tensor([1, 8, 0, 3])
    own = logits * 1
    found, _ = TargetLogprobs.apply(own, targets)
    torch.testing.assert_close(own, torch.softmax(logits, -1) - F.one_hot(targets, 9))
    [first] = torch.autograd.grad(found.sum(), own, retain_graph=True)
    assert first.data_ptr() == own.data_ptr()
    with pytest.raises(RuntimeError, match="inplace operation"):
        found.sum().backward()


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("learns", ["states", "head", "both"])
@pytest.mark.parametrize("keep", [True, False])
def test_logprobs_of_a_head_are_those_of_its_logits(
    rows: int, temperature: float, biased: bool, learns: str, keep: bool
) -> None:
    states, weight, bias = drawn(6, 5), drawn(11, 5), drawn(11) if biased else None
    targets = torch.tensor([0, 10, 3, 3, 7, 1])
    head = [one for one in (weight, bias) if one is not None]
    for frozen in {"states": head, "head": [states], "both": []}[learns]:
        frozen.requires_grad_(False)
    learning = [one for one in (states, *head) if one.requires_grad]

    def theirs(*ignored: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(F.linear(states, weight, bias) / temperature, -1)[torch.arange(6), targets]

    def ours(*ignored: torch.Tensor) -> torch.Tensor:
        return head_logprobs(states, targets, weight, bias, temperature, rows, keep)[0]

    compare(ours, theirs, *learning, rtol=1e-5, atol=2e-6)
    with torch.no_grad():
        torch.testing.assert_close(ours(), theirs())


@pytest.mark.parametrize("keep", [True, False])
def test_a_head_under_autocast_rounds_as_its_layer_does(keep: bool) -> None:
    states, weight, targets = drawn(6, 64), drawn(11, 64), torch.arange(6)
    with torch.autocast("cpu", torch.bfloat16):
        found, hits = head_logprobs(states, targets, weight, None, 1.0, 4, keep)
        expected, theirs = TargetLogprobs.apply(F.linear(states, weight), targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    assert torch.equal(hits, theirs)
    both = (torch.autograd.grad(one.sum(), (states, weight)) for one in (found, expected))
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


def test_a_heads_gradient_is_added_up_in_fp32_where_its_weights_are_bf16() -> None:
    states, weight, targets = drawn(4096, 8), drawn(5, 8, scale=0.1), torch.zeros(4096, dtype=torch.long)
    head_logprobs(states, targets, weight, None, 1.0, 4096)[0].sum().backward()
    rounded = weight.detach().to(torch.bfloat16).requires_grad_()
    head_logprobs(states.detach(), targets, rounded, None, 1.0, 4, keep=False)[0].sum().backward()
    gap = (rounded.grad - weight.grad).abs().max() / weight.grad.abs().max()
    assert gap < 0.01, "a thousand sums in bf16 would stop at 256 times what is added"


def test_without_a_token_a_head_has_a_gradient_of_0() -> None:
    states, weight = drawn(3, 5).detach()[:0].requires_grad_(), drawn(11, 5)
    for keep in (True, False):
        head_logprobs(states, torch.zeros(0, dtype=torch.long), weight, None, 1.0, 4, keep).sum().backward()
        assert torch.equal(weight.grad, torch.zeros_like(weight)), "which other ranks wait for under ZeRO-3"
        assert states.grad.shape == (0, 5)


def test_a_nearly_certain_token_keeps_its_small_gradient_in_bf16() -> None:
    weight, states = torch.eye(2, 4), torch.tensor([[9.0, 0.0, 0.0, 0.0]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        head_logprobs(states, torch.tensor([0]), weight, None, 1.0, 1)[0].backward()
    rest = 1 / (1 + math.exp(9))  # 1.2e-4, which 1 - p would lose in bf16
    torch.testing.assert_close(states.grad, torch.tensor([[rest, -rest, 0.0, 0.0]]), rtol=0.01, atol=0)

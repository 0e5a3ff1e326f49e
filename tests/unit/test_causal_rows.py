"""Rows through a causal model at chosen places: log-probabilities, gradients and states of the plain forward."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.errors import InputError
from lmgym.models import causal_rows
from lmgym.models.causal_rows import lay, run_layers, token_logprobs
from lmgym.models.fast.families import family_of
from lmgym.models.fast.joined import is_sharded

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
    family = family_of(model)
    states = run_layers(family, lay(rows, READS), recompute=recompute)
    return token_logprobs(family, family.norm(states), targets_of(rows), temperature)


def gradients(model, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.2])  # of a CPU, where nothing is padded, and of a GPU
def test_logprobs_and_gradients_are_those_of_the_plain_forward(
    family: str, recompute: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal_rows, "RUN_SHARE", share)
    model, rows = make(family)
    assert len(lay(rows, READS).runs) == (5 if share == 1 else 3)
    found, expected = ours(model, rows, 0.7, recompute), plain_logprobs(model, rows, 0.7)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    mine, theirs = gradients(model, found), gradients(model, expected)
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_gate_may_be_another_than_silu(family: str) -> None:
    model, rows = make(family, hidden_act="gelu")
    found, expected = ours(model, rows, 1.0), plain_logprobs(model, rows, 1.0)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    mine, theirs = gradients(model, found), gradients(model, expected)
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", SIZES)
def test_it_may_begin_above_the_lowest_layers(family: str) -> None:
    model, rows = make(family)
    functions, batch = family_of(model), lay(rows, READS)
    states = run_layers(functions, batch, last=2)
    assert states.shape == (sum(LENGTHS) - len(LENGTHS), 32)  # nobody reads behind the last token
    torch.testing.assert_close(run_layers(functions, batch, states, 2), run_layers(functions, batch), atol=0, rtol=0)


def test_the_last_places_themselves_can_be_read() -> None:
    model, rows = make("llama")
    functions = family_of(model)
    logits = functions.head(run_layers(functions, lay(rows, [1] * len(rows), skip=0)))
    for row, found in zip(rows, logits, strict=True):
        torch.testing.assert_close(found, model(torch.tensor([row])).logits[0, -1], atol=2e-5, rtol=0)


def test_logits_in_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = make("llama")
    whole = ours(model, rows, 1.0)
    expected = gradients(model, whole)
    monkeypatch.setattr(causal_rows, "CHUNK_LOGITS", 97 * 4)
    chunked = ours(model, rows, 1.0)
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=0)
    for name, gradient in gradients(model, chunked).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_frozen_head_gives_the_same_and_is_asked_for_few_logits_at_a_time(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = make("llama")
    learning = ours(model, rows, temperature)
    expected = gradients(model, learning)
    model.lm_head.requires_grad_(False)
    monkeypatch.setattr(causal_rows, "FEWEST_ROWS", 4)
    monkeypatch.setattr(causal_rows, "CACHED_LOGITS", 0)
    frozen = ours(model, rows, temperature)
    assert frozen.grad_fn.name() == "HeadLogprobsBackward"
    torch.testing.assert_close(frozen, learning, atol=1e-6, rtol=0)
    for name, gradient in gradients(model, frozen).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


def test_rows_of_one_length_are_one_run() -> None:
    runs = lay([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2]], [1, 1, 2, 1]).runs
    assert [(run.lengths, run.reads) for run in runs] == [((2, 2), (1, 1)), ((2,), (2,)), ((1,), (1,))]


def operations_of(model, rows) -> int:
    """Of a forward and a backward over rows that are read at their last 3 places."""

    class Count(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            self.found += 1
            return operation(*arguments, **(named or {}))

    functions, batch = family_of(model), lay(rows, [3] * len(rows))
    with Count() as count:
        run_layers(functions, batch).sum().backward()
    return count.found


def test_rows_of_a_run_cost_no_kernel_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_rows, "RUN_SHARE", 0.5)
    model, _ = make("llama")
    few, many = ([list(range(30 - i)) for i in range(rows)] for rows in (2, 8))
    assert len(lay(many, [3] * 8).runs) == 1
    assert operations_of(model, many) == operations_of(model, few)


def test_several_rows_of_one_length_give_what_each_gives_alone() -> None:
    model, rows = make("llama")
    functions, equal = family_of(model), [row[:7] for row in rows]
    together = functions.head(run_layers(functions, lay(equal, [3] * 5)))
    alone = [functions.head(run_layers(functions, lay([row], [3]))) for row in equal]
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-6, rtol=0)


def test_logprobs_of_a_temperature_have_the_gradient_of_the_log_softmax() -> None:
    torch.manual_seed(0)
    logits, targets, weights = torch.randn(5, 7, requires_grad=True), torch.tensor([0, 6, 3, 3, 1]), torch.randn(5)
    ours = causal_rows.TargetLogprobs.apply(logits / 0.5, targets)
    theirs = torch.log_softmax(logits / 0.5, -1)[range(5), targets]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad((x * weights).sum(), logits)[0] for x in (ours, theirs)))


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


def test_whether_weights_are_sharded_is_asked_without_a_collective() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.__dict__["_parameters"] = Gathering(layer._parameters)
    with pytest.raises(AssertionError, match="weight was gathered"):
        _ = layer.weight
    assert not is_sharded(layer)
    next(layer.parameters()).ds_id = 3
    assert is_sharded(layer)


@pytest.mark.parametrize("scale", ["final_logit_softcapping", "logit_scale", "logits_scaling", "residual_multiplier"])
def test_a_scale_that_these_functions_would_leave_out_is_refused(scale: str) -> None:
    model, _ = make("llama")
    setattr(model.config, scale, 1.0)
    family_of(model)
    setattr(model.config, scale, 0.25)
    with pytest.raises(InputError, match=f"generation knows no {scale}: found 0.25 in the config of a llama"):
        family_of(model)

"""Shared prefixes against full replaced_forwards: of suffixes, of what grows and shrinks, of changed weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.models.forward import prefixes
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.prefixes import Prefix

FAMILIES = ("gpt2", "llama", "qwen3")


@pytest.fixture
def model(request, small_models: dict[str, Path]):
    """A causal model with weights so large that every token matters."""
    model = AutoModelForCausalLM.from_pretrained(small_models[request.param], dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "head" not in name:
                parameter.mul_(4.0)
    return model


def ids_of(count: int, seed: int) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(5, 400, count).tolist()


def logits_of(prefix: Prefix, hidden: torch.Tensor | None) -> torch.Tensor:
    """Behind the head."""
    assert hidden is not None
    with torch.inference_mode():
        return prefix.decoder.logits(hidden)


def last_logits(model, ids: list[int]) -> torch.Tensor:
    """By a full forward of transformers."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


SUFFIXES = [ids_of(n, n) for n in (3, 30, 9, 1, 10, 8)]


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
@pytest.mark.parametrize("shared", [0, 1, 25])
@pytest.mark.parametrize("most", [8192, 20])
def test_suffixes_of_a_prefix_are_as_in_a_full_forward(model, shared: int, most: int, monkeypatch) -> None:
    monkeypatch.setattr(prefixes, "TOKENS_AT_ONCE", most)
    prefix, beginning = Prefix(Decoder(model)), ids_of(shared, 100)
    prefix.extend_to(beginning)
    found = logits_of(prefix, prefix.suffix_states(SUFFIXES))
    expected = torch.stack([last_logits(model, beginning + suffix) for suffix in SUFFIXES])
    assert expected.std(0).mean() > 0.05
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_a_prefix_can_grow_and_shrink(model) -> None:
    prefix, ids = Prefix(Decoder(model)), ids_of(240, 1)
    other = [*ids[:40], *ids_of(20, 2)]
    wanted = [(ids[:50], 50), (ids[:230], 180), (ids[:230], 1), (ids[:20], 1), (other, 40), (ids, 200), (other[:40], 1)]
    for reached, new in wanted:
        before = prefix.computed
        hidden = prefix.last_state(reached)
        torch.testing.assert_close(logits_of(prefix, hidden)[0], last_logits(model, reached), rtol=0, atol=1e-4)
        assert prefix.computed - before == new, "no more than what was not there, and the last for its state"
        assert prefix.ids == reached


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_changed_weights_discard_a_prefix(model) -> None:
    prefix, ids = Prefix(Decoder(model)), ids_of(30, 3)
    prefix.extend_to(ids)
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight.mul_(1.5)
    hidden = prefix.last_state(ids)
    torch.testing.assert_close(logits_of(prefix, hidden)[0], last_logits(model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_an_interrupt_leaves_the_shared_part(model, monkeypatch) -> None:
    prefix, ids = Prefix(Decoder(model)), ids_of(60, 4)
    prefix.extend_to(ids[:30])

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(prefix.decoder.blocks[1], "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prefix.extend_to([*ids[:20], *ids_of(9, 5)])
    monkeypatch.undo()
    assert prefix.ids == ids[:20]
    hidden = prefix.last_state(ids)
    torch.testing.assert_close(logits_of(prefix, hidden)[0], last_logits(model, ids), rtol=0, atol=1e-4)

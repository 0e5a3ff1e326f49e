"""Gradients become ready in one order, however many tokens a rank has: ZeRO 2 adds them up in that order."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym import families, joined
from lmgym.causal_rows import lay, run_layers, token_logprobs
from lmgym.families import family_of

FEW, MANY = [list(range(9))], [list(range(40)) for _ in range(15)]  # fewer than 32 wide, more than FEWEST


def order_of(kind: str, rows: list[list[int]], recompute: bool) -> list[str]:
    """The names of a model's weights as their gradients come."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=50, **sizes))
    came: list[str] = []
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    family, batch = family_of(model), lay(rows, [5] * len(rows))
    states = family.norm(run_layers(family, batch, recompute=recompute))
    token_logprobs(family, states, torch.arange(len(states)) % 50).sum().backward()
    assert len(came) == len(list(model.parameters()))
    return came


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("blocks", [True, False])  # as on a CPU, as on a GPU
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_come_in_one_order_where_ranks_learn_together(
    kind: str, blocks: bool, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not blocks:
        monkeypatch.setattr(families.LlamaFamily, "_goes_by_blocks", lambda *_: False)
    if kind != "gpt2":
        assert order_of(kind, FEW, recompute) != order_of(kind, MANY, recompute), "a rank alone takes the quicker way"
    for module in (families, joined):
        monkeypatch.setattr(module, "ranks_learn_together", torch.is_grad_enabled)
    assert order_of(kind, FEW, recompute) == order_of(kind, MANY, recompute)


@pytest.mark.parametrize(("ranks", "together"), [(1, False), (2, True)])
def test_ranks_learn_together_where_there_are_several_and_gradients_are_wanted(
    ranks: int, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not joined.ranks_learn_together()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    assert joined.ranks_learn_together() == together
    with torch.no_grad():
        assert not joined.ranks_learn_together()

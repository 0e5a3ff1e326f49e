"""The engine without DeepSpeed: it resumes exactly, and non-finite gradients change nothing."""

from pathlib import Path

import pytest
import torch

from lmgym.config import ModelConfig
from lmgym.distributed.plain_engine import PlainEngine
from lmgym.distributed.random_state import seed_all
from lmgym.distributed.ranks import raise_on_all_ranks
from lmgym.errors import InputError, RunStopped
from lmgym.models.forward.policies import load_policy, save_policy
from lmgym.models.loading import load_tokenizer
from ppo.config import PPOConfig
from ppo.setup import build


def engine(precision: str = "fp32") -> PlainEngine:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return PlainEngine(model, torch.optim.AdamW(model.parameters(), lr=0.1), precision, 1.0)


def update(one: PlainEngine, seed: int) -> bool:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    one.backward(one(inputs).float().square().mean())
    return one.step()


def test_a_loaded_engine_continues_with_the_same_weights(tmp_path: Path) -> None:
    straight, second = engine(), engine()
    assert all(update(straight, seed) for seed in range(2))
    straight.save(tmp_path)
    assert update(straight, 2)
    second.load(tmp_path)
    assert update(second, 2)
    for a, b in zip(straight.gather().values(), second.gather().values(), strict=True):
        assert torch.equal(a, b)


def test_a_non_finite_gradient_changes_nothing_and_is_cleared() -> None:
    one, other = engine(), engine()
    one.backward(one(torch.full((1, 4), float("inf"))).mean())
    assert not one.step()
    assert all(torch.equal(a, b) for a, b in zip(one.gather().values(), other.gather().values(), strict=True))
    update(one, 0)
    update(other, 0)
    assert all(torch.equal(a, b) for a, b in zip(one.gather().values(), other.gather().values(), strict=True))


def test_under_bf16_the_forward_is_rounded_and_the_weights_are_not() -> None:
    one = engine("bf16")
    assert one(torch.ones(1, 4)).dtype == torch.bfloat16
    assert update(one, 0)
    assert {value.dtype for value in one.gather().values()} == {torch.float32}


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_tied_weights_are_gathered_and_saved_under_one_name(lora_rank: int, small_models, tmp_path: Path) -> None:
    name = str(small_models["gpt2"])
    tokenizer = load_tokenizer(name)
    actor, _ = build(PPOConfig("x", ModelConfig(name, lora_rank=lora_rank)), tokenizer)
    trained = [p for p in actor.parameters() if p.requires_grad]
    state = PlainEngine(actor, torch.optim.AdamW(trained), "fp32", 1.0).gather()
    assert not any(key.endswith("lm_head.weight") for key in state)
    own = {key.removeprefix("policy."): value for key, value in state.items() if key.startswith("policy.")}
    folder = save_policy(actor.policy, own, tmp_path, tokenizer, merge=True)
    saved = load_policy(str(folder), tokenizer)
    assert saved.lm_head.weight is saved.transformer.wte.weight
    before = load_policy(name, tokenizer)
    for (key, a), b in zip(saved.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(a, b), key


def test_every_rank_draws_the_same_adapters_whatever_it_drew_before(small_models) -> None:
    name = str(small_models["llama"])
    drawn = []
    for rank in range(2):
        seed_all(0, rank)
        actor, _ = build(PPOConfig("x", ModelConfig(name, lora_rank=2)), load_tokenizer(name))
        drawn.append({key: value for key, value in actor.named_parameters() if "lora_A" in key})
        assert drawn[-1]
    assert all(torch.equal(value, drawn[1][key]) for key, value in drawn[0].items())


def test_errors_are_raised_and_results_returned() -> None:
    def refuse() -> None:
        raise InputError("needed: something else")

    def stop() -> None:
        raise RunStopped("enough", "failed", 69)

    assert raise_on_all_ranks(lambda: 5) == 5
    with pytest.raises(InputError, match="something else"):
        raise_on_all_ranks(refuse)
    with pytest.raises(RunStopped, match="enough"):
        raise_on_all_ranks(stop)
    with pytest.raises(ZeroDivisionError):
        raise_on_all_ranks(lambda: 1 / 0)

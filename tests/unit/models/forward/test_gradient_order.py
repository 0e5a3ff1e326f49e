"""Gradients become ready in one order, however many tokens a rank has: ZeRO 2 adds them up in that order."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.models.forward import logprobs as logprobs_module
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.lora import add_lora
from lmgym.text import Replies
from ppo.actor_critic import ActorCritic
from reward_models.data import PairExample
from reward_models.objectives import Pairwise

FEW, MANY = [list(range(9))], [list(range(40)) for _ in range(15)]
UNLIKE = [list(range(length)) for length in range(45, 20, -1)]  # a run of attention each
KINDS = ["gpt2", "llama", "qwen3", "mixtral", "bloom"]
SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 50,
    "pad_token_id": 0,
}  # fmt: skip


def gradient_order(model) -> list[str]:
    """Names of the weights, appended when their gradients come."""
    came: list[str] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    return came


def order_of(kind: str, rows: list[list[int]], recompute: bool) -> list[str]:
    """The names of a model's weights as their gradients come."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES))
    came = gradient_order(model)
    decoder, batch = Decoder(model), pack_rows(rows, [5] * len(rows))
    states = decoder.hidden(batch, recompute=recompute)
    token_logprobs(decoder, states, torch.arange(len(states)) % 50).sum().backward()
    assert len(came) == len(list(model.parameters()))
    return came


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_come_in_one_order(kind: str, recompute: bool) -> None:
    assert order_of(kind, FEW, recompute) == order_of(kind, MANY, recompute)


def order_in_ppo(kind: str, variant: str, rows: list[list[int]], frozen: int) -> list[str]:
    """The same of a policy with its critic, as an update runs them."""
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES))
    critic = None
    if variant == "critic":
        critic = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, num_labels=1, **SIZES))
    if variant == "adapters":
        policy = add_lora(policy, 2, 4, 0.0)
    actor = ActorCritic(policy, critic, frozen)
    came, batch = gradient_order(actor), pack_rows(rows, [5] * len(rows))
    logprobs, values, _ = actor(batch, torch.arange(5 * len(rows)) % 50)
    (logprobs.sum() + values.square().sum() + values.sum()).backward()
    assert len(came) == sum(weight.requires_grad for weight in actor.parameters())
    return came


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("variant", "frozen"), [("head", 0), ("head", 1), ("critic", 0), ("adapters", 0)])
def test_gradients_of_a_policy_and_its_critic_come_in_one_order(
    kind: str, variant: str, frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs_module, "CHUNK_LOGITS", 50 * 20)  # FEW's logits are one piece
    orders = [order_in_ppo(kind, variant, rows, frozen) for rows in (FEW, MANY, UNLIKE)]
    assert orders[0] == orders[1] == orders[2]


def pairs_of(lengths: list[int]) -> list[tuple[PairExample, bool]]:
    """A pair of replies a length, behind a prompt of so many tokens."""
    suffixes = [list(range(2, 2 + length // 4)) for length in lengths]
    return [
        (PairExample(Replies(list(range(1, length)), [suffix, suffix[::-1]]), 0.0, 0, (len(suffix), len(suffix))), True)
        for length, suffix in zip(lengths, suffixes, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_scorers_and_of_sft_come_in_one_order(kind: str) -> None:
    found = []
    for lengths in ([8], [40] * 15, list(range(45, 8, -3))):
        torch.manual_seed(0)
        scorer = ScoringModel(
            AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, num_labels=1, **SIZES))
        )
        objective = Pairwise(scorer, 0)
        batch = objective.collate(pairs_of(lengths))
        came = gradient_order(scorer)
        objective.loss(scorer(**batch["inputs"]), batch)[0].backward()
        policy = PolicyModel(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES)))
        rows = [list(range(length)) for length in lengths]
        policy_order = gradient_order(policy)
        policy(**policy.collate(rows, [range(length // 2, length) for length in lengths])).sum().backward()
        assert min(len(came), len(policy_order)) > 20
        found.append((came, policy_order))
    assert found[0] == found[1] == found[2]

"""Several agents in one program, each with a model and an optimizer of its own, and two agents of one model."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from walking import Walk, Walker, play

from lmgym.agents import AutoModelForCausalLMWithValueHead
from lmgym.environments.protocol import POLICY

SHORT = {"max_new_tokens": 5, "temperature": 1.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {"batch_size": 2, "mini_batch_size": 1, "learning_rate": 1e-3},
    "gpt2": {"batch_size": 3, "mini_batch_size": 3, "learning_rate": 3e-3, "ppo_epochs": 2, "seed": 5},
    "qwen3": {"batch_size": 2, "mini_batch_size": 2, "learning_rate": 1e-3, "method": "reinforce_pp"},
}
ADAPTERS = {"qwen3": {"peft_config": {"r": 2, "peft_type": "LORA"}}}
EPISODES = 6


def agent_of(family: str, models: dict[str, Path]) -> Walker:
    model = AutoModelForCausalLMWithValueHead.from_pretrained(models[family], **ADAPTERS.get(family, {}))
    return Walker(model, AutoTokenizer.from_pretrained(models[family]), "cpu", SHORT, SETTINGS[family])


def play_in_turn(agents: dict[str, Walker]) -> dict[str, tuple[list[dict[str, float]], dict[str, torch.Tensor]]]:
    """The metrics of each agent's updates and its weights, after episodes in turn; times are left out."""
    updates: dict[str, list[dict[str, float]]] = {family: [] for family in agents}
    for _ in range(EPISODES):
        for family, agent in agents.items():
            if metrics := play(agent, Walk()):
                updates[family].append({name: value for name, value in metrics.items() if "reward" in name})
    return {family: (updates[family], dict(agent.model.named_parameters())) for family, agent in agents.items()}


def test_different_models_learn_side_by_side_as_each_does_alone(small_models) -> None:
    together = play_in_turn({family: agent_of(family, small_models) for family in SETTINGS})
    assert {family: len(updates) for family, (updates, _) in together.items()} == {"llama": 3, "gpt2": 2, "qwen3": 3}
    for family, (updates, weights) in together.items():
        start = dict(AutoModelForCausalLMWithValueHead.from_pretrained(small_models[family]).named_parameters())
        [(own_updates, own_weights)] = play_in_turn({family: agent_of(family, small_models)}).values()
        assert updates == own_updates
        assert weights.keys() == own_weights.keys()
        assert all(torch.equal(weights[name], own_weights[name]) for name in weights), family
        assert any(name not in start or not torch.equal(weights[name], start[name]) for name in weights)


def two_of_one_model(small_models, batch: int) -> tuple[Walker, Walker]:
    model = AutoModelForCausalLMWithValueHead.from_pretrained(small_models["llama"])
    tokenizer = AutoTokenizer.from_pretrained(small_models["llama"])
    settings = {"batch_size": batch, "mini_batch_size": batch, "learning_rate": 1e-2, "ppo_epochs": 1}
    first, second = (Walker(model, tokenizer, "cpu", SHORT, settings) for _ in range(2))
    return first, second


def test_agents_of_one_model_both_train_it(small_models) -> None:
    first, second = two_of_one_model(small_models, 2)
    weights = list(first.model.pretrained_model.parameters())
    seen = [parameter.clone() for parameter in weights]
    for agent in (first, second, first):
        for _ in range(2):
            metrics = play(agent, Walk())
        assert metrics["rollout/logprob_mismatch_max"] < 1e-4, "it samples from the weights as they are now"
        assert any(not torch.equal(parameter, old) for parameter, old in zip(weights, seen, strict=True))
        seen = [parameter.clone() for parameter in weights]


def test_replies_from_before_the_update_of_the_other_agent_have_importance_weights(small_models) -> None:
    """Two players of one game end it together: the update of the first comes before the second has learned."""
    first, second = two_of_one_model(small_models, 1)
    for place in range(4):
        for agent in (first, second):
            agent.act(place)
            agent.assign_reward(1.0)
    assert first.terminate_episode()["rollout/logprob_mismatch_max"] < 1e-4
    learner, kept = second._learner, []
    learn = learner.components.learner.learn
    learner.components.learner.learn = lambda rollouts, *rest: kept.append(rollouts) or learn(rollouts, *rest)
    assert second.terminate_episode()["rollout/logprob_mismatch_max"] > 1e-2
    [rollouts] = kept
    assert rollouts.staleness == 1
    ratios = (rollouts.old_logprobs - rollouts.sampler_logprobs).exp()
    torch.testing.assert_close(rollouts.correction, ratios.clamp(max=2.0), rtol=1e-4, atol=1e-4)
    assert (ratios - 1).abs().max() > 1e-2


def test_a_turn_goes_on_from_the_weights_that_the_other_agent_has_updated(small_models) -> None:
    first, second = two_of_one_model(small_models, 1)
    for place in range(3):
        second.act(place)
    play(first, Walk())
    second.act(3)
    last = second._learner.episode.steps[POLICY][-1]
    ids = [*last.prompt, *last.completion.ids]
    with torch.no_grad():
        logits = second.model.pretrained_model(torch.tensor([ids])).logits[0, len(last.prompt) - 1 : -1]
    now = logits.log_softmax(-1).gather(1, torch.tensor(last.completion.ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(last.completion.logprobs), now, rtol=1e-4, atol=1e-4)


def test_a_model_that_only_plays_stays_as_it_was(small_models) -> None:
    learns, plays = agent_of("llama", small_models), agent_of("gpt2", small_models)
    before = {name: p.clone() for name, p in plays.model.named_parameters()}
    for _ in range(2):
        play(learns, Walk())
        plays.act(0)
        assert plays.terminate_episode(train=False) == {}
    assert all(torch.equal(p, before[name]) for name, p in plays.model.named_parameters())

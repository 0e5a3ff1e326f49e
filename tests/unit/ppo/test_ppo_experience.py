"""The numbers computed of rollouts, and the updates by them, whichever way the work is divided."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.models.lora import add_lora
from ppo.actor_critic import ActorCritic, Reference
from ppo.config import EngineConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.experience import LogprobMismatch
from ppo.rollouts import Rollouts
from ppo.setup import ADAM_EPSILON, make_engine, make_estimator, make_experience, make_learner

CPU = torch.device("cpu")
EPOCHS = 3
PROMPTS, REPLIES = (3, 9, 5, 9), (4, 2, 6, 6)
SIZE = {
    "num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 61, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def make_config(micro_batch: int) -> PPOConfig:
    return PPOConfig(
        name="test",
        policy=ModelConfig(precision="fp32"),
        rollout=RolloutConfig(num_rollouts=4, max_new_tokens=6),
        method=MethodConfig(ppo_epochs=EPOCHS),
        optimizer=OptimizerConfig(global_batch=4, micro_batch=micro_batch, learning_rate=1e-3),
    )


def make_actor(variant: str) -> ActorCritic:
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZE))
    if variant == "lora":
        return ActorCritic(add_lora(policy, 2, 4, 0.0))
    if variant == "no_critic":
        return ActorCritic(policy, frozen_layers=1, has_values=False)
    if variant != "own_critic":
        return ActorCritic(policy, frozen_layers=2 if variant == "hydra" else 0)
    return ActorCritic(
        policy, AutoModelForSequenceClassification.from_config(AutoConfig.for_model("llama", num_labels=1, **SIZE))
    )


def make_rollouts() -> Rollouts:
    rng = np.random.default_rng(0)
    tokens = sum(REPLIES)
    return Rollouts(
        rows=[rng.integers(2, 61, p + r).tolist() for p, r in zip(PROMPTS, REPLIES, strict=True)],
        reply_lengths=np.array(REPLIES),
        episode_of_row=np.arange(4),
        sampler_logprobs=torch.zeros(tokens),
        scores=torch.from_numpy(rng.normal(size=tokens)).float(),
        has_reward=np.array([True, True, False, True]),
        row_has_loss=np.array([True, True, False, True]),
        group_of_episode=np.arange(4),
        returns=torch.zeros(tokens),
        correction=torch.ones(tokens),
    )


def run(
    variant: str, micro_batch: int, config: PPOConfig | None = None, adam_epsilon: float = ADAM_EPSILON
) -> tuple[Rollouts, list, dict, int]:
    """The rollouts filled in, the curve, the trained weights, and how often the policy's forward ran with a graph."""
    config = config or make_config(micro_batch)
    actor = make_actor(variant)
    reference = Reference.of(actor)
    engine = make_engine(config, actor, None, adam_epsilon)
    graphs = []
    actor.register_forward_hook(lambda *_: graphs.append(1) if torch.is_grad_enabled() else None)
    rollouts = make_rollouts()
    experience = make_experience(config, engine, reference, CPU)
    experience.measure(rollouts)
    make_estimator(config)(rollouts, 0.05)
    learner = make_learner(config, engine, lambda _: 1e-3, CPU, lambda *words: pytest.fail(str(words)))
    curve = learner.learn(rollouts, 0, 0).curve
    return rollouts, curve, {name: p.detach().clone() for name, p in actor.named_parameters()}, len(graphs)


def table(curve: list[dict[str, float]]) -> torch.Tensor:
    """[updates, metrics]."""
    return torch.tensor([list(row.values()) for row in curve])


@pytest.mark.parametrize("variant", ["own_critic", "shared_head", "hydra"])
def test_one_micro_batch_learns_what_many_learn(variant: str) -> None:
    whole, whole_curve, whole_weights, forwards = run(variant, 4)
    parts, parts_curve, parts_weights, many = run(variant, 1)
    models = 2 if variant == "own_critic" else 1  # a separate critic has a forward of its own
    assert (forwards, many) == (models * EPOCHS, models * 4 * EPOCHS), "no graph outlives its backward"
    for name in ("old_logprobs", "reference_logprobs", "values", "advantages", "returns"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), atol=2e-6, rtol=0)
    torch.testing.assert_close(table(whole_curve), table(parts_curve), atol=1e-5, rtol=0)
    for name, weight in whole_weights.items():
        torch.testing.assert_close(weight, parts_weights[name], atol=2e-4, rtol=0)


def test_a_critic_of_its_own_runs_once_the_policy_has_its_gradients() -> None:
    """So that the states of one model are there at a time."""
    config = make_config(2)
    actor, rollouts, found = make_actor("own_critic"), make_rollouts(), []
    experience = make_experience(config, make_engine(config, actor, None), Reference.of(actor), CPU)
    experience.measure(rollouts)
    make_estimator(config)(rollouts, 0.05)

    def look(module, inputs, outputs) -> None:
        weights = (module.policy.lm_head.weight, module.critic.score.weight)
        found.append((*(out is not None for out in outputs[:2]), *(w.grad is not None for w in weights)))

    actor.register_forward_hook(look)
    make_learner(config, experience.engine, lambda _: 1e-3, CPU, pytest.fail).learn(rollouts, 0, 0)
    policy, critic = (True, False), (False, True)
    first = [(*policy, False, False), (*critic, True, False)]
    assert found == EPOCHS * [*first, (*policy, True, True), (*critic, True, True)]


@pytest.mark.parametrize("variant", ["own_critic", "shared_head"])
def test_a_critic_may_have_a_rate_of_its_own(variant: str) -> None:
    """Adam's first update moves a weight by its rate, wherever the gradient is far above its epsilon."""
    config = make_config(4)
    config = replace(
        config, method=replace(config.method, ppo_epochs=1), critic=replace(config.critic, critic_learning_rate=4e-3)
    )
    before = {name: p.detach().clone() for name, p in make_actor(variant).named_parameters()}
    _, _, after, _ = run(variant, 4, config, adam_epsilon=1e-12)
    moved = {name: (after[name] - before[name]).abs().max().item() for name in after}
    of_policy = {name: x for name, x in moved.items() if name.startswith("policy.")}
    assert of_policy == pytest.approx(dict.fromkeys(of_policy, 1e-3), rel=1e-3)
    # the head says 0 at first, so that what is below its last layer gets no gradient
    of_critic = {n: x for n, x in moved.items() if n not in of_policy and not n.startswith("value_head.inner")}
    assert of_critic == pytest.approx(dict.fromkeys(of_critic, 4e-3), rel=1e-3)


@pytest.mark.parametrize("micro_batch", [4, 1])
@pytest.mark.parametrize("variant", ["own_critic", "shared_head", "hydra", "lora"])
def test_while_the_critic_warms_up_no_bit_of_the_policy_moves_nor_decays(variant: str, micro_batch: int) -> None:
    config = make_config(micro_batch)
    config = replace(
        config,
        critic=replace(config.critic, critic_warmup=1),
        optimizer=replace(config.optimizer, weight_decay=0.1),
    )
    actor, rollouts = make_actor(variant), make_rollouts()
    experience = make_experience(config, make_engine(config, actor, None), Reference.of(actor), CPU)
    learner = make_learner(config, experience.engine, lambda _: 1e-3, CPU, pytest.fail)
    for iteration in range(2):
        before = {name: p.detach().clone() for name, p in actor.named_parameters() if p.requires_grad}
        experience.measure(rollouts)
        make_estimator(config)(rollouts, 0.05)
        curve = learner.learn(rollouts, iteration, EPOCHS * iteration, critic_only=iteration == 0).curve
        moved = {name for name, p in actor.named_parameters() if p.requires_grad and not torch.equal(p, before[name])}
        of_policy = {name for name in before if name.startswith("policy.")}
        assert moved & of_policy == (of_policy if iteration else set())
        assert moved >= before.keys() - of_policy
        assert curve[-1]["value_loss"] < curve[0]["value_loss"], "the critic learns"


def test_where_each_game_has_two_trained_agents_the_first_update_is_on_half_of_the_episodes() -> None:
    def games(micro_batch: int) -> PPOConfig:
        config = make_config(micro_batch)
        both = replace(config.rollout, num_rollouts=2), replace(config.optimizer, global_batch=2)
        return replace(config, rollout=both[0], optimizer=both[1])

    (_, whole, weights, _), (_, parts, wanted, _) = (run("own_critic", size, games(size)) for size in (4, 1))
    assert len(whole) == 2 * EPOCHS
    torch.testing.assert_close(table(whole), table(parts), atol=1e-5, rtol=0)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, wanted[name], atol=2e-4, rtol=0)


def test_a_line_says_why_the_trunk_is_not_cached_the_first_time_that_it_is_not(monkeypatch) -> None:
    rollouts, config = make_rollouts(), make_config(4)
    gib = sum(map(len, rollouts.rows)) * SIZE["hidden_size"] * 4 / 2**30
    monkeypatch.setattr("ppo.experience.FROZEN_CACHE_GIB", 1.5 * gib)
    longer = make_rollouts()
    longer.rows = [row + row for row in longer.rows]
    told = {}
    for variant in ("hydra", "shared_head"):
        actor = make_actor(variant)
        experience = make_experience(config, make_engine(config, actor, None), Reference.of(actor), CPU)
        told[variant] = [experience.cache_notes(each) for each in (rollouts, longer, rollouts, longer)]
    [line] = told["hydra"][1]
    assert line.startswith("the frozen layers run again in every epoch: their states take ")
    assert told == {"hydra": [[], [line], [], []], "shared_head": [[]] * 4}


METHODS = {
    "one update": ("grpo", {}, (False, True)),
    "one update and no KL": ("dr_grpo", {}, (False, False)),
    "one update, with the KL in the reward": ("rloo", {}, (False, True)),
    "several updates": ("grpo", {"ppo_epochs": 2}, (False, True)),
    "several updates and no KL": ("cispo", {"ppo_epochs": 2}, (False, False)),
    "the sampler is corrected for": ("dr_grpo", {"sampler_correction": "token_truncate"}, (True, False)),
    "a critic": ("ppo", {}, (True, True)),
    "a critic and no KL": ("ppo", {"init_kl_coef": 0.0}, (True, False)),
}


def measured(name: str, precision="fp32", **asked: bool) -> tuple[Rollouts, tuple[bool, bool], LogprobMismatch | None]:
    """Rollouts after `measure`, and whether the policy and the reference ran."""
    method, settings, _ = METHODS[name]
    config = replace(make_config(4), policy=ModelConfig(precision=precision), method=MethodConfig(method, **settings))
    actor = make_actor("shared_head" if config.algorithm.has_critic else "no_critic")
    reference, rollouts, ran = Reference.of(actor), make_rollouts(), [0, 0]
    assert reference is not None

    def count(module, given, output) -> None:
        ran[0] += isinstance(output, tuple) and output[0] is not None

    actor.register_forward_hook(count)
    reference.model.register_forward_hook(lambda *_: ran.__setitem__(1, 1))
    found = make_experience(config, make_engine(config, actor, None), reference, CPU).measure(rollouts, **asked)
    return rollouts, (bool(ran[0]), bool(len(rollouts.reference_logprobs))), found


@pytest.mark.parametrize("engine", [EngineConfig("vllm"), EngineConfig(async_rollouts=1)])
def test_another_engine_and_other_weights_are_corrected_for_and_p_old_is_computed(engine: EngineConfig) -> None:
    config = replace(make_config(4), method=MethodConfig("cispo"))
    assert (config.is_off_policy, config.correction, config.sampler_notes) == (False, ("none", 1.0), [])
    config = replace(config, engine=engine)
    assert (config.is_off_policy, config.correction) == (True, ("token_truncate", 2.0))
    assert "p_old / p_sampler of each token, at most 2" in config.sampler_notes[0]
    rollouts, actor = make_rollouts(), make_actor("no_critic")
    rollouts.sampler_logprobs = rollouts.sampler_logprobs - 10  # as of other weights
    made = make_engine(config, actor, None)
    make_experience(config, made, Reference.of(actor), CPU).measure(rollouts, compares=False, shows_kl=False)
    assert not torch.equal(rollouts.old_logprobs, rollouts.sampler_logprobs)
    assert rollouts.correction.max() == 2
    for mode, cap in (("none", 1.0), ("sequence_mask", 3.0), ("geometric_mask", 1.1)):
        asked = replace(config, method=MethodConfig("cispo", sampler_correction=mode))  # type: ignore[arg-type]
        assert asked.correction == (mode, cap)
        assert len(asked.sampler_notes[0]) < 160
    assert replace(config, method=MethodConfig(sampler_cap=1.5)).correction == ("token_truncate", 1.5)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_runs_whose_numbers_are_known_or_not_needed(name: str) -> None:
    rollouts, ran, found = measured(name, compares=False, shows_kl=False)
    assert ran == METHODS[name][2]
    assert (found is not None) == ran[0]
    if ran[0]:
        return
    at_once = name in ("one update", "one update and no KL")
    assert torch.equal(rollouts.old_logprobs, torch.zeros(0) if at_once else rollouts.sampler_logprobs)
    _, (_, reference), _ = measured(name, compares=False, shows_kl=True)
    assert reference, "where its KL is shown"


@pytest.mark.parametrize("name", METHODS)
def test_everything_runs_where_sampler_and_trainer_are_compared(name: str) -> None:
    rollouts, ran, found = measured(name)
    assert ran == (True, True)
    assert found is not None
    assert found.tokens == sum(REPLIES)
    assert found.mean == pytest.approx(float(rollouts.old_logprobs.abs().mean())), "the sampler said 0"


@pytest.mark.parametrize(("name", "runs"), [("one update", False), ("several updates", True)])
def test_in_16_bits_the_samplers_numbers_do_not_serve(name: str, runs: bool) -> None:
    assert measured(name, "bf16", compares=False)[1][0] is runs
    assert measured("one update, with the KL in the reward", "bf16", compares=False)[1][0]


@pytest.mark.parametrize(("name", "variant"), [("one update", "no_critic"), ("one update and no KL", "hydra")])
def test_an_update_by_its_own_log_probabilities_is_that_by_recorded_ones(name: str, variant: str) -> None:
    found = []
    for compares in (True, False):
        method, settings, _ = METHODS[name]
        config = replace(make_config(2), method=MethodConfig(method, **settings))
        actor, rollouts, shown = make_actor(variant), make_rollouts(), []
        engine = make_engine(config, actor, None)
        make_experience(config, engine, Reference.of(actor), CPU).measure(rollouts, compares, shows_kl=False)
        make_estimator(config)(rollouts, config.algorithm.init_kl_coef)
        learner = make_learner(config, engine, lambda _: 1e-3, CPU, pytest.fail)
        learned = learner.learn(rollouts, 0, 0, lambda tokens, logprobs, shown=shown: shown.append((tokens, logprobs)))
        [(tokens, logprobs)] = shown
        assert tokens.sort().values.tolist() == list(range(sum(REPLIES)))
        torch.testing.assert_close(rollouts.old_logprobs[tokens], logprobs, atol=2e-6, rtol=0)
        found.append((rollouts.old_logprobs, table(learned.curve), list(actor.parameters())))
    (old, curve, weights), (own, own_curve, own_weights) = found
    torch.testing.assert_close(own, old, atol=2e-6, rtol=0)
    torch.testing.assert_close(own_curve, curve, atol=2e-6, rtol=0)
    for ours, theirs in zip(own_weights, weights, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)

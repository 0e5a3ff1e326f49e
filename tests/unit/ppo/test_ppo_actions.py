"""A policy over actions in the loop: a turn is one token, with the ratio, the KL and the value of a choice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from acting import TOKENIZER
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.environments.protocol import Observation
from lmgym.errors import InputError
from lmgym.generation.protocol import Candidates, Choice, Completion, ScriptedGenerator
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.models.lora import add_lora
from lmgym.runs.flags import override
from ppo.actor_critic import ActorCritic, Reference
from ppo.check import bias_notes, unread_notes
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.monitoring.metrics import rollout_sums
from ppo.monitoring.safeguards import check_ratio
from ppo.rollouts import Rollouts, gather
from ppo.setup import make_engine, make_estimator, make_experience, make_learner
from ppo.state import LoopState
from ppo.task_setups import TaskSetup, check_setup
from ppo.train import update_kl

CPU = torch.device("cpu")
END, EPOCHS, TEMPERATURE = 1, 3, 0.8
SIZE = {
    "num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 61, "bos_token_id": None, "eos_token_id": END, "pad_token_id": 0,
    "initializer_range": 0.2,
}  # fmt: skip
VARIANTS = ("own_critic", "shared_head", "hydra", "lora")


def configured(micro_batch: int = 4, **method: Any) -> PPOConfig:
    return PPOConfig(
        "test",
        ModelConfig(precision="fp32"),
        RolloutConfig(num_rollouts=4, max_new_tokens=6, temperature=TEMPERATURE, policy_over="actions"),
        method=MethodConfig(**{"ppo_epochs": EPOCHS, **method}),
        optimizer=OptimizerConfig(1e-3, global_batch=4, micro_batch=micro_batch),
    )


def make_actor(variant: str = "shared_head", has_values: bool = True) -> ActorCritic:
    torch.manual_seed(0)
    policy: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZE))
    frozen, critic = 2 if variant == "hydra" else 0, None
    if variant == "lora":
        policy = add_lora(policy, 2, 4, 0.0)
    if variant == "own_critic":
        critic = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("llama", num_labels=1, **SIZE))
    return ActorCritic(policy, critic, frozen, TEMPERATURE, has_values=has_values)


def make_episodes() -> list[Episode]:
    """Of one, two and three turns, with one to four candidates; one has failed, one is truncated."""
    chance = np.random.default_rng(0)
    found, rewards = [], (1.0, -0.5, None, (0.25, 0.5))
    for i, turns in enumerate((1, 3, 2, 1)):
        steps = []
        for _ in range(turns):
            lengths = chance.integers(1, 5, size=chance.integers(1, 5))
            ids = tuple((*chance.integers(2, 61, n).tolist(), 2 + j, END) for j, n in enumerate(lengths))
            chosen = int(chance.integers(len(ids)))
            texts = tuple(f"action {j}" for j in range(len(ids)))
            candidates = Candidates(texts, ids, tuple(map(float, map(len, ids))))
            said = Completion(
                texts[chosen], "eos", ids[chosen], (-0.5,), len(ids[chosen]), Choice(candidates, chosen, 0.25 * i)
            )
            steps.append(Step(chance.integers(2, 61, chance.integers(1, 9)).tolist(), "", said, rewards[i]))
        if isinstance(rewards[i], tuple):  # a reward for each id of the text: their sum is the action's
            steps[-1] = replace(steps[-1], reward=(0.25,) * len(steps[-1].completion.ids))
        found.append(Episode(i, "policy", steps, i != 3, i == 3, [5, 6, 7] if i == 3 else None, {}))
    return found


def run(variant: str, config: PPOConfig) -> tuple[Rollouts, list[dict[str, float]], dict[str, torch.Tensor]]:
    """The rollouts filled in, the curve, and the gradients of the first update."""
    actor = make_actor(variant, config.algorithm.has_critic)
    reference, engine = Reference.of(actor), make_engine(config, actor, None)
    rollouts = gather(make_episodes(), config.reward, groups=np.zeros(4, np.int64))
    make_experience(config, engine, reference, CPU).measure(rollouts)
    make_estimator(config)(rollouts, 0.05)
    gradients: dict[str, torch.Tensor] = {}
    step = engine.step

    def keep() -> bool:
        for name, p in actor.named_parameters() if not gradients else ():
            if p.grad is not None:
                gradients[name] = p.grad.clone()
        return step()

    engine.step = keep  # type: ignore[method-assign]
    learner = make_learner(config, engine, lambda _: 1e-3, CPU, lambda *said: pytest.fail(str(said)))

    def inspect(tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        check_ratio(config.policy.precision, None, rollouts, tokens, logprobs)

    return rollouts, learner.learn(rollouts, 0, 0, inspect).curve, gradients


def by_brute_force(model, row: tuple[list[int], Choice]) -> torch.Tensor:
    """Log-probabilities of a row's candidates, from one whole forward each."""
    prompt, choice = row
    sums = []
    for ids, divisor in zip(choice.candidates.ids, choice.candidates.divisors, strict=True):
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        sums.append(logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum() / divisor)
    return (torch.stack(sums) / TEMPERATURE).log_softmax(-1)


def test_a_turn_is_one_token_and_a_reward_of_every_id_is_added_up() -> None:
    episodes = make_episodes()
    rollouts = gather(episodes, configured().reward)
    steps = [step for episode in episodes for step in episode.steps]
    assert rollouts.reply_lengths.tolist() == [1] * 7
    assert rollouts.choices == [step.completion.choice for step in steps]
    assert [rollouts.prompt(i) for i in range(7)] == [step.prompt for step in steps]
    assert rollouts.scores.tolist() == [1.0, -0.5, -0.5, -0.5, 0.0, 0.0, 0.25 * len(steps[-1].completion.ids)]
    assert rollouts.row_has_loss.tolist() == [True] * 4 + [False] * 2 + [True]
    assert rollouts.sampler_logprobs.tolist() == [-0.5] * 7
    rollouts.old_logprobs = rollouts.reference_logprobs = torch.zeros(7)
    sums = rollout_sums(rollouts, rollouts.scores, 0.0)
    assert sums["policy/entropy"] == (0.25 * 3 + 0.75, 5.0), "that of the choices, and not of what was chosen"


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_micro_batch_learns_what_many_do_and_ratios_begin_at_1(variant: str) -> None:
    whole, curve, gradients = run(variant, configured(8, entropy_coef=0.1))
    parts, parts_curve, parts_gradients = run(variant, configured(1, entropy_coef=0.1))
    for name in ("old_logprobs", "reference_logprobs", "values", "advantages", "returns", "bootstrap"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), atol=2e-6, rtol=0)
    assert gradients.keys() == parts_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, parts_gradients[name], atol=1e-5, rtol=1e-4, msg=name)
    for row, other in zip(curve, parts_curve, strict=True):
        assert row == pytest.approx(other, abs=1e-4)
    assert curve[0]["ratio"] == pytest.approx(1, abs=1e-6)
    assert curve[0]["approx_kl"] == pytest.approx(0, abs=1e-9)
    assert curve[-1]["approx_kl"] > 1e-6
    assert (whole.frozen_states is not None) == (variant == "hydra")


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_probabilities_and_the_kl_are_those_of_the_distribution_over_actions(variant: str) -> None:
    rollouts, _, _ = run(variant, configured())
    assert rollouts.choices is not None
    model = make_actor(variant).causal
    wanted = [
        by_brute_force(model, (rollouts.prompt(i), choice))[choice.chosen].item()
        for i, choice in enumerate(rollouts.choices)
    ]
    assert min(wanted) < -0.5
    torch.testing.assert_close(rollouts.old_logprobs, torch.tensor(wanted), atol=1e-5, rtol=0)
    torch.testing.assert_close(rollouts.reference_logprobs, rollouts.old_logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["own_critic", "shared_head", "hydra"])
def test_a_value_is_that_of_the_prompts_last_token(variant: str) -> None:
    config, actor = configured(), make_actor(variant)
    if actor.value_head is not None:  # it says 0 at first
        torch.nn.init.normal_(actor.value_head.outer.weight)
    rollouts = gather(make_episodes(), config.reward)
    make_experience(config, make_engine(config, actor, None), Reference.of(actor), CPU).measure(rollouts)
    with torch.no_grad():
        _, wanted, _ = actor(pack_last_tokens([rollouts.prompt(i) for i in range(7)]))
    assert wanted.std() > 0.01
    torch.testing.assert_close(rollouts.values, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "reinforce_pp", "cispo", "gspo", "rft"])
def test_an_update_of_a_method_without_a_critic_is_that_of_a_softmax_by_brute_force(method) -> None:
    config = configured(3, method=method, entropy_coef=0.1, init_kl_coef=0.0)
    config = replace(config, rollout=replace(config.rollout, num_generations=2))
    rollouts, _, gradients = run("shared_head", config)
    advantages, model, choices = rollouts.advantages, make_actor().causal, rollouts.choices
    assert choices is not None
    assert advantages.abs().max() > 0.5
    loss = torch.zeros(())
    for i, choice in enumerate(choices):
        if rollouts.loss_mask[i]:
            own = by_brute_force(model, (rollouts.prompt(i), choice))
            entropy = -(own.exp() * own).sum()
            # rho A has the gradient A grad log p where rho is 1; a mean over turns
            loss = loss - (advantages[i] * own[choice.chosen] + 0.1 * entropy) / 5
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[f"policy.{name}"], parameter.grad, atol=1e-5, rtol=1e-3, msg=name)


def test_settings_of_text_are_refused_over_actions_and_scores_of_actions_over_tokens(capsys) -> None:
    for flags, said in (
        ("--policy_over actions --top_p 0.9", "--top_p is not read by --policy_over actions; needed: the other one"),
        ("--policy_over actions --stop .", "--stop is not read by --policy_over actions"),
        (
            "--action_scores word",
            "--action_scores is not read by --policy_over tokens; needed: the other one, or leave",
        ),
    ):
        with pytest.raises(SystemExit):
            override(PPOConfig("x"), flags.split())
        assert said in capsys.readouterr().err
    chosen = override(PPOConfig("x"), ["--policy_over", "actions", "--action_scores", "word"])
    assert chosen.rollout.action_scores == "word"
    experiment = PPOConfig("x", rollout=RolloutConfig(policy_over="actions", top_p=0.9))
    assert unread_notes(experiment) == ["ppo over actions does not read top_p=0.9 of the experiment"]
    assert bias_notes(experiment) == []


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ((), "lists no actions; needed: the texts of all legal actions, as Observation(prompt, ('hit', 'stick')); or"),
        (("fine", "fine"), "lists 'fine' and 'fine', whose tokens are equal; needed: each action once; or"),
    ],
)
def test_a_game_that_cannot_be_chosen_in_is_refused_before_weights_are_loaded(listed, why: str) -> None:
    class Game:
        def reset(self, task, seed):
            return {"script": Observation("hello"), "policy": Observation("hello", listed)}

        def step(self, actions):
            raise AssertionError("no step is needed")

    setup = TaskSetup([{}], [{}], Game, None, "game", players={"script": ScriptedGenerator(["fine"])})  # type: ignore[arg-type]
    check_setup(PPOConfig("x"), setup, TOKENIZER)
    with pytest.raises(InputError) as refused:
        check_setup(PPOConfig("x", rollout=RolloutConfig(policy_over="actions")), setup, TOKENIZER)
    said = "--policy_over actions: Game, first task, seed 0, step 0: the observation of 'policy' "
    assert str(refused.value) == f"{said}{why} leave --policy_over out"


def test_short_actions_are_no_collapse() -> None:
    metrics = {"rollout/failed_rewards": 0.0, "kl/reference": 0.1, "rollout/reply_tokens": 2.0, "reward/mean": 1.0}
    for policy_over, why in (("tokens", "replies have 2.0 tokens on average, 40.0 at first"), ("actions", "")):
        config = PPOConfig("x", rollout=RolloutConfig(policy_over=policy_over))  # type: ignore[arg-type]
        state = LoopState.fresh(config.algorithm.init_kl_coef, config.method)
        state.first_length = 40.0
        assert update_kl(config, state, metrics).startswith(why)
        assert bool(why) == bool(update_kl(config, state, metrics))

"""One whole iteration of updates against another implementation: transformers' own forward, padded, and plain loops."""

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.loading import load_tokenizer
from ppo import experience
from ppo.actor_critic import ActorCritic
from ppo.config import CriticConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.learner import Learned
from ppo.rollouts import gather
from ppo.setup import ADAM_EPSILON, build, make_engine, make_estimator, make_experience, make_learner

RATE, EPOCHS, TEMPERATURE = 1e-3, 3, 0.7
KL, GAMMA, LAM, CLIP, CLIP_VALUE, VF, PENALTY, MOST = 0.1, 0.97, 0.9, 0.02, 0.03, 0.8, 0.25, 3.0


def hand_made() -> list[Episode]:
    """Replies of one to nine tokens: ended and not, of two turns, failed, truncated, with a reward beyond the clip."""
    chance = np.random.default_rng(5)

    def step(reward, reason="eos") -> Step:
        prompt, ids = (chance.integers(5, 500, size=chance.integers(1, high)).tolist() for high in (20, 10))
        if isinstance(reward, tuple):
            ids = ids[:1] * len(reward)
        # numbers that are not the policy's: all are computed again
        return Step(prompt, "", Completion("", reason, tuple(ids), (0.0,) * len(ids), len(ids)), reward)

    def episode(i, *steps, truncated=False, final=None) -> Episode:
        return Episode(i, "policy", list(steps), not truncated, truncated, final, {})

    return [
        episode(0, step(1.5)),
        episode(1, step(-0.5, "length")),
        episode(2, step(0.5), step(-1.0)),
        episode(3, step(None)),
        episode(4, step(20.0), truncated=True, final=[7, 8, 9, 10, 11]),
        episode(5, step((0.1, -0.2, 0.3, 0.4))),
        episode(6, step(0.0)),
        episode(7, step(1.0), step(None), step(2.0)),
    ]


def configured(folder: Path, critic: str = "head", **more) -> PPOConfig:
    names = {"num_layers_unfrozen": -1, "micro_batch": 3, **more}
    return PPOConfig(
        "by_hand",
        ModelConfig(str(folder), precision="fp32"),
        RolloutConfig(num_rollouts=8, temperature=TEMPERATURE),
        RewardConfig(cliprange_reward=MOST, missing_eos_penalty=PENALTY),
        MethodConfig(
            ppo_epochs=EPOCHS, init_kl_coef=KL, cliprange=CLIP, num_layers_unfrozen=names["num_layers_unfrozen"]
        ),
        critic=CriticConfig(critic, gamma=GAMMA, lam=LAM, cliprange_value=CLIP_VALUE, vf_coef=VF),
        optimizer=OptimizerConfig(RATE, 0.01, global_batch=8, micro_batch=names["micro_batch"]),
    )  # fmt: skip


def ours(config: PPOConfig, episodes: list[Episode]) -> tuple[ActorCritic, dict[str, torch.Tensor], Learned]:
    """The policy after an iteration, its critic's and head's weights before, and the losses."""
    tokenizer = load_tokenizer(config.policy.model)
    actor, reference = build(config, tokenizer)
    before = {name: value.clone() for name, value in actor.state_dict().items()}
    engine, device = make_engine(config, actor, None), torch.device("cpu")
    rollouts = gather(episodes, config.reward)
    make_experience(config, engine, reference, device).measure(rollouts)
    assert (rollouts.frozen_states is not None) == (
        config.method.num_layers_unfrozen > 0 and experience.FROZEN_CACHE_GIB > 0
    )
    make_estimator(config)(rollouts, KL)
    learner = make_learner(config, engine, lambda update: RATE, device, lambda *said: pytest.fail(str(said)))
    return actor, before, learner.learn(rollouts, 0, 0)


@dataclass
class ByHand:
    """The same by transformers: a policy, its values and a reference."""

    policy: torch.nn.Module
    critic: torch.nn.Module | None
    inner: torch.nn.Linear
    outer: torch.nn.Linear

    def read(self, rows: list[tuple[list[int], int]], policy=None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Log-probabilities of the last `count` ids of each row, and the value before each: padded on the right."""
        longest = max(len(ids) for ids, _ in rows)
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
        out = (policy or self.policy)(padded, attention_mask=mask, output_hidden_states=True)
        logprobs = (out.logits / TEMPERATURE).log_softmax(-1)
        if self.critic is None:
            values = self.outer(self.inner(out.hidden_states[-1]).relu())[..., 0]
        else:
            trunk = getattr(self.critic, self.critic.base_model_prefix)
            values = self.critic.score(trunk(padded, attention_mask=mask).last_hidden_state)[..., 0]
        found = []
        for row, (ids, count) in enumerate(rows):
            places = range(len(ids) - count - 1, len(ids) - 1)
            chosen = [logprobs[row, place, ids[place + 1]] for place in places]
            found.append((torch.stack(chosen), torch.stack([values[row, place] for place in places])))
        return found

    def value_at_end(self, ids: list[int]) -> float:
        [(_, values)] = self.read([([*ids, 0], 1)])
        return values[0].item()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        modules = {"policy": self.policy, "critic": self.critic, "value_head.inner": self.inner}
        modules["value_head.outer"] = self.outer
        kept = {n: m for n, m in modules.items() if m is not None and not (self.critic and n.startswith("value_head"))}
        return {
            f"{prefix}.{name}": value
            for prefix, module in kept.items()
            for name, value in module.named_parameters()
            if value.requires_grad
        }


def carried_back(rewards: list[float], values: list[float], after: float) -> list[float]:
    """GAE, from the last token to the first."""
    found, carried = [], 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + GAMMA * after - value + GAMMA * LAM * carried
        found.append(carried)
        after = value
    return found[::-1]


@torch.no_grad()
def experienced(model: ByHand, reference, episodes: list[Episode]) -> list[dict[str, list[float]]]:
    """Old log-probabilities, values, advantages and returns of the episodes whose rewards are all known."""
    found = []
    for episode in episodes:
        if any(step.reward is None for step in episode.steps):
            continue
        rows = [([*s.prompt, *s.completion.ids], len(s.completion.ids)) for s in episode.steps]
        read, before = model.read(rows), model.read(rows, reference)
        rewards: list[float] = []
        for step, (old, _), (said, _) in zip(episode.steps, read, before, strict=True):
            dense = step.reward if isinstance(step.reward, tuple) else (*[0.0] * (len(old) - 1), step.reward)
            dense = [max(-MOST, min(MOST, x)) for x in dense]
            dense[-1] -= PENALTY if step.completion.finish_reason == "length" else 0.0
            rewards += [x - KL * (a - b) for x, a, b in zip(dense, old.tolist(), said.tolist(), strict=True)]
        values = [x for _, of_step in read for x in of_step.tolist()]
        after = model.value_at_end(episode.final_prompt) if episode.final_prompt else 0.0
        advantages = carried_back(rewards, values, after)
        found.append({
            "rows": rows, "old": [x for old, _ in read for x in old.tolist()], "values": values,
            "advantages": advantages, "returns": [a + v for a, v in zip(advantages, values, strict=True)],
        })  # fmt: skip
    flat = [x for one in found for x in one["advantages"]]
    mean = sum(flat) / len(flat)
    std = math.sqrt(sum((x - mean) ** 2 for x in flat) / len(flat) + 1e-8)
    for one in found:
        one["advantages"] = [(x - mean) / std for x in one["advantages"]]
    return found


def losses_of(learned: Learned) -> list[tuple[float, float]]:
    """(policy loss, value loss) of each update."""
    return [(update["policy_loss"], update["value_loss"]) for update in learned.curve]


def learned_by_hand(model: ByHand, reference, episodes: list[Episode]) -> list[tuple[float, float]]:
    """The losses of each update, all episodes in each."""
    known = experienced(model, reference, episodes)
    trained = list(model.trained().values())
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=ADAM_EPSILON)
    curve = []
    for _ in range(EPOCHS):
        policy_losses, value_losses = [], []
        for one in known:
            read = model.read(one["rows"])
            new, now = (torch.cat(parts) for parts in zip(*read, strict=True))
            for j, (old, advantage, value, target) in enumerate(
                zip(one["old"], one["advantages"], one["values"], one["returns"], strict=True)
            ):
                ratio = torch.exp(new[j] - old)
                policy_losses.append(-torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)))
                near = value + (now[j] - value).clamp(-CLIP_VALUE, CLIP_VALUE)
                value_losses.append(torch.maximum((now[j] - target) ** 2, (near - target) ** 2) / 2)
        policy, value = (torch.stack(losses).mean() for losses in (policy_losses, value_losses))
        optimizer.zero_grad()
        (policy + VF * value).backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in trained if p.grad is not None))
        for p in trained:
            if p.grad is not None and norm > 1.0:
                p.grad /= norm
        optimizer.step()
        curve.append((policy.item(), value.item()))
    return curve


def assert_same_updates(config: PPOConfig, episodes: list[Episode], critic: Path | None = None) -> None:
    actor, before, learned = ours(config, episodes)
    policy = AutoModelForCausalLM.from_pretrained(config.policy.model, dtype=torch.float32).eval()
    reference = copy.deepcopy(policy)
    width, unfrozen = policy.config.hidden_size, config.method.num_layers_unfrozen
    inner, outer = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, 1)
    judge = None
    if critic is None:
        for name, layer in (("inner", inner), ("outer", outer)):
            layer.load_state_dict({n: before[f"value_head.{name}.{n}"] for n in ("weight", "bias")})
        assert not outer.weight.any(), "values begin at 0"
        assert not outer.bias.any()
    else:
        judge = AutoModelForSequenceClassification.from_pretrained(critic, dtype=torch.float32).eval()
    if unfrozen > 0:
        words = ("wte", "wpe", "embed_tokens", *(f".{i}." for i in range(policy.config.num_hidden_layers - unfrozen)))
        for name, value in policy.named_parameters():
            value.requires_grad_(not any(word in name for word in words))
    model = ByHand(policy, judge, inner, outer)
    curve = learned_by_hand(model, reference, episodes)
    assert losses_of(learned) == [pytest.approx(pair, abs=1e-6) for pair in curve]
    assert len({round(a, 6) for a, _ in curve}) == EPOCHS, "the policy loss changes from update to update"
    after, trained = dict(actor.named_parameters()), model.trained()
    assert {name for name, value in after.items() if value.requires_grad} == set(trained)
    moved = max(float((after[name] - before[name]).detach().abs().max()) for name in trained)
    assert moved > RATE
    for name, value in trained.items():
        assert float((after[name] - value).detach().abs().max()) < 2e-6, name


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_an_iteration_with_a_value_head_equals_one_by_hand(family: str, small_models: dict[str, Path]) -> None:
    assert_same_updates(configured(small_models[family]), hand_made())


@pytest.mark.parametrize("cache_gib", [2.0, 0.0])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_so_does_one_with_frozen_layers_kept_or_run_again(
    family: str, cache_gib: float, small_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppo.experience.FROZEN_CACHE_GIB", cache_gib)
    assert_same_updates(configured(small_models[family], num_layers_unfrozen=1), hand_made())


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_so_does_one_whose_layers_all_learn_above_frozen_embeddings(
    family: str, small_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppo.experience.FROZEN_CACHE_GIB", 0.0)
    assert_same_updates(configured(small_models[family], num_layers_unfrozen=2), hand_made())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_so_does_one_with_a_critic_of_its_own(
    family: str, small_models: dict[str, Path], scorer_folders: dict[str, Path]
) -> None:
    critic = scorer_folders[family]
    assert_same_updates(configured(small_models[family], str(critic)), hand_made(), critic)


@pytest.mark.parametrize("size", [{"micro_batch": 1}, {"micro_batch": 8}, {"tokens_per_micro_batch": 40}])
def test_accumulation_changes_nothing(size: dict[str, int], small_models: dict[str, Path]) -> None:
    config = configured(small_models["gpt2"])
    a, _, losses = ours(config, hand_made())
    other = replace(config, optimizer=replace(config.optimizer, **size))
    b, _, same = ours(other, hand_made())
    assert losses_of(same) == [pytest.approx(pair, abs=1e-5) for pair in losses_of(losses)]
    for (name, one), two in zip(a.named_parameters(), b.parameters(), strict=True):
        assert float((one - two).detach().abs().max()) < 1e-5, name

"""An iteration of each method without a critic against plain loops over transformers' own forward, padded."""

import copy
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.loading import load_tokenizer
from ppo.actor_critic import ActorCritic
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.learner import Learned
from ppo.rollouts import gather
from ppo.setup import ADAM_EPSILON, build, make_engine, make_estimator, make_experience, make_learner

RATE, EPOCHS, TEMPERATURE, KL, LONGEST = 2e-3, 3, 0.8, 0.2, 12
GROUPS = [0, 0, 0, 0, 1, 1, 1, 2]
SAMPLED = -5.0  # the sampler's log-probability of every token: far from the trainer's


def hand_made() -> list[Episode]:
    """Replies of one to nine tokens, some of two turns, one failed, two long; the last is alone in its group."""
    chance = np.random.default_rng(8)

    def step(reward: float | None, reason: Any = "eos", length: int = 0) -> Step:
        prompt = chance.integers(5, 500, size=chance.integers(1, 15)).tolist()
        ids = tuple(chance.integers(5, 500, size=length or chance.integers(1, 9)).tolist())
        return Step(prompt, "", Completion("", reason, ids, (SAMPLED,) * len(ids), len(ids)), reward)

    played = [
        [step(1.5)], [step(-0.5, "length", LONGEST)], [step(0.5), step(-1.0)], [step(None)],
        [step(2.0), step(0.25)], [step(1.0, length=LONGEST - 1)], [step(0.0)], [step(0.7)],
    ]  # fmt: skip
    return [Episode(i, "policy", steps, True, False, None, {}) for i, steps in enumerate(played)]


def ours(config: PPOConfig) -> tuple[ActorCritic, Learned]:
    actor, reference = build(config, load_tokenizer(config.policy.model))
    assert actor.value_head is None
    assert actor.critic is None
    engine, device = make_engine(config, actor, None), torch.device("cpu")
    overlong = config.algorithm.overlong_penalty, config.rollout.max_new_tokens
    rollouts = gather(hand_made(), config.reward, 0, np.array(GROUPS), None, *overlong)
    make_experience(config, engine, reference, device).measure(rollouts)
    make_estimator(config)(rollouts, config.algorithm.init_kl_coef)
    learner = make_learner(config, engine, lambda _: RATE, device, lambda *said: pytest.fail(str(said)))
    return actor, learner.learn(rollouts, 0, 0)


def read(model, row: Step) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probability of each sampled id, and the entropy of the distribution that it is from."""
    ids, count = [*row.prompt, *row.completion.ids], len(row.completion.ids)
    logprobs = (model(torch.tensor([ids])).logits[0] / TEMPERATURE).log_softmax(-1)
    places = range(len(ids) - count - 1, len(ids) - 1)
    spread = [-(logprobs[place].exp() * logprobs[place]).sum() for place in places]
    return [logprobs[place, ids[place + 1]] for place in places], spread


def standardised(numbers: list[float], scale: float) -> list[float]:
    mean = statistics.fmean(numbers)
    return [(x - mean) / (scale + 1e-4) for x in numbers]


class ByHand:
    """The method in words of one syllable: lists of numbers, and a loop for everything."""

    def __init__(self, config: PPOConfig, policy, reference) -> None:
        self.config, self.policy, self.method = config, policy, config.method.method
        self.algorithm, self.in_loss = config.algorithm, config.algorithm.kl_in == "loss"
        self.episodes = hand_made()
        with torch.no_grad():
            self.old = [[[x.item() for x in read(policy, step)[0]] for step in e.steps] for e in self.episodes]
            self.said = [[[x.item() for x in read(reference, step)[0]] for step in e.steps] for e in self.episodes]

    def token_rewards(self, e: int, t: int) -> list[float]:
        step, rewards = self.episodes[e].steps[t], [0.0] * len(self.old[e][t])
        assert step.reward is not None
        assert not isinstance(step.reward, tuple)
        rewards[-1] += step.reward
        room = self.config.reward.overlong_buffer * LONGEST
        beyond = len(rewards) - (LONGEST - room)
        if beyond > 0:
            rewards[-1] -= self.algorithm.overlong_penalty * min(1.0, beyond / room)
        kl = 0.0 if self.in_loss else KL
        return [x - kl * (a - b) for x, a, b in zip(rewards, self.old[e][t], self.said[e][t], strict=True)]

    def known(self) -> list[int]:
        return [i for i, e in enumerate(self.episodes) if all(step.reward is not None for step in e.steps)]

    def compared(self, worth: dict[Any, float], group: dict[Any, Any]) -> dict[Any, float]:
        """Advantages of replies, by their rewards and groups."""
        found, all_rewards = {}, list(worth.values())
        for key, reward in worth.items():
            peers = [worth[other] for other in worth if group[other] == group[key]]
            centred = reward - statistics.fmean(peers)
            if self.method == "rft":
                found[key] = float(reward >= statistics.median(peers) and reward > min(peers))
            elif self.method == "rloo":
                found[key] = centred * len(peers) / (len(peers) - 1) if len(peers) > 1 else 0.0
            elif self.method == "dr_grpo" or self.method == "reinforce_pp_baseline":
                found[key] = centred
            elif self.algorithm.scale_rewards == "batch":
                found[key] = centred / (statistics.stdev(all_rewards) + 1e-4)
            else:
                found[key] = centred / ((statistics.stdev(peers) if len(peers) > 1 else 0.0) + 1e-4)
        if self.method == "reinforce_pp_baseline":
            scaled = standardised(list(found.values()), statistics.stdev(found.values()))
            found = dict(zip(found, scaled, strict=True))
        if self.method == "rft":
            found = {key: best * len(found) / sum(found.values()) for key, best in found.items()}
        return found

    def advantages(self) -> dict[tuple[int, int], list[float]]:
        """Of each token, by episode and turn."""
        rewards = {(e, t): self.token_rewards(e, t) for e in self.known() for t in range(len(self.old[e]))}
        if self.method == "reinforce_pp":
            following = {}
            for e, t in rewards:
                for i in range(len(rewards[e, t])):
                    later = [x for (a, b), row in rewards.items() for x in row if a == e and b > t]
                    following[e, t, i] = sum(rewards[e, t][i:]) + sum(later)
            numbers = list(following.values())
            scaled = dict(zip(following, standardised(numbers, statistics.stdev(numbers)), strict=True))
            return {(e, t): [scaled[e, t, i] for i in range(len(row))] for (e, t), row in rewards.items()}
        if self.config.method.credit == "turn":
            worth = {(e, t): sum(sum(row) for (a, b), row in rewards.items() if a == e and b >= t) for e, t in rewards}
            found = self.compared(worth, {(e, t): (GROUPS[e], t) for e, t in rewards})
            return {key: [found[key]] * len(row) for key, row in rewards.items()}
        whole = {e: sum(sum(row) for (a, _), row in rewards.items() if a == e) for e in self.known()}
        of_episode = self.compared(whole, {e: GROUPS[e] for e in whole})
        return {(e, t): [of_episode[e]] * len(row) for (e, t), row in rewards.items()}

    def loss(self, advantages: dict[tuple[int, int], list[float]]) -> torch.Tensor:
        method, low, high = self.config.method, self.algorithm.epsilon_low, self.algorithm.epsilon_high
        replies: list[list[torch.Tensor]] = []
        for (e, t), of_tokens in advantages.items():
            step = self.episodes[e].steps[t]
            if self.config.reward.mask_truncated and step.completion.finish_reason == "length":
                continue
            new, entropies = read(self.policy, step)
            log_ratios = [a - b for a, b in zip(new, self.old[e][t], strict=True)]
            if self.algorithm.importance_sampling_level == "sequence":
                log_ratios = [torch.stack(log_ratios).mean()] * len(new)
            product = math.exp(sum(old - SAMPLED for old in self.old[e][t]))
            replies.append([])
            for i, advantage in enumerate(of_tokens):
                ratio = log_ratios[i].exp()
                if self.method == "cispo":
                    loss = -ratio.detach().clamp(1 - low, 1 + high) * advantage * new[i]
                elif self.method == "rft":
                    loss = -advantage * new[i]
                else:
                    free = ratio if method.delta is None else torch.minimum(ratio, torch.tensor(method.delta))
                    loss = -torch.minimum(free * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
                if method.sampler_correction == "token_truncate":
                    loss = loss * min(method.sampler_cap, math.exp(self.old[e][t][i] - SAMPLED))
                elif method.sampler_correction == "sequence_mask":
                    loss = loss * (product if product <= method.sampler_cap else 0.0)
                if self.in_loss:
                    x = new[i] - self.said[e][t][i]
                    kinds = {"k1": x, "k2": x * x / 2, "k3": torch.exp(-x) - 1 + x}
                    loss = loss + KL * kinds[self.algorithm.kl_estimator]
                replies[-1].append(loss - method.entropy_coef * entropies[i])
        match self.algorithm.loss_aggregation:
            case "token":
                return torch.stack([x for reply in replies for x in reply]).mean()
            case "sequence":
                return torch.stack([torch.stack(reply).mean() for reply in replies]).mean()
            case "constant":
                return torch.stack([torch.stack(reply).sum() / LONGEST for reply in replies]).mean()

    def learn(self) -> list[float]:
        advantages = self.advantages()
        trained = list(self.policy.parameters())
        groups = [{"params": [p for p in trained if (p.ndim > 1) == wide]} for wide in (True, False)]
        optimizer = torch.optim.AdamW(groups, lr=RATE, eps=ADAM_EPSILON, weight_decay=0.0)
        curve = []
        for _ in range(EPOCHS):
            loss = self.loss(advantages)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            curve.append(loss.item())
        return curve


CASES: dict[str, dict[str, Any]] = {
    "rloo": {"method": "rloo"},
    "rloo by turn": {"method": "rloo", "credit": "turn"},
    "grpo": {"method": "grpo"},
    "grpo scaled by the batch": {"method": "grpo", "scale_rewards": "batch"},
    "dr_grpo": {"method": "dr_grpo"},
    "reinforce_pp": {"method": "reinforce_pp", "cliprange": 0.4},
    "reinforce_pp_baseline": {"method": "reinforce_pp_baseline"},
    "dapo": {"method": "dapo"},
    "gspo": {"method": "gspo", "cliprange": 0.01},
    "cispo": {"method": "cispo", "epsilon_high": 0.02},
    "rft": {"method": "rft", "percentile": 0.5},
    "all beside": {
        "method": "grpo", "delta": 1.3, "entropy_coef": 0.05, "sampler_correction": "token_truncate",
        "sampler_cap": 1.05, "kl_estimator": "k2", "loss_aggregation": "constant",
    },
    "masked replies": {"method": "grpo", "sampler_correction": "sequence_mask", "sampler_cap": 500.0},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_iteration_equals_one_by_hand(case: str, small_models: dict[str, Path]) -> None:
    folder = small_models["llama"]
    settings = {"ppo_epochs": EPOCHS, "init_kl_coef": KL, "cliprange": 0.05} | CASES[case]
    config = PPOConfig(
        "by_hand",
        ModelConfig(str(folder), precision="fp32"),
        RolloutConfig(num_rollouts=8, num_generations=4, temperature=TEMPERATURE, max_new_tokens=LONGEST),
        RewardConfig(mask_truncated=case == "dapo"),
        MethodConfig(**settings),
        optimizer=OptimizerConfig(RATE, 0.0, global_batch=8, micro_batch=3),
    )
    actor, learned = ours(config)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    curve = ByHand(config, policy, copy.deepcopy(policy)).learn()
    assert [update["policy_loss"] for update in learned.curve] == pytest.approx(curve, abs=2e-6)
    assert len({round(loss, 6) for loss in curve}) == EPOCHS, "the loss changes from update to update"
    for name, value in policy.named_parameters():
        assert float((actor.policy.get_parameter(name) - value).detach().abs().max()) < 1e-5, name
    if case not in ("gspo", "dapo", "rloo by turn", "rft"):
        assert 0 < learned.means["clip_fraction"] < 1, "some tokens are clipped and some are not"

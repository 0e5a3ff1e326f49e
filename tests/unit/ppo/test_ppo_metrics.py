"""Figures of an iteration by hand, the clock of its phases, and the weights that sample, in step with what learns."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ppo.monitoring.metrics
from lmgym.config import ModelConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion, Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.report.status_line import StatusLine
from lmgym.scoring.scorers import TextCounts
from lmgym.text import Conversation, Turn, to_transcript
from ppo.config import PPOConfig, RewardConfig
from ppo.evaluation import table_rows
from ppo.experience import LogprobMismatch
from ppo.learner import Learned
from ppo.monitoring.metrics import (
    Clock,
    episode_sums,
    iteration_metrics,
    reduce_means,
    rollout_sums,
    status_figures,
    text_sums,
)
from ppo.rollouts import gather
from ppo.setup import build
from ppo.weight_sync import SamplingPolicy


def step(ids: int, reward, reason: str = "eos", shortened: int = 0) -> Step:
    said = Completion("", reason, tuple(range(ids)), (-0.5,) * ids, ids)  # type: ignore[arg-type]
    return Step([1, 2], "", said, reward, shortened=shortened)


def episode(*steps: Step, truncated: bool = False) -> Episode:
    return Episode(0, "policy", list(steps), not truncated, truncated, None, {})


EPISODES = [
    episode(step(2, 1.0), replace(step(4, 2.0, "length", shortened=3), appended=True)),
    episode(step(3, (0.5, 0.0, 0.5)), truncated=True),
    episode(step(1, None)),
]


def test_what_is_said_of_episodes_by_hand() -> None:
    assert [one.total_reward for one in EPISODES] == [3.0, 1.0, None]
    found = reduce_means(episode_sums(EPISODES))
    assert found["reward/mean"] == 2.0
    assert found["reward/squares"] == 5.0
    assert found["rollout/reply_tokens"] == 2.5
    assert found["rollout/turns"] == pytest.approx(4 / 3)
    assert found["rollout/truncated_fraction"] == found["rollout/cut_prompts"] == 0.25
    assert found["rollout/appended_prompts"] == 1, "of the one prompt that follows another"
    assert "rollout/appended_prompts" not in episode_sums(EPISODES[1:])
    assert found["rollout/failed_rewards"] == found["rollout/truncated_episodes"] == pytest.approx(1 / 3)
    assert math.isnan(reduce_means({"nothing": (0.0, 0.0)})["nothing"])


def test_rows_show_what_the_policy_saw_without_the_templates_marks() -> None:
    said, rendered = Completion("hit", "eos", (3,), (-0.5,), 1), "<|user|>You hold 16.<|end|>\n<|bot|>\n"
    chat = Conversation((Turn("user", "You hold 16."),))
    seen = [Step([1, 2], rendered, said, 0.0, observed=chat), Step([1, 2], "a text", said, 1.0, observed="a text")]
    first, second = (row["prompt"] for row in table_rows([episode(*seen)]))
    assert first == to_transcript(chat)
    assert "You hold 16." in first
    assert "<|" not in first
    assert second == "a text"


def test_an_iterations_line_by_hand_without_the_failed_episode() -> None:
    rollouts = gather(EPISODES, RewardConfig())
    tokens = len(rollouts.scores)
    rollouts.old_logprobs = torch.full((tokens,), -1.0)
    rollouts.reference_logprobs = torch.full((tokens,), -1.5)
    rollouts.reference_logprobs[-1] = -1e9  # of the failed one
    rollouts.values = torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 0, 0, 1e9])
    rollouts.returns = torch.tensor([2.0, 2, 2, 2, 2, 2, 0, 0, 0, 0])
    sums = rollout_sums(rollouts, rollouts.scores, 0.1)
    means = {"policy_loss": 0.5, "value_loss": 2.0, "approx_kl": 0.01, "clip_fraction": 0.1, "ratio": 1.0}
    learned = Learned(means, [], stopped_early=True, rate=1e-5, skipped=2)
    line = iteration_metrics(
        {**reduce_means(episode_sums(EPISODES)), **reduce_means(sums)},
        learned,
        LogprobMismatch(1e-6, 2e-6, 5, 0.1, 0.2),
        0.5,
    )
    assert line["kl/reference"] == pytest.approx(9 * 0.5 / 3), "nats a reply, of which the first episode has two"
    assert line["kl/sqrt_reference"] == pytest.approx(math.sqrt(1.5))
    assert line["kl/reference_per_token"] == pytest.approx(0.5)
    assert line["kl/reference_k3"] == pytest.approx(math.exp(-0.5) - 1 + 0.5)
    assert line["policy/entropy"] == pytest.approx(0.5)
    # residuals: six of 1, three of 0; returns: six of 2, three of 0
    assert line["values/explained_variance"] == pytest.approx(1 - (2 / 9) / (8 / 9))
    assert line["values/mean"] == pytest.approx(2 / 3)
    assert line["returns/std"] == pytest.approx(math.sqrt(8 / 9))
    assert line["reward/std"] == pytest.approx(1.0)
    assert line["loss/total"] == 0.5 + 0.5 * 2.0
    assert line["policy/stopped_early"] == 1.0
    assert line["policy/skipped_updates"] == 2.0
    assert line["rollout/trained_tokens"] == 9
    assert not [name for name in line if "squares" in name]
    assert (line["sampler/kl"], line["sampler/chi_square"]) == (0.1, 0.2)
    assert "sampler/masked_replies" not in line, "there are none"


def test_strengths_that_sum_to_0_in_each_group_have_a_mean_of_0() -> None:
    strengths = [0.1, 0.2, -0.3, 1.1, 2.2, -3.3]
    assert sum(strengths) != 0.0, "by rounding"
    scored = [replace(step(1, one), scores={"j": one}) for one in strengths]
    found = reduce_means(episode_sums([episode(one) for one in scored]))
    assert (found["reward/mean"], found["scores/j"]) == (0.0, 0.0)
    assert status_figures(found, "", 8) == ["reward 0"]
    small = reduce_means(episode_sums([episode(step(1, one)) for one in (1.0, -1.0, 1e-9)]))
    assert small["reward/mean"] == pytest.approx(1e-9 / 3)


def test_replies_that_the_correction_masks_are_counted_among_those_that_have_loss() -> None:
    rollouts = gather(EPISODES, RewardConfig())
    with_loss = int(rollouts.row_has_loss.sum())
    assert 1 < with_loss < len(rollouts.rows)
    rollouts.correction[: rollouts.row_starts[1]] = 0.0  # of the first reply
    rollouts.correction[rollouts.row_starts[1]] = 0.0  # of a token of the second
    rollouts.correction[rollouts.row_starts[-2] :] = 0.0  # of the failed one
    found = reduce_means(rollout_sums(rollouts, rollouts.scores, 0.0, has_critic=False))
    assert found["sampler/masked_replies"] == pytest.approx(1 / with_loss)


def test_without_the_reference_its_kl_is_absent_and_not_0() -> None:
    rollouts = gather(EPISODES, RewardConfig())
    rollouts.old_logprobs = rollouts.sampler_logprobs
    sums = rollout_sums(rollouts, rollouts.scores, 0.0, has_critic=False)
    means = {"policy_loss": 0.5, "approx_kl": 0.01, "clip_fraction": 0.1, "ratio": 1.0}
    learned = Learned(means, [], stopped_early=False, rate=1e-5, skipped=0)
    both = {**reduce_means(episode_sums(EPISODES)), **reduce_means(sums)}
    line = iteration_metrics(both, learned, LogprobMismatch(0.0, 0.0, 9), 0.5)
    assert not [name for name in line if name.startswith("kl/") or name == "reward/kl_penalty"]
    assert line["reward/total"] == pytest.approx(line["reward/mean"]), "without a penalty"
    assert status_figures(line | {"rollout/tokens_per_second": 5.0}, "", 8) == ["5 tokens/s", "reward 2"]


class Watch:
    """A supervisor that only hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def heartbeat(self, doing: str) -> None:
        self.heard.append(doing)


def test_each_phase_has_its_seconds_and_an_evaluation_is_not_the_iterations(monkeypatch) -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(ppo.monitoring.metrics.time, "perf_counter", lambda: next(now))
    supervisor = Watch()
    clock = Clock(supervisor, StatusLine("PPO", 1, "updates", shown=False))  # type: ignore[arg-type]
    for name in ("generate", "score", "generate", "evaluate"):
        clock.phase(name)
    found = clock.seconds(120.0)
    assert found["time/generate"] == 2.0 + 4.0
    assert found["time/score"] == 3.0
    assert found["time/rollout"] == 9.0
    assert found["time/evaluate"] == 5.0
    assert found["time/iteration"] == 9.0
    assert found["rollout/tokens_per_second"] == pytest.approx(120 / 9)
    assert supervisor.heard[:2] == ["generate", "score"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_weights_that_sample_follow_those_that_learn(precision: str, small_models: dict[str, Path]) -> None:
    name = str(small_models["llama"])
    tokenizer = load_tokenizer(name)
    actor, _ = build(PPOConfig("x", ModelConfig(name, precision=precision)), tokenizer)  # type: ignore[arg-type]
    sampler = SamplingPolicy(actor, tokenizer, precision, sharded=False, under_deepspeed=False, rows=4)
    assert sampler.copied == (precision == "bf16")

    def sampled() -> tuple[float, ...]:
        sampler.sync()
        [[one]] = sampler.generator.generate([[5, 6, 7]], 1, Sampling(6, seed=1))
        return one.logprobs

    before = sampled()
    with torch.no_grad():
        for value in actor.policy.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    assert sampled() != before
    assert all(value.dtype == torch.float32 for value in actor.policy.parameters()), "what learns stays fp32"
    for trained, own in zip(actor.policy.parameters(), sampler.policy.parameters(), strict=True):
        assert torch.equal(trained.to(own.dtype), own)


def test_the_texts_that_scorers_saw_cut_are_shares_of_an_iteration() -> None:
    before, now = {"a": TextCounts(10, 4, 1)}, {"a": TextCounts(18, 6, 2)}
    assert text_sums(before, now) == {"scores/a/truncated": (2, 8), "scores/a/shortened": (1, 8)}

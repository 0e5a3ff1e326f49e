"""The lambdas of policy and critic: apart, of each row, and by the episode's length."""

import numpy as np
import pytest
import torch

from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from ppo.algorithms.learning import estimate_by_critic
from ppo.config import CriticConfig, RewardConfig
from ppo.rollouts import Rollouts, gather


def played(lengths: tuple[int, ...]) -> Rollouts:
    """An episode of each length, with values that chance says and a reward of 1 at the end."""
    steps = [Step([1], "", Completion("", "eos", (5,) * n, (-1.0,) * n, n), 1.0) for n in lengths]
    found = gather(
        [Episode(i, "policy", [step], True, False, None, {}) for i, step in enumerate(steps)], RewardConfig()
    )
    found.values = torch.from_numpy(np.random.default_rng(0).normal(size=sum(lengths))).float()
    found.bootstrap = torch.zeros(len(lengths))
    return found


def test_two_tokens_by_hand_with_lambdas_apart() -> None:
    # values .5 and .25, reward 1 at the end: deltas .25 - .5 = -.25 and .75; lambda .5 gives -.25 + .375 and .75
    rollouts = played((2,))
    rollouts.values = torch.tensor([0.5, 0.25])
    critic = CriticConfig(lam=0.5, lam_value=1.0, whiten=False)
    estimate_by_critic(critic, rollouts, rollouts.padded(rollouts.scores))
    assert rollouts.advantages.tolist() == pytest.approx([0.125, 0.75])
    assert rollouts.returns.tolist() == pytest.approx([1.0, 1.0]), "lambda 1: the rewards that follow"


def test_the_adaptive_lambda_grows_with_the_episode_and_leaves_the_critics_alone() -> None:
    """1 - 1 / (.25 l): 0 for 4 tokens or fewer, .5 for 8."""
    adaptive, fixed = played((3, 8)), [played((3, 8)) for _ in range(2)]
    estimate_by_critic(
        CriticConfig(lam=0.9, lam_adaptive=0.25, whiten=False), adaptive, adaptive.padded(adaptive.scores)
    )
    for one, lam in zip(fixed, (0.0, 0.5), strict=True):
        critic = CriticConfig(lam=lam, lam_value=0.9, whiten=False)
        estimate_by_critic(critic, one, one.padded(one.scores))
    torch.testing.assert_close(adaptive.advantages[:3], fixed[0].advantages[:3])
    torch.testing.assert_close(adaptive.advantages[3:], fixed[1].advantages[3:])
    torch.testing.assert_close(adaptive.returns, fixed[0].returns)

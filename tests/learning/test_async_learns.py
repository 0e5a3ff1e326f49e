"""PPO learns from rollouts that were sampled one iteration ahead, unless their rewards are of another iteration."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_ppo_learns import BAR, optimality

import ppo.pending
from ppo.experiments.randomwalks import CONFIG
from ppo.rollouts import Played

AHEAD = replace(CONFIG, engine=replace(CONFIG.engine, async_rollouts=1))


def reward_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walk has the reward of the one that was in its place in the iteration before."""
    play, former = ppo.pending.roll_out, []

    def misplaced(*given) -> Played:
        played = play(*given)
        rewards = [episode.total_reward for episode in played.episodes]
        for place, reward in enumerate(former):
            episode = played.episodes[place]
            played.episodes[place] = replace(episode, steps=[replace(step, reward=reward) for step in episode.steps])
        former[:] = rewards
        return played

    monkeypatch.setattr(ppo.pending, "roll_out", misplaced)


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_walks_of_the_weights_before_are_learned_from_with_their_own_rewards_alone(
    broken: bool, start: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # on seeds 11 to 13: .795, .795, .773; with the rewards of the iteration before .49 and .62 on 11 and 12
    if broken:
        reward_as_before(monkeypatch)
    found = optimality(start, tmp_path, given=AHEAD)
    assert (found < BAR - 0.05) if broken else (found > BAR)

"""When a policy has stopped to be one: bounds that end a run, and an alarm for rewards that are hacked.

The reward alone looks healthy while a policy exploits its scorer (Gao et al. 2022): a scorer that is only watched, the
KL and the length of replies tell.
"""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from lmgym.distributed.ranks import all_gather_objects
from lmgym.errors import COLLAPSED, REWARDS_FAILED, RunStopped
from lmgym.runs.resuming import FOLDER
from lmgym.runs.run import Run
from ppo.config import MethodConfig


def collapse(metrics: Mapping[str, float], method: MethodConfig, first_length: float) -> str:
    """Why a run should stop now; empty where it should not."""
    kl, length, reward = metrics["policy/kl"], metrics["rollout/reply_tokens"], metrics["reward/mean"]
    if not math.isfinite(kl) or 0 < method.max_kl < kl:
        return f"the policy is {kl:.1f} nats a reply from its reference, more than max_kl={method.max_kl:g}"
    if method.min_reward is not None and reward < method.min_reward:
        return f"the mean reward is {reward:.3f}, less than min_reward={method.min_reward:g}"
    if length < method.min_length * first_length:
        return (
            f"replies have {length:.1f} tokens on average, {first_length:.1f} at first: less than the share "
            f"min_length={method.min_length:g}"
        )
    return ""


def stop_collapsed(why: str, run: Run, sampled_after: int) -> RunStopped:
    """The end of a collapsed run, at its last good checkpoint: one that was followed by replies within bounds.

    The weights that sampled are those after `sampled_after` updates: a checkpoint of them is set aside, or a relaunch
    would begin with a collapsed policy. Collective.
    """
    folder, kept = run.folder / FOLDER, ""
    bad = folder / f"step-{sampled_after:08d}"
    if run.is_main and bad.is_dir():
        aside = folder / f"collapsed-{bad.name}"
        shutil.rmtree(aside, ignore_errors=True)
        bad.rename(aside)
        kept = f"{bad.name} is of this policy and was set aside as {aside}; "
    good = sorted(folder.glob("step-*"))
    kept += f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint of before"
    advice = "raise init_kl_coef, lower learning_rate, or look at the samples of the last iterations"
    error = RunStopped(f"collapsed: {why}; {kept}; {advice}", "collapsed", COLLAPSED)
    run.finish(error.outcome, error.exit_code, error)
    all_gather_objects(None)  # a launcher kills the others once one has left
    return error


@final
@dataclass
class Alarm:
    """Tells once that the watched score falls while the reward rises: both against where the watched one was best."""

    best_gold: float = -math.inf
    reward_then: float = -math.inf
    raised_at: int = -1
    history: list[tuple[float, float]] = field(default_factory=list)

    def hear(self, update: int, reward: float, gold: float, gold_error: float) -> bool:
        """Whether the alarm is on after this evaluation: two standard errors below the best, at a higher reward."""
        self.history.append((reward, gold))
        if gold > self.best_gold:
            self.best_gold, self.reward_then = gold, reward
        on = gold < self.best_gold - 2 * gold_error and reward > self.reward_then
        if on and self.raised_at < 0:
            self.raised_at = update
        return on

    def words(self, update: int, reward: float, gold: float) -> str:
        """What people are told."""
        return (
            f"ALARM at update {update}: the watched score fell to {gold:.3f} (best {self.best_gold:.3f}) while the "
            f"reward rose from {self.reward_then:.3f} to {reward:.3f}: the policy exploits its reward; look at samples,"
            " stop at an earlier checkpoint, or raise init_kl_coef"
        )

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, for a checkpoint."""
        return {"best_gold": self.best_gold, "reward_then": self.reward_then, "raised_at": self.raised_at}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Goes on from there."""
        self.best_gold, self.reward_then = state["best_gold"], state["reward_then"]
        self.raised_at = int(state["raised_at"])


def stop_if_too_many_failed(failed: int, asked: int, most: float, error: str) -> None:
    """Raises RunStopped where more than the share `most` of rewards failed. Counts are of all ranks: all agree."""
    if failed > most * asked:
        why = f"{failed} of {asked} rewards could not be had, more than max_failed_rewards={most:g} allows"
        raise RunStopped(f"{why}; one of them: {error}", "rewards_failed", REWARDS_FAILED)

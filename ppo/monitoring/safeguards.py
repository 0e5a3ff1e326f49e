"""Safeguards: sampler, trainer and reference must agree before an update; a collapsed policy ends the run.

The reward alone looks healthy while a policy exploits its scorer (Gao et al. 2022). The KL, the length of replies and a
scorer that is not optimised show it.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch

from lmgym.aids import aid
from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks
from lmgym.environments.episodes import Episode
from lmgym.errors import COLLAPSED, REWARDS_FAILED, InputError, RunStopped
from lmgym.runs.resuming import FOLDER
from lmgym.runs.run import Run
from ppo.algorithms.methods import Algorithm
from ppo.config import LimitConfig, SamplerCorrection
from ppo.experience import LogprobMismatch, mismatch_of
from ppo.rollouts import Rollouts
from ppo.setup import TrainingComponents
from ppo.state import LoopState
from ppo.weight_sync import Rounding, allowed_difference, measure_rounding

FAILED = "their replies have no loss: "
"""part of the note on the failed rewards of an iteration, before a reason"""
COARSE_ROUNDING = 0.1
"""nats per token between a model's log-probabilities in 16 bits and in fp32 above which users are warned: half of PPO's
clip range"""
LITTLE_EXPLAINED, FEWEST_ITERATIONS = 0.1, 8
"""share of the returns' variance below which users are warned, in runs of so many iterations or more"""
MOST_EQUAL = 0.5
"""share of groups with equal rewards above which users are warned"""
RATIO = "the first update's ratio would not be 1; a defect of ours, or an untested family"


def check_rollouts(
    c: TrainingComponents,
    state: LoopState,
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    mismatch: LogprobMismatch | None,
) -> list[str]:
    """Raises InputError, on all ranks, if sampler, trainer and reference disagree. Collective.

    Without a mismatch `FirstForward` compares sampler and trainer. Stale rollouts are of other weights than the
    trainer's: their log-probabilities must differ, and only those of the next rollouts' weights are compared. Returns
    warnings.
    """
    notes, precision = list[str](), c.experience.precision
    raise_on_all_ranks(partial(check_finite, precision, c.tokenizer, rollouts))
    raise_on_all_ranks(partial(c.sampler.refuse_stale, c.engine.version))
    if mismatch is not None and not rollouts.staleness:
        if c.sampler.whole is None:
            notes = server_notes(precision, c.experience.correction, state, mismatch)
        elif rounding := _check_distance(c, state, rollouts, mismatch):
            notes = rounding_notes(rounding, c.learner.algorithm.epsilon_high)
    if state.iteration == 0:
        eos, rounded = c.sampler.generator.eos, state.rounding
        at_reference = state.begins_at_reference
        raise_on_all_ranks(
            partial(check_first_rollouts, precision, c.tokenizer, eos, episodes, rollouts, rounded, at_reference)
        )
    return notes


def _check_distance(
    c: TrainingComponents,
    state: LoopState,
    rollouts: Rollouts,
    mismatch: LogprobMismatch,
    rows: np.ndarray | None = None,
) -> Rounding | None:
    """Raises InputError, on all ranks, if sampler and trainer, in old_logprobs, disagree on `rows`. Collective.

    The allowed difference is measured on the first rollouts, for which it is returned, and again if it is exceeded.
    """
    known, precision = state.rounding, c.experience.precision
    if c.sampler.whole is None:
        return None
    found = mismatch.largest if precision == "fp32" else mismatch.mean
    if known is not None and found <= allowed_difference(precision, known, mismatch.tokens):
        return None
    rounding = measure_rounding(
        c.sampler.whole, rollouts, c.experience.actor.temperature, c.experience.device, precision, rows
    )
    raise_on_all_ranks(partial(check_sampler, c.tokenizer, rollouts, rounding))
    state.rounding = rounding.trainer
    return rounding if known is None else None


def server_notes(
    precision: str, correction: tuple[SamplerCorrection, float], state: LoopState, mismatch: LogprobMismatch
) -> list[str]:
    """A line on the first rollouts' distance from a server's log-probabilities; its weights were proved at the sync.

    The distance, of two computations that round differently, stands for the policy's own rounding.
    """
    if state.iteration:
        return []
    state.rounding = mismatch.largest if precision == "fp32" else mismatch.mean
    mode, cap = correction
    return [
        f"server and trainer differ by {mismatch.mean:.2g} nats a token, at most {mismatch.largest:.2g} "
        f"({mismatch.tokens:,} tokens); corrected by {mode}, {cap:g}"
    ]


def check_finite(precision: str, tokenizer, rollouts: Rollouts) -> None:
    """Raises InputError, naming the token, for a log-probability that is not finite."""
    wrong = ~torch.isfinite(rollouts.old_logprobs)
    if wrong.any():
        index = int(wrong.long().argmax())
        raise InputError(
            f"the policy gives {_token(tokenizer, rollouts, index)} the log-probability "
            f"{rollouts.old_logprobs[index]:g}: its weights hold numbers that are not finite, or too large for "
            f"{precision}; needed: a model with finite log-probabilities"
        )


def check_sampler(tokenizer, rollouts: Rollouts, rounding: Rounding) -> None:
    """Raises InputError if sampler and trainer differ by more than the policy's own rounding explains."""
    if rounding.sampler <= rounding.allowed:
        return
    worst = int((rollouts.old_logprobs - rollouts.sampler_logprobs).abs().argmax()) if len(rollouts.rows) else None
    where = "" if worst is None else f", most at {_token(tokenizer, rollouts, worst)}"
    precision, unit, wider = rounding.precision, "nats a token", "fp32"
    if precision == "fp32":
        unit, wider = "nats at one token", "fp64"
    raise InputError(
        f"sampler and trainer differ: the sampler's {precision} is {rounding.sampler:.2g} {unit} from the trainer's "
        f"forward in {wider}, the trainer's own {rounding.trainer:.2g}, which allows {rounding.allowed:.2g} "
        f"({rounding.tokens} tokens){where}: {RATIO}"
    )


def rounding_notes(rounding: Rounding, epsilon_high: float) -> list[str]:
    """A warning if the precision is too coarse for this policy's ratios to mean much."""
    precision = rounding.precision
    if precision == "fp32" or rounding.trainer <= COARSE_ROUNDING:
        return []
    return [
        f"warning: {precision} is coarse for this policy: its log-probabilities differ by {rounding.trainer:.2g} nats "
        f"a token between {precision} and fp32 ({rounding.tokens} tokens), where ratios are clipped at "
        f"{1 + epsilon_high:g}; --precision fp32 learns from more than rounding"
    ]


def check_first_rollouts(
    precision: str,
    tokenizer,
    eos: Sequence[int],
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    rounding: float | None = None,
    at_reference: bool = True,
) -> None:
    """Raises InputError if the reference is another model, or eos or scores are misplaced; see state.py."""
    both = rollouts.old_logprobs, rollouts.reference_logprobs
    if at_reference and (found := _difference(precision, tokenizer, rollouts, *both, rounding)):
        raise InputError(f"policy and reference have the same weights and differ by {found}")
    steps, last = (
        [step for episode in episodes for step in episode.steps],
        torch.from_numpy(rollouts.row_starts[1:] - 1),
    )
    elsewhere = rollouts.scores.clone()
    elsewhere[last] = 0
    if elsewhere.any() and not any(isinstance(step.reward, tuple) for step in steps):
        token = _token(tokenizer, rollouts, int(elsewhere.abs().argmax()))
        raise InputError(f"a score is on {token}, which is not a reply's last token")
    for number, step in enumerate(steps):
        reason = step.completion.finish_reason
        if reason != "stop" and (reason == "eos") != (rollouts.rows[number][-1] in eos):
            token = _token(tokenizer, rollouts, int(last[number]))
            raise InputError(f"reply {number} ended by {reason} with {token}: eos must be sampled, kept and rewarded")


@final
class FirstForward:
    """Checks the forward of an iteration's first update, before a weight changes. Collective."""

    def __init__(
        self,
        c: TrainingComponents,
        state: LoopState,
        rollouts: Rollouts,
        mismatch: LogprobMismatch | None,
    ) -> None:
        self.c, self.state, self.rollouts = c, state, rollouts
        self.mismatch = mismatch
        """of sampler and trainer, once it is known"""

    def __call__(self, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        """In the first iteration ratios must be 1; where nothing was compared before, sampler and trainer must agree.

        Raises InputError on all ranks.
        """
        precision, tokenizer, rollouts = self.c.experience.precision, self.c.tokenizer, self.rollouts
        if self.state.iteration == 0:
            ratio = partial(check_ratio, precision, tokenizer, rollouts, tokens, logprobs, self.state.rounding)
            raise_on_all_ranks(ratio)
        if self.mismatch is not None:
            return
        found = replace(rollouts, old_logprobs=rollouts.sampler_logprobs.index_copy(0, tokens, logprobs))
        raise_on_all_ranks(partial(check_finite, precision, tokenizer, found))
        self.mismatch = mismatch_of(rollouts, tokens, logprobs)
        rows = np.unique(np.searchsorted(rollouts.row_starts, tokens.numpy(), side="right") - 1)
        _check_distance(self.c, self.state, found, self.mismatch, rows)


def check_ratio(
    precision: str,
    tokenizer,
    rollouts: Rollouts,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    rounding: float | None = None,
) -> None:
    """Raises InputError if the first training forward differs from the log-probabilities recorded of these tokens."""
    if found := _difference(precision, tokenizer, rollouts, logprobs, rollouts.old_logprobs[tokens], rounding, tokens):
        raise InputError(
            f"before any update the new log-probabilities and the old ones differ by {found}: PPO's ratio must begin "
            "at 1; a defect of ours, or a model whose forward is not the same twice"
        )


def _difference(
    precision: str,
    tokenizer,
    rollouts: Rollouts,
    logprobs: torch.Tensor,
    others: torch.Tensor,
    rounding: float | None = None,
    tokens: torch.Tensor | None = None,
) -> str:
    """A description of the difference, with the worst token, if it is more than allowed; NaN is infinitely far.

    In fp32 the largest difference counts, in 16 bits the mean. Without a `rounding` the policy's is taken to be 0.
    """
    if not len(logprobs):
        return ""
    difference = (logprobs - others).abs().nan_to_num(torch.inf)
    wider, found = ("fp64", difference.max()) if precision == "fp32" else ("fp32", difference.mean())
    most = allowed_difference(precision, rounding or 0.0, len(logprobs))
    if found <= most:
        return ""
    worst = int(difference.argmax())
    token = _token(tokenizer, rollouts, worst if tokens is None else int(tokens[worst]))
    why = f"the policy's own {precision} is {rounding or 0.0:.2g} from {wider}, which allows {most:.2g}"
    return f"{float(found):.2g} nats a token ({why}), most at {token}"


def _token(tokenizer, rollouts: Rollouts, index: int) -> str:
    """A description of one of the M tokens."""
    row = int(torch.searchsorted(torch.from_numpy(rollouts.row_starts), index, right=True)) - 1
    if rollouts.choices is not None:
        choice = rollouts.choices[row]
        return f"the action {choice.candidates.texts[choice.chosen]!r} of reply {row}"
    within = index - int(rollouts.row_starts[row])
    id_ = rollouts.rows[row][len(rollouts.rows[row]) - int(rollouts.reply_lengths[row]) + within]
    return f"token {within} of reply {row}, {tokenizer.decode([id_])!r} (id {id_})"


def spread_notes(algorithm: Algorithm, state: LoopState, metrics: Mapping[str, float]) -> list[str]:
    """A line on the rewards within groups before step 1; once in a run, a warning that most groups teach nothing.

    That is told before step 1, or in the second iteration in a row: a few groups may have equal rewards by chance.
    """
    if "groups/reward_std" not in metrics:
        return []
    first, equal = state.iteration == 0, metrics["groups/equal_rewards"]
    teach_nothing = algorithm.compares and equal > MOST_EQUAL
    if state.equal_iterations >= 0:
        state.equal_iterations = state.equal_iterations + 1 if teach_nothing else 0
    found = f"rewards of {algorithm.num_generations} replies to a prompt: standard deviation "
    found += f"{metrics['groups/reward_std']:.3g}"
    if state.equal_iterations < (1 if first else 2):
        return [f"{found}; all equal in {equal:.0%} of the groups"] if first else []
    state.equal_iterations = -1
    where = f"{equal:.0%} of the groups, which teach nothing"
    if equal == 1:
        where = "every group: there is nothing to learn from"
    refills = "a larger --max_refills" if algorithm.max_refills else "--max_refills 10 (dynamic sampling)"
    when = "" if first else f"iteration {state.iteration + 1}: "
    return [
        f"warning: {when}{found}, all equal in {where}; needed: rewards that differ, by {refills}, more "
        "--num_generations, a higher --temperature, a finer reward, or easier or harder prompts"
    ]


def reward_notes(
    algorithm: Algorithm, state: LoopState, episodes: Sequence[Episode], spread: Mapping[str, float]
) -> list[str]:
    """Lines on the spread within groups, and a warning at the first of several iterations whose rewards are all equal
    on all ranks, unless the former tell it. `spread` has the metrics of groups. Collective.
    """
    own = {reward for episode in episodes if (reward := episode.total_reward) is not None}
    rewards = set().union(*all_gather_objects({min(own), max(own)} if own else own))
    before, state.reward_is_flat = state.reward_is_flat, len(rewards) == 1
    notes = spread_notes(algorithm, state, spread)
    if before or not state.reward_is_flat or (notes and algorithm.compares):
        return notes
    return [
        *notes,
        f"warning: every reward of iteration {state.iteration + 1} is {rewards.pop():.4g}: the reward has no variance "
        "under the policy, and there is nothing to learn from; needed: rewards that differ, by another reward or other "
        "prompts, a higher --temperature, or a larger --cliprange_reward if it clips them all",
    ]


@aid("the note on the critic", list)
def critic_notes(folder: Path, iteration: int, iterations: int) -> list[str]:
    """A warning, once, after three quarters of the iterations, if the critic explains little of the returns' variance.

    The shares since half of them are read from the run's metrics: a resumed run has those from before it too.
    """
    if iterations < FEWEST_ITERATIONS or iteration != -(-3 * iterations // 4):
        return []
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    found = [line["values/explained_variance"] for line in lines if "values/explained_variance" in line]
    late = [share for share in found[iterations // 2 :] if share is not None]
    if not late or (mean := sum(late) / len(late)) >= LITTLE_EXPLAINED:
        return []
    when = f"iterations {iterations // 2 + 1} to {iteration} of {iterations}"
    return [
        f"warning: the critic explains {max(mean, 0):.0%} of the variance of the returns ({when}): advantages are "
        "almost as noisy as the rewards; needed: more replies per iteration and, in proportion, more updates "
        "(--num_rollouts and --max_updates)"
    ]


@aid("the note on failed games", list)
def failure_notes(folder: Path, games: int) -> list[str]:
    """A line at the end of a run on the games that failed, with one reason; `games` are those of an iteration."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    played = [line for line in lines if "rollout/reply_tokens" in line]
    failed = round(games * sum(line.get("rollout/failed_episodes") or 0.0 for line in played))
    if not failed:
        return []
    events = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    last = next((text for event in reversed(events) if FAILED in (text := json.loads(event)["text"])), "")
    reason = f", in the last of them: {last.partition(FAILED)[2]}" if last else ""
    return [f"{failed:,} of {games * len(played):,} games failed (rollout/failed_episodes){reason}"]


def stop_if_too_many_failed(failed: int, total: int, most: float, error: str) -> None:
    """Raises RunStopped if more than the share `most` of rewards failed. Counts are over all ranks."""
    if failed > most * total:
        why = f"{failed} of {total} rewards failed, more than max_failed_rewards={most:g} allows"
        raise RunStopped(f"{why}; one of them: {error}", "rewards_failed", REWARDS_FAILED)


def collapse(metrics: Mapping[str, float], limits: LimitConfig, first_length: float) -> str:
    """The reason to stop now, or an empty string."""
    kl, length = metrics.get("kl/reference", 0.0), metrics["rollout/reply_tokens"]
    if not math.isfinite(kl) or 0 < limits.max_kl < kl:
        return f"the policy is {kl:.1f} nats per reply from its reference, more than max_kl={limits.max_kl:g}"
    if length < limits.min_length * first_length:
        return (
            f"replies have {length:.1f} tokens on average, {first_length:.1f} at first: less than the share "
            f"min_length={limits.min_length:g}"
        )
    return ""


def stop_collapsed(why: str, run: Run, sampled_after: int) -> RunStopped:
    """The end of a collapsed run, at its last good checkpoint: one that was followed by replies within bounds.

    The weights that sampled are those after `sampled_after` updates: checkpoints of them, and of later ones, are
    renamed, or a relaunch would start from a collapsed policy. Collective.
    """
    folder, kept = run.folder / FOLDER, ""
    first = f"step-{sampled_after:08d}"
    for bad in [path for path in sorted(folder.glob("step-*")) if path.name >= first] if run.is_main else []:
        renamed = folder / f"collapsed-{bad.name}"
        shutil.rmtree(renamed, ignore_errors=True)
        bad.rename(renamed)
        kept += f"{bad.name} holds this policy and was renamed to {renamed}; "
    good = sorted(folder.glob("step-*"))
    kept += f"the last good checkpoint is {good[-1]}" if good else "there is no earlier checkpoint"
    advice = "raise init_kl_coef, lower learning_rate, or look at the samples of the last iterations"
    error = RunStopped(f"collapsed: {why}; {kept}; {advice}", "collapsed", COLLAPSED)
    run.finish(error.outcome, error.exit_code, error)
    all_gather_objects(None)  # a launcher kills the others once one has left
    return error

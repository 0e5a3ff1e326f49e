"""The contents of a PPO checkpoint, and of the results. Checkpoints are written between iterations, without rollouts.

    model.safetensors, optimizer.pt   plain and DDP; or global_step*/, DeepSpeed's shards of each rank; of a policy with
                                      adapters without the frozen weights below them
    loop.json                         iteration, updates, KL coefficient, running moments, scorers' moments, alarm
    rank-00000.pt                     of each rank: random numbers

Prompts, seeds of rollouts and orders of minibatches are functions of (seed, iteration): they need no state.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from lmgym.aids import aid
from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.random_state import random_state, restore_random_state, seed_all, seeded
from lmgym.distributed.ranks import raise_on_all_ranks, rank, world_size
from lmgym.models.critics import save_critic
from lmgym.models.forward.policies import save_policy
from lmgym.models.saving import submodule_weights
from lmgym.runs.checkpoint_files import loading, ranks_of, read_rank_state, write_rank_state
from lmgym.runs.files import read_json
from lmgym.runs.run import Run
from lmgym.scoring.alarm import Alarm, Reading
from lmgym.scoring.moments import RunningMoments
from lmgym.training.choice import Choice
from lmgym.training.model_card import CHAT_USAGE, figures_table, model_card
from ppo.actor_critic import ActorCritic
from ppo.algorithms.kl import AdaptiveKL
from ppo.config import MethodConfig
from ppo.sampler_watch import SamplerWatch

LOOP = "loop.json"


@final
@dataclass
class BestPolicy:
    """The evaluation after an update with the highest score of a monitor so far, by the prompts that choose."""

    update: int = -1
    """number of updates; -1: there is none"""
    score: float = -math.inf
    choice: Choice = field(default_factory=Choice)

    def add(self, update: int, reading: Reading) -> None:
        """Takes an evaluation, the first of which is before step 1; one without scores is never the best."""
        score = self.choice.add(update, reading)
        if score is not None and score > self.score:
            self.update, self.score = update, score

    @property
    def words(self) -> str:
        """The score, by how much it flatters, and what prompts that did not choose it say."""
        return f"({self.score:.4g}){self.choice.words(self.update)}"

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"update": self.update, "score": self.score, "choice": self.choice.state_dict()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores the state."""
        self.update, self.score = saved["update"], saved["score"]
        self.choice.load_state_dict(saved.get("choice", {}))


@final
@dataclass
class LoopState:
    """State of the loop, without the weights."""

    kl: AdaptiveKL
    moments: RunningMoments = field(default_factory=RunningMoments)
    """of rollout scores"""
    scorer_moments: dict[str, tuple[float, float]] | None = None
    alarm: Alarm = field(default_factory=Alarm)
    watch: SamplerWatch = field(default_factory=SamplerWatch)
    """over a server that samples"""
    iteration: int = 0
    """the next one"""
    begins_at_reference: bool = True
    """the first iteration's policy is the reference, unless others have trained it before"""
    first_length: float = 0.0
    """mean tokens of a reply in the first iteration"""
    before: dict[str, float] = field(default_factory=dict)
    """metrics of the evaluation before step 1"""
    starting_replies: dict[str, str] = field(default_factory=dict)
    """those of that evaluation, by prompt, where a judge compares with them"""
    rounding: float | None = None
    """nats per token between the policy's log-probabilities in 16 bits and in fp32, as last measured"""
    best: BestPolicy = field(default_factory=BestPolicy)
    reward_is_flat: bool = False
    """the last iteration's rewards were all equal"""
    equal_iterations: int = 0
    """iterations up to now, in a row, in which most groups had equal rewards; -1 once that was warned of"""

    @classmethod
    def fresh(cls, init_kl_coef: float, method: MethodConfig) -> "LoopState":
        """The state before the first iteration."""
        return cls(
            AdaptiveKL(init_kl_coef, method.target, method.horizon), begins_at_reference=method.reference is None
        )

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "kl": self.kl.state_dict(),
            "moments": self.moments.state_dict(),
            "scorer_moments": self.scorer_moments,
            "alarm": self.alarm.state_dict(),
            "watch": self.watch.state_dict(),
            "iteration": self.iteration,
            "first_length": self.first_length,
            "before": self.before,
            "starting_replies": self.starting_replies,
            "begins_at_reference": self.begins_at_reference,
            "rounding": self.rounding,
            "best": self.best.as_json(),
            "reward_is_flat": self.reward_is_flat,
            "equal_iterations": self.equal_iterations,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the state."""
        self.kl.load_state_dict(saved["kl"])
        self.moments.load_state_dict(saved["moments"])
        self.alarm.load_state_dict(saved["alarm"])
        self.watch.load_state_dict(saved.get("watch", {}))
        moments = saved["scorer_moments"]
        self.scorer_moments = None if moments is None else {n: (float(m), float(s)) for n, (m, s) in moments.items()}
        self.iteration, self.first_length = int(saved["iteration"]), float(saved["first_length"])
        self.before, self.rounding = saved["before"], saved["rounding"]
        self.starting_replies = saved.get("starting_replies", {})
        self.begins_at_reference = bool(saved.get("begins_at_reference", True))
        self.best.restore(saved["best"])
        self.reward_is_flat = bool(saved["reward_is_flat"])
        self.equal_iterations = int(saved.get("equal_iterations", 0))


def write_state(folder: Path, engine: TrainingEngine, state: LoopState) -> None:
    """Writes this rank's part. Call it on every rank."""
    engine.save(folder)
    if rank() == 0:
        (folder / LOOP).write_text(json.dumps(state.as_json()))
    write_rank_state(folder, random_state())


def read_state(folder: Path, engine: TrainingEngine, state: LoopState, seed: int) -> None:
    """Reads what `write_state` wrote. Raises InputError if this rank's random state is missing. Call it on every rank.

    For a checkpoint by another number of ranks, random numbers are seeded again.
    """
    same_ranks = ranks_of(folder) == world_size()
    chance = raise_on_all_ranks(lambda: read_rank_state(folder, rank())) if same_ranks else None
    with loading(folder):
        engine.load(folder)
        state.restore(read_json(folder / LOOP))
        if chance is not None:
            restore_random_state(chance)
        else:
            seed_all(seed, rank(), state.iteration)


def save_results(
    engine: TrainingEngine,
    tokenizer,
    run: Run,
    metrics: Mapping[str, float],
    which: str,
    last: bool = False,
) -> Path:
    """Save the policy as an ordinary folder, with a model card, and its critic beside it. Call it on every rank.

    `which` says in a sentence which policy it is. With `last` the folder is `last/`, and the critic is in it.
    """
    weights = engine.gather()
    if not run.is_main:
        return run.folder
    actor: ActorCritic = engine.module  # type: ignore[assignment]
    card = _card(run, metrics, which)
    own = submodule_weights(weights, "policy.")
    with seeded(0):  # merging adapters draws random numbers, which change nothing, on the main rank alone
        folder = save_policy(actor.policy, own, run.folder, tokenizer, merge=True, card=card, last=last)
    if actor.has_critic:
        save_critic(actor.critic, weights, (folder if last else run.folder) / "critic", tokenizer)
    return folder


@aid("the model card", str)
def _card(run: Run, metrics: Mapping[str, float], which: str) -> str:
    name, base, method, *rewards = (run.settings[key] for key in ("name", "model", "method", "reward", "scorers"))
    reward = ",".join(filter(None, rewards)) or "a reward of its own"
    description = f"A causal language model: `{base}`, optimised by lmgym ({method}) against `{reward}`."
    figures = f"""{which}

`eval/`, `metrics/` and `alarm/` are of this policy. All others are of the iteration that it ends, whose replies, and so
the KL, are from before its updates.

{figures_table(dict(sorted((metrics or _last_metrics(run)).items())), {})}"""
    heading, usage = "Evaluation and iteration", f"{description} {CHAT_USAGE}"
    return model_card(name, "text-generation", ["lmgym", "ppo"], usage, figures, base, heading)


def _last_metrics(run: Run) -> dict[str, float]:
    """Metrics of a run that was stopped after its last iteration, and is started again only to save."""
    line = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {name: value for name, value in line.items() if isinstance(value, float) and name != "time"}

"""Checks of a run in rounds before weights are loaded and a folder is opened; they result in its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lmgym.config import check_eval_size, check_shared_settings
from lmgym.data.prompts import Prompts, read_prompts
from lmgym.data.task_data import TaskData
from lmgym.distributed.deepspeed_config import read_config, zero_stage
from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.ranks import raise_on_all_ranks
from lmgym.errors import InputError, shown
from lmgym.generation.prompt_fitting import longest_prompt, room_for_prompts
from lmgym.generation.protocol import Sampling
from lmgym.runs.paths import with_absolute_paths
from lmgym.scoring.alarm import preview
from lmgym.scoring.named_scorers import load_scorers, read_names, read_weights
from lmgym.scoring.protocol import Scorer
from lmgym.training.plan import TrainingPlan, make_plan
from lmgym.training.precision import with_native_precision
from preferences.config import CONSTANTS
from preferences.iterative.config import IterativeConfig


@dataclass(frozen=True)
class IterativePlan:
    """All that is resolved before weights are loaded."""

    training: TrainingPlan[IterativeConfig]
    prompts: Prompts
    sampling: Sampling
    room: int
    """most tokens of a prompt"""
    scorers: Mapping[str, Scorer]
    """that choose the best and the worst reply, by name"""
    weights: Mapping[str, float] = field(default_factory=dict)
    monitor: Mapping[str, Scorer] = field(default_factory=dict)
    """the scorer of the win rate and of the alarm, if it is another"""

    @property
    def updates(self) -> int:
        """Of the whole run."""
        o = self.training.config.optimizer
        if o.max_updates > 0:
            return o.max_updates
        return max(1, round(o.epochs * len(self.prompts.train) / o.global_batch))

    @property
    def eval_updates(self) -> int:
        """Updates between two evaluations: those of a round, unless the settings say otherwise."""
        config = self.training.config
        return config.run.eval_updates or config.updates_per_round

    @property
    def evaluations(self) -> int:
        """Of the whole run, with the one before step 1 and the one after the last update."""
        return 1 + -(-self.updates // self.eval_updates)


def check(config: IterativeConfig, scorers: Mapping[str, Scorer] | None = None) -> IterativePlan:
    """Start the ranks, read the prompts and resolve every setting. Raises InputError for what cannot work.

    `scorers` are those of the experiment's own, beside the ones of the settings.
    """
    config = with_native_precision(with_absolute_paths(config))
    own = dict(scorers or {})
    check_settings(config, own)
    sampling = sampling_of(config)
    read: list[Prompts] = []

    def prepare(config: IterativeConfig, tokenizer) -> TaskData:
        room_for_prompts(config.data.max_length, sampling)
        seed = config.optimizer.split_seed
        read.append(read_prompts(config.data, seed, tokenizer=tokenizer, columns=config.columns))
        return task_data(read[0])

    training = make_plan(config, config.policy, prepare, generates=True)
    [prompts], tokenizer, notes = read, training.tokenizer, list(training.notes)
    room = room_for_prompts(training.config.data.max_length, sampling)
    longest = longest_prompt(tokenizer, [*prompts.train, *prompts.evaluation])
    if longest > room:
        notes.append(f"the longest prompt has {longest:,} tokens: prompts lose their oldest turns beyond {room:,}")
    loaded, monitor = load(config)
    weights = read_weights(config.judge.weights, own | loaded)
    if weights.first:
        raise InputError(
            f"--weights {shown(config.judge.weights)} changes over the run, which rounds of DPO do not; needed: "
            "name=NUMBER"
        )
    plan = IterativePlan(training, prompts, sampling, room, own | loaded, weights.last, monitor)
    if monitor:
        notes.append(preview(len(prompts.evaluation), plan.evaluations, f"monitor {next(iter(monitor))}"))
    else:
        notes.append(
            "the win rate is by the scorers that choose the replies, and no alarm says when these are exploited; "
            "--monitor_scorer names another"
        )
    return replace(plan, training=replace(training, notes=notes))


def sampling_of(config: IterativeConfig) -> Sampling:
    """The sampling of the replies."""
    r = config.rounds
    return Sampling(r.max_new_tokens, r.temperature, top_p=r.top_p, seed=config.optimizer.seed)


def check_settings(config: IterativeConfig, own: Mapping[str, Scorer]) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_shared_settings(config, config.policy)
    check_eval_size(config.data.eval_size, "prompts")
    loss, o, r, judge = config.loss, config.optimizer, config.rounds, config.judge
    if config.run.deepspeed and zero_stage(read_config(config.run.deepspeed)) == 3:
        raise InputError(
            f"deepspeed={shown(config.run.deepspeed)} shards the weights, and every rank samples with whole ones; "
            "needed: zero2, or zero2_offload, or LoRA (--lora_rank) with either"
        )
    if loss.loss == "kto":
        raise InputError("--loss kto learns from single replies; needed: a loss of pairs: dpo, ipo, simpo, orpo or bon")
    if loss.unused:
        name = loss.unused[0]
        users = " or ".join(f"--loss {other}" for other, names in CONSTANTS.items() if name in names)
        raise InputError(f"{name}={shown(getattr(loss, name))}, which --loss {loss.loss} does not use; needed: {users}")
    if not loss.has_reference and r.renew_reference:
        raise InputError(f"--renew_reference with --loss {loss.loss}, which has no reference; needed: dpo, ipo or bon")
    if r.prompts_per_round % o.global_batch:
        fewer = max(1, r.prompts_per_round // o.global_batch) * o.global_batch
        raise InputError(
            f"prompts_per_round={r.prompts_per_round} is not a multiple of global_batch={o.global_batch}; needed: "
            f"whole updates, such as --prompts_per_round {fewer}"
        )
    if not (judge.scorers or own):
        raise InputError("scorers is empty; needed: --scorers [name=]PATH, comma-separated")
    _check_names(config, own)


def _check_names(config: IterativeConfig, own: Mapping[str, Scorer]) -> None:
    """Raises InputError for a name that is given twice, for several monitors, and for a best model by a scorer."""
    judge, best = config.judge, config.trainer.best_metric
    chosen = [*own, *(read_names(judge.scorers) if judge.scorers else ())]
    monitors = [*read_names(judge.monitor_scorer, "--monitor_scorer")] if judge.monitor_scorer else []
    if len(monitors) > 1:
        raise InputError(f"--monitor_scorer {shown(judge.monitor_scorer)} names {len(monitors)}; needed: one")
    if twice := {name for name in chosen + monitors if (chosen + monitors).count(name) > 1}:
        raise InputError(f"two scorers are called {', '.join(sorted(twice))}; needed: different names")
    allowed = [f"score/{name}" for name in monitors]
    if best is not None and best not in allowed:
        raise InputError(
            f"best_metric={shown(best)}; needed: {' or '.join([*allowed, 'none'])}: the policy with most of what it is "
            "trained for is the one that exploits it most, so only --monitor_scorer may choose"
        )


def load(config: IterativeConfig) -> tuple[dict[str, Scorer], dict[str, Scorer]]:
    """(scorers, monitor), on every rank. Raises InputError, on all of them, if one does not load. Collective."""
    words = config.judge.scorers, config.judge.monitor_scorer
    with without_sharded_load():
        scorers, monitor = raise_on_all_ranks(lambda: [load_scorers(w) if w else {} for w in words])
    return scorers, monitor


def task_data(prompts: Prompts) -> TaskData:
    """The prompts as a run records them."""
    return TaskData(
        noun="prompts",
        train=prompts.train,
        evaluation=prompts.evaluation,
        lengths=np.ones(len(prompts.train)),
        replies=2,
        truncated=0,
        shortened=0,
        rejections=prompts.rejections,
        fingerprint=prompts.fingerprint,
        rows=prompts.rows,
        parts=prompts.parts,
        notes=prompts.reading,
    )

"""Training in rounds: sample, score, pair the best with the worst, train, and again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from transformers import TrainerCallback

from lmgym.data.batching import UpdateSampler
from lmgym.distributed.ranks import rank, world_size
from lmgym.generation.local_generation import LocalGenerator
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.scoring.alarm import Alarm, Reading
from lmgym.scoring.protocol import Scorer
from lmgym.text import Replies
from lmgym.training.callbacks import ShowStatus
from lmgym.training.policies import load_trained_policy, save_trained_policy
from lmgym.training.reporting import show_notes
from lmgym.training.running import run_stage
from lmgym.training.setup import training_arguments
from lmgym.turn_ends import turn_ends
from preferences.config import LossConfig
from preferences.iterative.check import IterativePlan, check
from preferences.iterative.config import IterativeConfig
from preferences.iterative.probe import RoundProbe
from preferences.iterative.replies import Answerer, Judge
from preferences.iterative.report import card_text, show_plan, show_rounds
from preferences.iterative.rounds import ReferenceSums, RoundBegins, RoundPairs, Rounds
from preferences.objectives import Pairwise, ReplyModel
from preferences.probes import Forwards


def train(
    config: IterativeConfig, scorers: Mapping[str, Scorer] | None = None, round_begins: RoundBegins | None = None
) -> None:
    """Train a policy in rounds, evaluate it and save it; `scorers` are an experiment's own, by name.

    `round_begins` is called with the policy at the beginning of each round, for scorers that depend on it. Raises
    InputError before training for what cannot work.
    """
    adopt_original_token_names()

    plan = check(config, scorers)
    show_plan(plan)
    # a round's replies are sampled when its first update begins
    make = partial(make_trainer, plan, round_begins=round_begins)
    run_stage(plan.training, lambda rows: None, make, partial(show_rounds, plan))


def make_trainer(
    plan: IterativePlan, run: Run, supervisor: Supervisor | None = None, round_begins: RoundBegins | None = None
):
    """The policy in a trainer whose updates are on pairs of its own replies."""
    # here, because the Trainer takes seconds to import, which a refused run should not
    from lmgym.training.best import BestModel
    from lmgym.training.trainer import ObjectiveTrainer

    config, tokenizer, o = plan.training.config, plan.training.tokenizer, plan.training.config.optimizer
    settings, updates = config.policy, plan.updates
    sampler = UpdateSampler(
        # replies are sampled later: a pair counts as the longest
        np.full(updates * o.global_batch, 2 * config.data.max_length),
        o.global_batch,
        plan.training.accumulation,
        world_size(),
        rank(),
        o.seed,
        in_order=True,
        tokens=o.tokens_per_micro_batch,
    )
    arguments = training_arguments(_in_one_epoch(plan), sampler)
    policy = load_trained_policy(plan.training, run, supervisor)
    replies = ReplyModel(policy, turn_ends(tokenizer).ids[0], config.uses_adapter)
    start = replies if settings.lora_rank else _frozen(config, tokenizer)
    autocast = torch.bfloat16 if settings.precision == "bf16" and plan.training.deepspeed is None else None
    judge = Judge(plan.scorers, plan.weights, plan.monitor, config.judge.missing_eos_penalty)
    answerer = Answerer(
        LocalGenerator(policy.causal, tokenizer, config.rounds.generation_batch_size, policy.decoder, autocast),
        judge,
        plan.sampling,
        plan.room,
        supervisor.heartbeat if supervisor else lambda doing: None,
    )
    own, of_start = _sums(replies, config), _sums(start, config, below_adapter=bool(settings.lora_rank))
    reference = own if config.rounds.renew_reference else of_start
    needs_sums = config.loss.has_reference and not config.uses_adapter
    rounds = Rounds(plan, answerer, reference if needs_sums else None, run, round_begins)
    objective = RoundPairs(Pairwise(replies, config.loss), rounds)
    probe = RoundProbe(plan.prompts.evaluation, answerer, own, of_start, run, config.updates_per_round)
    save = partial(save_trained_policy, plan.training, card_text(config), None, run)
    best = BestModel(config.trainer.best_metric, config.trainer.early_stopping, save)
    after_evaluation = _AfterEvaluation(probe, run, config.loss)
    trainer = ObjectiveTrainer(
        policy,
        arguments,
        range(updates * o.global_batch),
        objective,
        sampler,
        {"": probe},
        run,
        [after_evaluation],
        supervisor,
        best,
        objective.before_update,
        {"alarm": after_evaluation.alarm},
    )
    after_evaluation.status = trainer.status
    return trainer


def _in_one_epoch(plan: IterativePlan):
    """The training plan whose settings say how many updates there are, and that each round is evaluated."""
    config = plan.training.config
    optimizer = replace(config.optimizer, epochs=1.0, max_updates=plan.updates)
    run = replace(config.run, eval_updates=plan.eval_updates)
    return replace(plan.training, config=replace(config, optimizer=optimizer, run=run))


def _frozen(config: IterativeConfig, tokenizer) -> ReplyModel:
    """The model that training starts from, for the KL and as a reference, on the device of training."""
    settings = config.policy
    model = load_policy(settings.model, tokenizer, settings.trust_remote_code, settings.bits)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    frozen = PolicyModel(model.to(device), config.trainer.packed).requires_grad_(False)
    return ReplyModel(frozen, turn_ends(tokenizer).ids[0])


def _sums(model: ReplyModel, config: IterativeConfig, below_adapter: bool = False) -> ReferenceSums:
    """Summed log-probabilities by the policy (its wrapped model is given), or by a frozen model of its own."""
    batch_tokens = config.optimizer.batch_tokens(2 * config.data.max_length)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.policy.precision)

    def sums(rows: Sequence[Replies], wrapped: torch.nn.Module, device: torch.device) -> torch.Tensor:
        is_frozen = not any(p.requires_grad for p in model.policy.parameters())
        forwards = Forwards(rows, model, batch_tokens)
        with torch.autocast(device.type, half, enabled=half is not None):
            return forwards.sums(model.policy if is_frozen else wrapped, device, reference=below_adapter)

    return sums


class _AfterEvaluation(TrainerCallback):
    """Prints the line of each round, writes the replies to samples/, and raises the alarm."""

    def __init__(self, probe: RoundProbe, run: Run, loss: LossConfig) -> None:
        self.probe, self.run, self.alarm = probe, run, Alarm()
        self.remedy = "raise beta" if loss.has_reference else "lower learning_rate"
        self.status: ShowStatus | None = None

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """After the probe."""
        self.probe.say(state.global_step)
        rows = [{"step": state.global_step, **row} for row in self.probe.rows]
        self.run.write_lines(f"samples/{state.global_step:06d}.jsonl", rows)
        if look := self.probe.look():
            self._sound(state.global_step, *look)

    def _sound(self, update: int, reward: Reading, score: Reading, spread: float) -> None:
        """Adds a look to the alarm, and tells once that it rings."""
        raised_before = self.alarm.raised_at
        on = self.alarm.update(self.probe.round_of(update), reward, score, spread)
        self.run.log(update, {"alarm/monitor_falls": float(on)})
        if on and raised_before < 0:
            name = next(iter(self.probe.answerer.judge.monitor))
            show_notes([self.alarm.message("round", f"monitor {name}", self.remedy)], self.run, update)
        if self.status:
            self.status.alarm = self.alarm.label("round", "monitor")

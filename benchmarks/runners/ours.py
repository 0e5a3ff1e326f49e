"""lmgym's own trainer as users run it: packed rows with shared prefixes, through lmgym.training.trainer."""

from interface import Spec, UpdateClock, parse_paths, read_spec, write_result  # isort: skip

import json
import tempfile

import numpy as np

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, TrainerConfig
from lmgym.data.batching import UpdateSampler
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.runs.run import Run
from lmgym.text import share_prefix
from lmgym.training.plan import TrainingPlan
from lmgym.training.setup import training_arguments
from lmgym.training.trainer import ObjectiveTrainer
from reward_models.config import RewardModelConfig
from reward_models.data import PairExample
from reward_models.objectives import Pairwise


class OurClock(UpdateClock):
    """Our metric names differ from the Trainer's."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Takes the update's loss."""
        if "train/loss" in logs:
            self.losses.append(logs["train/loss"])


def read_examples(spec: Spec) -> list[PairExample]:
    """The spec's token ids as examples, in the order of training."""
    with open(spec.pairs, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    sides = [[row["prompt_ids"] + row[key] for key in ("chosen_ids", "rejected_ids")] for row in rows]
    examples = [PairExample(share_prefix(both), 0.0, i, (len(both[0]), len(both[1]))) for i, both in enumerate(sides)]
    return [examples[index] for update in spec.order for index in update]


def optimizer_of(spec: Spec, rows_a_pair: int = 1) -> OptimizerConfig:
    """The spec's optimizer; batches are of rows."""
    return OptimizerConfig(
        learning_rate=spec.learning_rate,
        schedule="constant_with_warmup",
        warmup=0,
        max_updates=spec.updates,
        global_batch=rows_a_pair * spec.pairs_per_update,
        micro_batch=rows_a_pair * spec.micro_batch,
        seed=spec.seed,
    )


def make_config(spec: Spec, folder: str) -> RewardModelConfig:
    """The spec in our words."""
    return RewardModelConfig(
        name="benchmark",
        scorer=ModelConfig(model=spec.model, precision=spec.dtype),
        data=RowsConfig(max_length=spec.max_length, eval_size=0.1),
        optimizer=optimizer_of(spec),
        run=RunConfig(output=folder, eval_updates=10**9, tracking="none"),
        trainer=TrainerConfig(log_updates=1),
    )


def main() -> None:
    """One run."""
    paths = parse_paths()
    spec = read_spec(paths.spec)
    clock = OurClock(spec, profile=paths.profile)
    tokenizer = load_tokenizer(spec.model)
    examples = read_examples(spec)
    lengths = [example.replies.tokens for example in examples]
    sampler = UpdateSampler(lengths, spec.pairs_per_update, spec.accumulation_steps, seed=spec.seed)
    sampler.updates = lambda: np.split(np.arange(len(examples)), spec.updates)  # as given, not drawn
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(spec, folder)
        plan = TrainingPlan(config, config.scorer, None, spec.accumulation_steps, tokenizer, None, [])
        arguments = training_arguments(plan, sampler)
        model, _ = load_classifier(spec.model, tokenizer)
        scoring = ScoringModel(model)
        objective = Pairwise(scoring, tokenizer.pad_token_id)
        with Run.start(folder, {}, spec.seed, tracking="none") as run:
            ObjectiveTrainer(scoring, arguments, examples, objective, sampler, {}, run, [clock]).train()
    write_result(paths.result, "ours", spec, clock, ("lmgym",))


if __name__ == "__main__":
    main()

"""lmgym's own preference training as users run it: a pair's prompt once, the reference computed before training."""

from interface import Spec, ordered_pairs, parse_paths, read_spec, thumbs, write_result  # isort: skip

import tempfile
import time

import numpy as np
from ours import OurClock, optimizer_of

from lmgym.config import ModelConfig, RowsConfig, RunConfig, TrainerConfig
from lmgym.data.batching import UpdateSampler
from lmgym.data.task_data import TaskData
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.runs.run import Run
from lmgym.text import Conversation, Replies
from lmgym.training.plan import TrainingPlan
from lmgym.training.setup import training_arguments
from lmgym.training.trainer import ObjectiveTrainer
from preferences.config import LossConfig, PreferenceConfig
from preferences.examples import PairExample, ThumbExample
from preferences.objectives import ReplyModel
from preferences.reference import with_reference
from preferences.tasks import PreferenceTask


def replies(prompt: list[int], *completions: list[int]) -> Replies:
    """As `tokenize_apart` has them: suffixes begin with the prompt's last token, and the eos is left out."""
    return Replies(prompt[:-1], [[prompt[-1], *completion[:-1]] for completion in completions])


def read_examples(spec: Spec) -> list[PairExample] | list[ThumbExample]:
    """The spec's token ids as examples, in the order of training."""
    nothing = Conversation(())
    if spec.loss == "dpo":
        return [
            PairExample(replies(row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]), i, nothing, "", i)
            for i, row in enumerate(ordered_pairs(spec))
        ]
    return [
        ThumbExample(
            replies(row["prompt_ids"], row["completion_ids"]), i, nothing, "", i, row["label"],
            replies(row["prompt_ids"], row["KL_completion_ids"]),
        )
        for i, row in enumerate(thumbs(spec))
    ]  # fmt: skip


def make_config(spec: Spec, folder: str) -> PreferenceConfig:
    """The spec in our words; KTO's batches are of replies, two a pair."""
    return PreferenceConfig(
        name="benchmark",
        policy=ModelConfig(model=spec.model, precision=spec.dtype),
        data=RowsConfig(max_length=spec.max_length),
        loss=LossConfig(spec.loss, beta=0.1),
        optimizer=optimizer_of(spec, rows_a_pair=2 if spec.loss == "kto" else 1),
        run=RunConfig(output=folder, eval_updates=10**6, tracking="none"),
        trainer=TrainerConfig(log_updates=1),
    )


def main() -> None:
    """One run."""
    paths = parse_paths()
    spec = read_spec(paths.spec)
    clock = OurClock(spec, profile=paths.profile)
    tokenizer = load_tokenizer(spec.model)
    examples = read_examples(spec)
    lengths = np.array([example.replies.tokens for example in examples])
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(spec, folder)
        data = TaskData("rows", examples, [], lengths, 2, 0, 0, (), "")
        plan = TrainingPlan(config, config.policy, None, spec.accumulation_steps, tokenizer, data, [])
        sampler = UpdateSampler(lengths, config.optimizer.global_batch, spec.accumulation_steps, seed=spec.seed)
        sampler.updates = lambda: np.split(np.arange(len(examples)), spec.updates)  # as given, not drawn
        with Run.start(folder, {}, spec.seed, tracking="none") as run:
            began = time.process_time()
            data = with_reference(plan, run, None)
            of_reference = time.process_time() - began
            arguments = training_arguments(plan, sampler)
            policy = PolicyModel(load_policy(spec.model, tokenizer))
            objective = PreferenceTask(config.loss).objective(ReplyModel(policy, tokenizer.eos_token_id))
            ObjectiveTrainer(
                policy, arguments, data.train, objective, sampler, {}, run, [clock],
                before_update=objective.before_update,
            ).train()  # fmt: skip
    write_result(paths.result, "ours_preferences", spec, clock, ("lmgym",), of_reference)


if __name__ == "__main__":
    main()

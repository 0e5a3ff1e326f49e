"""The gradients that the trainer hands to the optimizer, update by update, at a learning rate of 0.

Imported by test_gradients.py for one rank; under torchrun it writes those of all ranks together to the file that the
second argument names. The first names a JSON file with the arguments of `gradients`.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, TrainerConfig
from lmgym.distributed.ranks import rank, start_distributed, stop_distributed
from lmgym.models.loading import load_tokenizer
from lmgym.runs.launch import launch
from lmgym.runs.run import Run
from lmgym.training.plan import TrainingPlan
from reward_models import train
from reward_models.check import RewardModelPlan
from reward_models.config import RewardModelConfig
from reward_models.pairwise import PairTask
from reward_models.tasks import Task, TaskData


class Capture(TrainerCallback):
    """Copies the gradients of each update."""

    def __init__(self) -> None:
        self.updates: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs) -> None:
        """Called once an update, after accumulation and the average over ranks."""
        named = model.named_parameters()
        self.updates.append({name.removeprefix("module."): p.grad.detach().clone() for name, p in named})


def make_config(folder: Path, model: Path, dataset: Path, evaluation: Path, **optimizer) -> RewardModelConfig:
    """No step moves a weight, and no norm is clipped, so each update's gradient is that of the first weights."""
    return RewardModelConfig(
        name="gradients",
        scorer=ModelConfig(model=str(model), precision="fp32"),
        data=RowsConfig(dataset=str(dataset), eval_dataset=str(evaluation), max_length=256),
        optimizer=OptimizerConfig(learning_rate=0.0, max_grad_norm=1e9, **optimizer),
        run=RunConfig(output=str(folder), tracking="none", eval_updates=10_000),
        trainer=TrainerConfig(log_updates=1),
    )


def gradients(
    folder: Path,
    model: Path,
    dataset: Path,
    evaluation: Path,
    accumulation: int,
    task: Task = PairTask(),  # noqa: B008  frozen
    **optimizer,
) -> tuple[list[dict[str, torch.Tensor]], list[list[int]], TaskData]:
    """(gradients an update, rows an update, the data) of one epoch."""
    config = make_config(folder, model, dataset, evaluation, **optimizer)
    tokenizer = load_tokenizer(config.scorer.model)
    data = task.prepare(config, tokenizer)
    plan = RewardModelPlan(TrainingPlan(config, config.scorer, None, accumulation, tokenizer, data, []), [])
    capture = Capture()
    with Run.start(config.output, {}, 0, "none", is_main=rank() == 0) as run:
        trainer = train.make_trainer(plan, task, run)
        trainer.add_callback(capture)
        trainer.train()
    return capture.updates, [rows.tolist() for rows in trainer.sampler.updates()], data


def main() -> None:
    start_distributed(use_deepspeed=False)
    captured, _, _ = gradients(**json.loads(Path(sys.argv[1]).read_text()))
    if rank() == 0:
        torch.save(captured, sys.argv[2])
    stop_distributed()


if __name__ == "__main__":
    launch(main)

"""The file of scored samples at each evaluation, as a callback of Hugging Face's Trainer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import TrainerCallback

from lmgym.aids import aid
from lmgym.runs.run import Run
from reward_models.probes import HeldOut
from reward_models.report import reply_texts
from reward_models.tasks import Task

SAMPLES = 12  # held-out examples that are written with their scores at each evaluation


@aid("the texts of scored samples", list)
def _sample_texts(examples: Sequence[Any], task: Task, tokenizer) -> list[dict[str, Any]]:
    """Prompt, and name and text of each reply, without their scores."""
    rows = []
    for example in examples:
        prompt, read = reply_texts(tokenizer, example.replies)
        replies = [{"name": name, "text": text} for name, text in zip(task.suffixes(example), read, strict=True)]
        rows.append({"row": example.origin, "prompt": prompt, "replies": replies})
    return rows


class KeepSamples(TrainerCallback):
    """Writes the first held-out examples and their scores to samples/UPDATE.jsonl, as the model sees their text."""

    def __init__(self, examples: Sequence[Any], task: Task, probe: HeldOut, tokenizer, run: Run) -> None:
        self.probe, self.run, self.examples = probe, run, examples[:SAMPLES]
        self.texts = _sample_texts(self.examples, task, tokenizer) if run.is_main else []

    @aid("the file of scored samples")
    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """After the probes."""
        scores = iter(np.ravel(self.probe.scores).tolist())
        rows = [
            {"step": state.global_step, **row, "replies": [reply | {"score": next(scores)} for reply in row["replies"]]}
            for row in self.texts
        ]
        self.run.write_lines(f"samples/{state.global_step:06d}.jsonl", rows)

"""A few held-out examples with their scores at each evaluation, for people to read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import TrainerCallback

from lmgym.runs.run import Run
from reward_models.probes import HeldOut
from reward_models.tasks import Task

SAMPLES = 12


class KeepSamples(TrainerCallback):
    """Writes the first held-out examples and their scores to samples/UPDATE.jsonl, as the model sees their text."""

    def __init__(self, examples: Sequence[Any], task: Task, probe: HeldOut, tokenizer, run: Run) -> None:
        self.probe, self.run, self.examples = probe, run, examples[:SAMPLES]
        self.texts: list[dict[str, Any]] = []
        """prompt, and name and text of each reply, without their scores"""
        for example in self.examples if run.is_main else []:
            read = [tokenizer.decode(ids, skip_special_tokens=True) for ids in example.replies.suffixes]
            named = zip(task.suffixes(example), read, strict=True)
            self.texts.append(
                {
                    "row": example.origin,
                    "prompt": tokenizer.decode(example.replies.prefix, skip_special_tokens=True),
                    "replies": [{"name": name, "text": text} for name, text in named],
                }
            )

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """After the probes."""
        scores = iter(np.ravel(self.probe.scores).tolist())
        rows = [
            {"step": state.global_step, **row, "replies": [reply | {"score": next(scores)} for reply in row["replies"]]}
            for row in self.texts
        ]
        self.run.write_lines(f"samples/{state.global_step:06d}.jsonl", rows)

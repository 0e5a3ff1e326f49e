"""TRL's RewardTrainer, timed as its users would run it. Lives in a virtual environment of its own (.venv-bench).

Variants: `defaults` (RewardConfig as it comes: gradient checkpointing, random order, 8 pairs a micro-batch), `best`
(no checkpointing, grouped by length, micro-batch tuned by the driver), `ordered` (defaults, but exactly spec.order).
"""

from interface import UpdateClock, full_sequences, parse_paths, read_spec, write_result  # isort: skip  (before torch)

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PrinterCallback
from transformers.trainer_pt_utils import LengthGroupedSampler, get_length_grouped_indices
from trl import RewardConfig, RewardTrainer

TRL_DEFAULT_MICRO_BATCH = 8


class WarmupFirst(Sampler):
    """The warm-up rows as they are, then TRL's own sampler over the rest: every runner then measures the same pairs."""

    def __init__(self, warmup_rows: int, measured: Sampler) -> None:
        self.warmup_rows, self.measured = warmup_rows, measured

    def __len__(self) -> int:
        return self.warmup_rows + len(self.measured)

    def __iter__(self) -> Iterator[int]:
        yield from range(self.warmup_rows)
        indices = self.measured
        if isinstance(self.measured, LengthGroupedSampler):
            # The sampler's own function, with the 50 it uses from 6,400 pairs on: it sorts far fewer at once on data
            # as few as a benchmark's, and would pad more than on a real set.
            indices = get_length_grouped_indices(self.measured.lengths, self.measured.batch_size, mega_batch_mult=50)
        yield from (self.warmup_rows + index for index in indices)


class TimedRewardTrainer(RewardTrainer):
    """RewardTrainer whose sampler leaves the warm-up rows in front; loss, collator and loop are TRL's."""

    warmup_rows = 0

    def _get_train_sampler(self, train_dataset=None) -> Sampler:
        rows = train_dataset if train_dataset is not None else self.train_dataset
        measured = super()._get_train_sampler(rows.select(range(self.warmup_rows, len(rows))))
        return WarmupFirst(self.warmup_rows, measured)


def common_settings(spec, folder: str, rows: int) -> dict[str, Any]:
    """Settings of any of TRL's trainers with so many rows a micro-batch."""
    settings: dict[str, Any] = {
        "output_dir": folder,
        "use_cpu": True,  # bf16 on a CPU is refused without it
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": spec.accumulation_steps,
        "max_steps": spec.updates,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": "constant",
        "seed": spec.seed,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if spec.dtype == "fp32":
        settings["bf16"] = False  # TRL's default is True
    return settings


def reward_config(spec, folder: str) -> RewardConfig:
    """RewardConfig of a variant; whatever is not named here is TRL's default."""
    settings = common_settings(spec, folder, spec.micro_batch)
    settings["max_length"] = None  # the driver has already left out what is too long
    if spec.variant == "best":
        settings["gradient_checkpointing"] = False  # TRL's default is True
        settings["train_sampling_strategy"] = "group_by_length"
        settings["remove_unused_columns"] = False  # else `length` is dropped before the sampler reads it
    elif spec.variant == "ordered":
        settings["train_sampling_strategy"] = "sequential"
    elif spec.variant != "defaults":
        raise ValueError(f"variant={spec.variant!r} must be defaults, best or ordered")
    if spec.variant != "best" and spec.micro_batch != TRL_DEFAULT_MICRO_BATCH:
        raise ValueError(f"variant {spec.variant} means TRL's own micro_batch, {TRL_DEFAULT_MICRO_BATCH}")
    return RewardConfig(**settings)


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    rows = full_sequences(spec)
    if spec.variant == "best":
        for row in rows:  # a micro-batch is padded to its longest side, so group by that
            row["length"] = max(len(row["chosen_ids"]), len(row["rejected_ids"]))
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    model = AutoModelForSequenceClassification.from_pretrained(spec.model, dtype=torch.float32, num_labels=1)
    clock = UpdateClock(spec, profile=paths.profile)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedRewardTrainer(
            model=model,
            args=reward_config(spec, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.warmup_rows = spec.warmup_updates * spec.pairs_per_update
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    every_token = sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows)
    assert trainer._total_train_tokens == every_token, "TRL's own count: nothing filtered, dropped or repeated"
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    write_result(paths.result, "trl_reward", spec, clock, ("trl", "datasets"))


if __name__ == "__main__":
    main()

"""TRL's DPOTrainer and KTOTrainer, timed as their users would run them. Lives in .venv-bench.

Variants: `defaults` (their configs as they come: gradient checkpointing, the reference in each update, 8 pairs or
replies a micro-batch; DPO in random order), `best` (no checkpointing, grouped by length, micro-batch tuned by the
driver), `best_precomputed` (the same with the reference computed once before training), `ordered` (defaults, but
exactly spec.order, with the driver's micro-batch).
"""

from interface import Spec, UpdateClock, ordered_pairs, parse_paths, read_spec, thumbs, write_result  # isort: skip

import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl_reward import WarmupFirst, common_settings

CONFIGS = {"dpo": DPOConfig, "kto": KTOConfig}


class Timed:
    """The part of both trainers that is not TRL's: ids are given, warm-up rows come first, precomputing is timed."""

    warmup_rows = 0
    of_reference = 0.0

    def _prepare_dataset(self, dataset, *_):
        return dataset

    def _get_train_sampler(self, train_dataset=None):
        rows = train_dataset if train_dataset is not None else self.train_dataset
        measured = super()._get_train_sampler(rows.select(range(self.warmup_rows, len(rows))))
        return WarmupFirst(self.warmup_rows, measured)

    def _precompute_ref_logps(self, *arguments):
        began = time.process_time()
        found = super()._precompute_ref_logps(*arguments)
        self.of_reference += time.process_time() - began
        return found


class TimedDPO(Timed, DPOTrainer):
    """DPOTrainer; loss, collator and loop are TRL's."""


class TimedKTO(Timed, KTOTrainer):
    """KTOTrainer; loss, collator and loop are TRL's."""


TRAINERS = {"dpo": TimedDPO, "kto": TimedKTO}


def batch_rows(spec: Spec) -> int:
    """Rows of a micro-batch: pairs, or KTO's replies, two a pair."""
    return spec.micro_batch * (2 if spec.loss == "kto" else 1)


def make_config(spec: Spec, folder: str) -> DPOConfig | KTOConfig:
    """A variant's config; whatever is not named here is TRL's default."""
    settings = common_settings(spec, folder, batch_rows(spec)) | {"max_length": spec.max_length}
    if spec.variant in ("best", "best_precomputed"):
        settings["gradient_checkpointing"] = False  # TRL's default is True
        if spec.loss == "dpo":  # KTO's trainer takes rows as given only
            settings["train_sampling_strategy"] = "group_by_length"
        settings["remove_unused_columns"] = False  # else `length` is dropped before the sampler reads it
        settings["precompute_ref_log_probs"] = spec.variant == "best_precomputed"
    elif spec.variant == "ordered":
        settings["train_sampling_strategy"] = "sequential"
    elif spec.variant != "defaults":
        raise ValueError(f"variant={spec.variant!r} must be defaults, best, best_precomputed or ordered")
    config = CONFIGS[spec.loss](**settings)
    if spec.variant == "defaults":
        own = CONFIGS[spec.loss](folder, use_cpu=True).per_device_train_batch_size
        if batch_rows(spec) != own:
            raise ValueError(f"variant defaults means TRL's own micro-batch, not {batch_rows(spec)} rows")
    return config


def read_rows(spec: Spec) -> list[dict[str, Any]]:
    """The trainer's rows in the order of training, with the length that a micro-batch is padded to."""
    rows, sides = (
        (ordered_pairs(spec), ("chosen_ids", "rejected_ids"))
        if spec.loss == "dpo"
        else (thumbs(spec), ("completion_ids", "KL_completion_ids"))
    )
    return [row | {"length": len(row["prompt_ids"]) + max(len(row[side]) for side in sides)} for row in rows]


def main() -> None:
    """One run."""
    paths = parse_paths()
    spec = read_spec(paths.spec)
    clock, rows = UpdateClock(spec, profile=paths.profile), read_rows(spec)
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TRAINERS[spec.loss](
            model=model,
            args=make_config(spec, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.warmup_rows = spec.warmup_updates * len(rows) // spec.updates
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    own = ("chosen_ids", "rejected_ids") if spec.loss == "dpo" else ("completion_ids",)
    every_token = sum(len(row["prompt_ids"]) + len(row[name]) for row in rows for name in own)
    assert trainer._total_train_tokens == every_token, "TRL's own count: nothing filtered, dropped or repeated"
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    write_result(paths.result, "trl_preferences", spec, clock, ("trl", "datasets"), trainer.of_reference)


if __name__ == "__main__":
    main()

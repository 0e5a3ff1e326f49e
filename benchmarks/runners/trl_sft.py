"""TRL's SFTTrainer with its packing (best fit decreasing), passes over given rows. Lives in .venv-bench.

Each micro-batch (packed rows) is timed with two heads: `TRL's head` is its own loss, in tiles where there is loss;
`plain head` takes the same packed batches through the model's own forward, with logits at every place. Forward and
backward alone. The result has CPU seconds and the mean loss by head and micro-batch.
"""

from interface import parse_paths  # isort: skip  (before torch)

import json
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def plain_loss(model, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sum over the labels, of logits at every place; the labels are one place later."""
    labels = inputs["labels"][:, 1:]
    logits = model(**{name: value for name, value in inputs.items() if name != "labels"}, use_cache=False).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")


def trainer_of(spec: dict, micro_batch: int, folder: str) -> SFTTrainer:
    """With packing; whatever is not named here is TRL's default."""
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32),
        args=SFTConfig(
            folder,
            packing=True,
            max_length=spec["max_length"],
            per_device_train_batch_size=micro_batch,
            gradient_checkpointing=False,  # TRL's default is True
            bf16=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(spec["rows"]),
        processing_class=AutoTokenizer.from_pretrained(spec["model"]),
    )


def run(trainer: SFTTrainer, head: str, targets: int, most: int | None = None) -> dict[str, float]:
    """Forward and backward of all micro-batches, or of the first `most`."""
    trainer.model.train().zero_grad()
    began, total = time.process_time(), 0.0
    for inputs in islice(trainer.get_train_dataloader(), most):
        if head == "plain head":
            loss = plain_loss(trainer.model, inputs) / targets
            loss.backward()
        else:
            loss = trainer.training_step(trainer.model, inputs, torch.tensor(targets))
        total += loss.item()
    return {"cpu_seconds": time.process_time() - began, "loss": total}


def main() -> None:
    paths = parse_paths()
    spec = json.loads(Path(paths.spec).read_text())
    targets = sum(label != -100 for row in spec["rows"] for label in row["labels"])
    found: dict[str, dict[int, dict[str, float]]] = {"TRL's head": {}, "plain head": {}}
    for size in spec["micro_batches"]:
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(spec, size, folder)
            for head, by_size in found.items():
                run(trainer, head, targets, most=2)  # warms up
                by_size[size] = run(trainer, head, targets)
    Path(paths.result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

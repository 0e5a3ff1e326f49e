"""The plain way: Hugging Face's Trainer, both sides in one batch, every sequence padded to max_length."""

from interface import Spec, UpdateClock, full_sequences, parse_paths, read_spec, write_result  # isort: skip

import tempfile

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, PrinterCallback, Trainer, TrainingArguments


class PairCollator:
    """Rows to input_ids and attention_mask[2 x pairs, max_length], the chosen half first, padded on the right."""

    def __init__(self, pad_token_id: int, max_length: int) -> None:
        self.pad_token_id, self.max_length = pad_token_id, max_length

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        sequences = [row["chosen_ids"] for row in rows] + [row["rejected_ids"] for row in rows]
        input_ids = torch.full((len(sequences), self.max_length), self.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        for index, ids in enumerate(sequences):
            input_ids[index, : len(ids)] = torch.tensor(ids)
            attention_mask[index, : len(ids)] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class PairwiseTrainer(Trainer):
    """Trainer with the Bradley-Terry loss -log sigmoid(chosen - rejected), averaged over pairs."""

    # The loss is a mean over one micro-batch: without this Trainer does not divide it by the accumulation steps.
    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs, use_cache=False)
        chosen, rejected = outputs.logits.squeeze(-1).float().chunk(2)
        loss = -logsigmoid(chosen - rejected).mean()
        return (loss, outputs) if return_outputs else loss


def training_arguments(spec: Spec, folder: str) -> TrainingArguments:
    """The settings every runner shares; order is the spec's."""
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        bf16=spec.dtype == "bf16",
        per_device_train_batch_size=spec.micro_batch,
        gradient_accumulation_steps=spec.accumulation_steps,
        max_steps=spec.updates,
        learning_rate=spec.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.0,
        optim="adamw_torch_fused",
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        seed=spec.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    model = AutoModelForSequenceClassification.from_pretrained(spec.model, dtype=torch.float32)
    assert model.config.pad_token_id is not None
    assert model.config.pad_token_id != model.config.eos_token_id
    clock = UpdateClock(spec, profile=paths.profile)
    with tempfile.TemporaryDirectory() as folder:
        trainer = PairwiseTrainer(
            model=model,
            args=training_arguments(spec, folder),
            train_dataset=full_sequences(spec),
            data_collator=PairCollator(model.config.pad_token_id, spec.max_length),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    write_result(paths.result, "padded", spec, clock, ())


if __name__ == "__main__":
    main()

"""TRL's GRPOTrainer, timed as its users would run it, on rollouts of a file. Lives in .venv-grpo.

Variants: `defaults` (gradient checkpointing, 8 rows a micro-batch) and `best` (no checkpointing, the micro-batch is the
driver's). Replies come through `rollout_func` and scores through a reward function, which are TRL's own ways in.
"""

from interface import parse_paths  # isort: skip  (before torch)
from grpo_interface import Clock, GRPOSpec, Memory, Positions, read_batches, read_spec, write_result  # isort: skip

import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TRL_DEFAULT_MICRO_BATCH = 8


class EndOfIteration(TrainerCallback):
    """Counts updates, and `epochs` of them as an iteration; keeps the logged losses, which are those of updates."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs) -> None:
        optimizer.optimizer.register_step_post_hook(self.clock.count_update)
        optimizer.step = self.clock.timed("optimizer", optimizer.step)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step % self.clock.spec.epochs == 0:
            self.clock.end_iteration()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "loss" in logs:
            self.clock.policy_losses.append([logs["loss"]])


def grpo_config(spec: GRPOSpec, folder: str) -> GRPOConfig:
    """The spec in TRL's words. Left at its defaults: fused AdamW, no weight decay, clipping of gradients at 1."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=spec.precision == "bf16",
        per_device_train_batch_size=spec.micro_batch,
        gradient_accumulation_steps=spec.batch // spec.micro_batch,
        num_generations=spec.num_generations,
        num_iterations=spec.epochs,
        max_completion_length=spec.max_new_tokens,
        max_steps=spec.updates,
        loss_type="dapo",
        beta=spec.kl_coef,
        use_bias_correction_kl=False,
        epsilon=spec.clip,
        learning_rate=spec.learning_rate,
        lr_scheduler_type="constant",
        adam_epsilon=spec.adam_epsilon,
        max_grad_norm=spec.max_grad_norm,
        gradient_checkpointing=spec.variant == "defaults",
        shuffle_dataset=False,
        seed=spec.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def make_trainer(spec: GRPOSpec, clock: Clock, folder: str) -> GRPOTrainer:
    """The trainer, which asks for an iteration's rollouts at a time."""
    batches = iter(read_batches(spec))

    def rollouts(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list | None]:
        rows = next(batches)
        assert len(rows) == len(prompts)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.reply_ids for row in rows],
            "logprobs": None,
            "score": [row.score for row in rows],
        }

    def score(prompts, completions, score: list[float], **kwargs) -> list[float]:
        return score

    prompts = [{"prompt": f"group {i}"} for i in range(spec.iterations * spec.batch // spec.num_generations)]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32),
        reward_funcs=score,
        args=grpo_config(spec, folder),
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        callbacks=[EndOfIteration(clock)],
        rollout_func=rollouts,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def record(trainer: GRPOTrainer, clock: Clock, positions: Positions) -> None:
    """Updates, phases and positions, by wrapping what `train` calls; nothing that it computes is changed."""
    forward = trainer._get_per_token_logps_and_entropies

    def counted(model, input_ids, attention_mask, *args, **kwargs):
        if clock.iteration >= clock.spec.warmup_iterations:
            # of each row the head skips the last position only
            head = input_ids.numel() - len(input_ids)
            positions.add(int(attention_mask.sum()), input_ids.numel(), head)
        return forward(model, input_ids, attention_mask, *args, **kwargs)

    named = clock.timed(lambda: "forward" if torch.is_grad_enabled() else "old and reference", counted)
    trainer._get_per_token_logps_and_entropies = named
    trainer.accelerator.backward = clock.timed("backward", trainer.accelerator.backward)


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    if spec.variant not in ("defaults", "best"):
        raise ValueError(f"variant={spec.variant!r} must be defaults or best")
    clock, memory, positions = Clock(spec, paths.profile, paths.count), Memory(), Positions()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(spec, clock, folder)
        memory.loaded([model for model in (trainer.model, trainer.ref_model) if model is not None])
        record(trainer, clock, positions)
        trainer.train()
    write_result(paths.result, "trl_grpo", spec, clock, memory, positions, ("trl", "accelerate"))


if __name__ == "__main__":
    main()

"""TRL's PPOTrainer (1.12.0, the last that had one), timed as its users would run it. Lives in .venv-ppo.

Variants: `asked` (bf16 is asked for by PPOConfig(bf16=True), which this trainer ignores: it makes an Accelerator of its
own that is not told) and `autocast` (what a user gets who knows the variable that Accelerator reads; then the two
trained models' forwards run in bf16; generation, reference and scores do not: they bypass the prepared model).

What is changed, and why, is in benchmarks/README.md. What its arguments mean:
- An optimizer step is taken every `gradient_accumulation_steps` forwards, whatever `num_mini_batches` says: with both
  above 1 there are fewer updates than minibatches. And on the last batch of a pass over the prompts accelerate steps at
  every forward, so there would be more: one batch of prompts more than is trained keeps the run off that.
- `num_mini_batches` = n with one accumulation step gives n updates an epoch, a micro-batch being a minibatch.
"""

from ppo_interface import Clock, Memory, PPOSpec, parse_paths, read_rollouts, read_spec, write_result  # isort: skip

import os
import tempfile
from types import SimpleNamespace

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer


class EndOfIteration(TrainerCallback):
    """The trainer calls a rollout with its epochs a step."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Counts it."""
        self.clock.end_iteration()


def load_tokenizer(spec: PPOSpec, vocab_size: int):
    """The policy's, but padded with an id above the vocabulary, on the left.

    TRL takes every pad id for padding, also one that was sampled: replies would be masked there, and end. An id that
    cannot be sampled costs nothing; TRL itself puts 0 in its place before a model sees it.
    """
    tokenizer = AutoTokenizer.from_pretrained(spec.policy, padding_side="left")
    tokenizer.add_tokens([f"<|unused{i}|>" for i in range(vocab_size - len(tokenizer))])
    tokenizer.add_special_tokens({"pad_token": "<|outside|>"})
    assert tokenizer.pad_token_id == vocab_size
    return tokenizer


def ppo_config(spec: PPOSpec, folder: str) -> PPOConfig:
    """The spec in TRL's words. Left at its defaults: fused AdamW, no weight decay, k1, no whitening of rewards."""
    rows = spec.batch if spec.minibatches > 1 else spec.micro_batch
    return PPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=spec.precision == "bf16",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=spec.batch // rows,
        num_mini_batches=spec.minibatches,
        num_ppo_epochs=spec.epochs,
        total_episodes=spec.iterations * spec.batch,
        local_rollout_forward_batch_size=spec.batch,
        response_length=spec.new_tokens,
        stop_token=None,  # nothing ends a reply before its length
        missing_eos_penalty=None,
        num_sample_generations=0,
        temperature=spec.temperature,
        learning_rate=spec.learning_rate,
        lr_scheduler_type="constant",
        adam_epsilon=spec.adam_epsilon,
        cliprange=spec.clip,
        cliprange_value=spec.value_clip,
        vf_coef=spec.value_coef,
        kl_coef=spec.kl_coef,
        gamma=spec.gamma,
        lam=spec.lam,
        gradient_checkpointing=False,  # its default is True, but this trainer never switches it on
        seed=spec.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def make_trainer(spec: PPOSpec, memory: Memory, clock: Clock, folder: str) -> PPOTrainer:
    """Models, trainer, and prompts in the order of the file."""
    policy, reference = (AutoModelForCausalLM.from_pretrained(spec.policy, dtype=torch.float32) for _ in range(2))
    critic, reward_model = (
        AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32, num_labels=1)
        for path in (spec.critic, spec.reward_model)
    )
    for frozen in (reference, reward_model):
        frozen.requires_grad_(False).eval()
    memory.loaded((policy, reference, critic, reward_model))
    tokenizer = load_tokenizer(spec, policy.config.vocab_size)
    prompts = [{"input_ids": row.prompt_ids} for batch in read_rollouts(spec) for row in batch]
    prompts += prompts[: spec.batch]  # never trained: see above
    trainer = PPOTrainer(
        args=ppo_config(spec, folder),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=reward_model,
        value_model=critic,
        train_dataset=Dataset.from_list(prompts),
        callbacks=[EndOfIteration(clock)],
    )
    trainer.callback_handler.remove_callback(PrinterCallback)
    in_order = DataLoader(trainer.train_dataset, batch_size=spec.batch, collate_fn=trainer.data_collator)
    trainer.dataloader = trainer.accelerator.prepare(in_order)
    return trainer


def record(trainer: PPOTrainer, clock: Clock) -> None:
    """Losses, updates and phases, by wrapping what `train` calls; nothing that it computes is changed."""
    masked_mean = ppo_trainer.masked_mean

    def kept_mean(values, mask, axis=None):
        mean = masked_mean(values, mask, axis)
        if values.requires_grad:  # of the two means that are trained, the value's comes first
            value_comes = len(clock._waiting[0]) == len(clock._waiting[1])
            clock.add_losses(None if value_comes else mean, mean * 0.5 if value_comes else None)
        return mean

    ppo_trainer.masked_mean = kept_mean
    trainer.optimizer.optimizer.register_step_post_hook(clock.end_update)
    trainer.optimizer.step = clock.timed("optimizer", trainer.optimizer.step)
    trainer.accelerator.backward = clock.timed("backward", trainer.accelerator.backward)
    ppo_trainer.batch_generation = clock.timed("generation", ppo_trainer.batch_generation)
    ppo_trainer.get_reward = clock.timed("values and scores", ppo_trainer.get_reward)
    ppo_trainer.forward = clock.timed(
        lambda: "forward" if torch.is_grad_enabled() else "reference", ppo_trainer.forward
    )


def fix_orders(spec: PPOSpec) -> None:
    """The spec's permutations instead of numpy's; the module uses numpy for nothing else."""
    flat = iter([order for epochs in spec.orders for order in epochs])
    ppo_trainer.np = SimpleNamespace(random=SimpleNamespace(permutation=lambda n: next(flat)))


def replay(spec: PPOSpec, trainer: PPOTrainer) -> None:
    """The file's replies and scores instead of sampled and judged ones.

    The logits of a reply, which TRL keeps from sampling, come from a forward of the policy.
    """
    batches = iter(read_rollouts(spec))
    score = ppo_trainer.get_reward
    current = []

    def batch_generation(model, queries, rows, pad_token_id, generation_config):
        current[:] = next(batches)
        for query, row in zip(queries, current, strict=True):
            assert query[query != pad_token_id].tolist() == row.prompt_ids
        query_responses = torch.cat((queries, torch.tensor([row.reply_ids for row in current])), dim=1)
        logits = ppo_trainer.forward(model, query_responses, pad_token_id).logits
        return query_responses, logits[:, queries.shape[1] - 1 : -1] / (spec.temperature + 1e-7)

    def get_reward(model, query_responses, pad_token_id, context_length):
        if model is trainer.reward_model:
            return None, torch.tensor([row.score for row in current]), None
        return score(model, query_responses, pad_token_id, context_length)

    ppo_trainer.batch_generation, ppo_trainer.get_reward = torch.no_grad()(batch_generation), get_reward


def check_lengths(spec: PPOSpec) -> None:
    """Every reply has the length that all contenders train."""
    sample = ppo_trainer.batch_generation

    def checked(model, queries, rows, pad_token_id, generation_config):
        query_responses, logits = sample(model, queries, rows, pad_token_id, generation_config)
        replies = query_responses[:, queries.shape[1] :]
        assert replies.shape == (spec.batch, spec.new_tokens)
        assert not (replies == pad_token_id).any()
        return query_responses, logits

    ppo_trainer.batch_generation = checked


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    if spec.variant not in ("asked", "autocast"):
        raise ValueError(f"variant={spec.variant!r} must be asked or autocast")
    if spec.minibatches > 1 and spec.micro_batch != spec.minibatch:
        raise ValueError(f"TRL cannot split a minibatch: micro_batch={spec.micro_batch} must be {spec.minibatch}")
    if spec.variant == "autocast":
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    clock, memory = Clock(spec, paths.profile, paths.count), Memory()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(spec, memory, clock, folder)
        precision = trainer.accelerator.mixed_precision
        assert precision == ("bf16" if spec.variant == "autocast" else "no"), precision
        fix_orders(spec)
        if spec.replay:
            replay(spec, trainer)
        check_lengths(spec)
        record(trainer, clock)
        trainer.train()
    write_result(paths.result, "trl_ppo", spec, clock, memory, ("trl", "accelerate"))


if __name__ == "__main__":
    main()

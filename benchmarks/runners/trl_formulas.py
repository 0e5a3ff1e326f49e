"""Advantages, losses and gradients by TRL's GRPOTrainer and RLOOTrainer, of given numbers. Lives in .venv-grpo.

`python benchmarks/runners/trl_formulas.py SPEC.json RESULT.json`; the spec is made by benchmarks/grpo_formulas.py.
Advantages, the sampler's correction and losses come from TRL's own methods of a trainer that TRL itself has set up.
Only two of its methods are replaced: the one that generates, and the one that runs a model on a batch.
"""

from interface import parse_paths  # isort: skip  (before torch)

import json
import math
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.utils import split_tensor_dict

PAD, EOS, WORD, FIRST = 0, 1, 2, 3  # reply i begins with the id FIRST + i, by which a forward knows its rows
PROMPT = "w2 w2"


def save_model(folder: Path, replies: int) -> None:
    """A model whose results are never used, and a tokenizer of one word an id."""
    size = FIRST + replies
    words = {f"w{number}": number for number in range(size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=f"w{WORD}"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=f"w{PAD}", eos_token=f"w{EOS}").save_pretrained(
        folder
    )
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def reply_ids(replies: dict[str, list]) -> list[list[int]]:
    """Ids of each reply: its number, words, and the end unless it is truncated. A reply has two tokens or more."""
    rows = []
    for number, (logprobs, truncated) in enumerate(zip(replies["logprobs"], replies["truncated"], strict=True)):
        ids = [FIRST + number] + [WORD] * (len(logprobs) - 1)
        rows.append(ids if truncated else [*ids[:-1], EOS])
    return rows


class Forwards:
    """Takes the place of a model's forward: the given numbers of the rows that it is asked for."""

    def __init__(self, replies: dict[str, list]) -> None:
        self.trainer: GRPOTrainer | RLOOTrainer | None = None
        self.given = replies
        self.leaves = {
            name: [torch.tensor(row, requires_grad=True) for row in replies[name]] for name in ("logprobs", "entropies")
        }

    def __call__(self, model, input_ids, attention_mask, logits_to_keep, *args, compute_entropy=False, **kwargs):
        """(log-probabilities, entropies or None, no loss of experts), [rows, logits_to_keep] each."""
        rows = (input_ids[:, -logits_to_keep] - FIRST).tolist()
        if model is self.trainer.ref_model:
            found = [torch.tensor(self.given["reference"][row]) for row in rows]
        elif torch.is_grad_enabled():
            found = [self.leaves["logprobs"][row] for row in rows]
        else:
            found = [torch.tensor(self.given["old"][row]) for row in rows]
        entropies = [self.leaves["entropies"][row] for row in rows] if compute_entropy else None
        return _padded(found, logits_to_keep), entropies and _padded(entropies, logits_to_keep), None

    def gradients(self, name: str) -> list[list[float]]:
        """Of the sum of all losses so far, by reply and token."""
        return [leaf.grad.tolist() if leaf.grad is not None else [0.0] * len(leaf) for leaf in self.leaves[name]]


def _padded(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, length - len(row))) for row in rows])


def make_trainer(case: dict[str, Any], model: Path, folder: str) -> tuple[Any, Forwards]:
    """The case's trainer, as TRL sets it up, with forwards and replies that are given."""
    replies = case["replies"]
    count, grpo = len(replies["logprobs"]), case["trainer"] == "grpo"
    config_type, trainer_type = (GRPOConfig, GRPOTrainer) if grpo else (RLOOConfig, RLOOTrainer)
    steps = case["accumulation_steps"]
    config = config_type(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=count // steps,
        gradient_accumulation_steps=steps,
        num_iterations=2,  # so that old log-probabilities are not taken to be the present ones
        report_to="none",
        **case["settings"],
    )
    rewards = [
        lambda completions, column=column, **kwargs: [row[column] for row in replies["rewards"]]
        for column in range(len(replies["rewards"][0]))
    ]
    for number, function in enumerate(rewards):
        function.__name__ = f"reward_{number}"
    if tokens := case["overlong_tokens"]:
        rewards.append(get_soft_overlong_punishment(case["settings"]["max_completion_length"], tokens))
    data = Dataset.from_list([{"prompt": PROMPT}] * count)
    trainer = trainer_type(model=str(model), reward_funcs=rewards, args=config, train_dataset=data)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = steps
    forwards = Forwards(replies)
    forwards.trainer = trainer
    trainer._get_per_token_logps_and_entropies = forwards
    ids = reply_ids(replies)
    if grpo:
        trainer._generate_single_turn = lambda *args, **kwargs: (ids, replies["sampler"])
        trainer.use_vllm = case["corrects_sampler"]  # what it decides besides is in the method replaced above
    else:
        trainer._generate_single_turn = lambda *args, **kwargs: ids
    return trainer, forwards


def run_case(case: dict[str, Any], model: Path) -> dict[str, Any]:
    """Advantages [replies], correction [replies, tokens or 1] or None, loss of the update, gradients by token."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, forwards = make_trainer(case, model, folder)
        batch = trainer._generate_and_score_completions(list(trainer.train_dataset))
        loss = torch.zeros(())
        for part in split_tensor_dict(batch, case["accumulation_steps"]):
            of_part = trainer._compute_loss(trainer.model, part)
            if not trainer.loss_is_scaled_for_ga:  # as transformers' training_step does
                of_part = of_part / case["accumulation_steps"]
            of_part.backward()
            loss += of_part.detach()
    correction = batch.get("importance_sampling_ratio")
    logged = {name: values[-1] for name, values in trainer._metrics["train"].items() if values}
    return {
        "advantages": batch["advantages"].tolist(),
        "correction": None if correction is None else correction.tolist(),
        "loss": loss.item(),
        "gradients": forwards.gradients("logprobs"),
        "entropy_gradients": forwards.gradients("entropies"),
        "logged": {name: value for name, value in logged.items() if not math.isnan(value)},
    }


def main() -> None:
    paths = parse_paths()
    spec = json.loads(Path(paths.spec).read_text())
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), max(len(case["replies"]["logprobs"]) for case in spec["cases"]))
        found = {case["name"]: run_case(case, Path(folder)) for case in spec["cases"]}
    versions = {package: version(package) for package in ("torch", "transformers", "trl")}
    Path(paths.result).write_text(json.dumps({"versions": versions, "cases": found}))


if __name__ == "__main__":
    main()

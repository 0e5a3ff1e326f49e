"""A stand-in for TRL where it is not installed: its trainers take one step on the first row and save a checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


class _Config(SimpleNamespace):
    """Settings by name."""


class _Trainer:
    def __init__(self, *, model: Any, args: Any, train_dataset: Any, eval_dataset: Any = None,
                 processing_class: Any = None, peft_config: Any = None, reward_funcs: Any = None) -> None:  # fmt: skip
        if peft_config:
            from peft import get_peft_model

            model = get_peft_model(model, peft_config)
        self.model, self.args, self.rows, self.reward_of = model, args, train_dataset, reward_funcs
        self.tokenizer = processing_class

    def messages(self, row: dict[str, Any]) -> list[dict[str, str]]:
        """What is learnt of a row."""
        raise NotImplementedError

    def train(self) -> None:
        """One step."""
        assert len(self.rows), "a data set without rows"
        texts = [message["content"] for message in self.messages(self.rows[0])]
        assert texts[-1].strip()
        ids = torch.arange(2, 10)[None] % self.model.config.vocab_size
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        before = [weight.detach().clone() for weight in trained]
        optimizer = torch.optim.AdamW(trained, 1e-3)
        self.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        assert any(not torch.equal(one, other) for one, other in zip(before, trained, strict=True))
        self.model.save_pretrained(Path(self.args.output_dir) / "checkpoint-1")


class SFTTrainer(_Trainer):
    def messages(self, row: dict[str, Any]) -> list[dict[str, str]]:
        return row["messages"]


class DPOTrainer(_Trainer):
    def messages(self, row: dict[str, Any]) -> list[dict[str, str]]:
        assert row["chosen"] != row["rejected"]
        return [*row["prompt"], *row["chosen"]]


class GRPOTrainer(_Trainer):
    def messages(self, row: dict[str, Any]) -> list[dict[str, str]]:
        columns = {name: [row[name]] for name in row if name != "prompt"}
        said = [{"role": "assistant", "content": "guess: apple"}]
        [reward] = self.reward_of(completions=[said], prompts=[row["prompt"]], **columns)
        assert -1 <= reward <= 1
        return [*row["prompt"], *said]


class SFTConfig(_Config):
    pass


class DPOConfig(_Config):
    pass


class GRPOConfig(_Config):
    pass

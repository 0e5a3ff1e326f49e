"""Base classes that reward models of the first lmgym (2023) extend; see lmgym/apps/chat/first_form.py."""

from abc import ABC, abstractmethod
from typing import Any

MOST_TOKENS = 256


class BaseRewardModel(ABC):
    """`_predict(inputs, responses)` gives a dict with text and score for each response to the text before it."""

    def predict(self, inputs: str, responses: list[str]) -> list[dict[str, Any]]:
        """The list that `_predict` gives."""
        return self._predict(inputs, responses)

    @abstractmethod
    def _predict(self, inputs: str, responses: list[str]) -> list[dict[str, Any]]: ...


class _GPT2MixIn:
    """GPT-2's tokenizer, and texts as the last 256 of its tokens."""

    tokenizer: Any

    def _load_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained("gpt2", truncation_side="left", padding_side="right")
        tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def _tokenize(self, text: str) -> Any:
        import torch

        found = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=MOST_TOKENS)
        return found.to("cuda" if torch.cuda.is_available() else "cpu")

"""Reward models by the names that experiments of the first lmgym (2023) import."""

import random
from typing import Any

from reward_models.evaluation.base_cls import BaseRewardModel, _GPT2MixIn


class RandomRM(BaseRewardModel):
    """Standard normal scores."""

    def _predict(self, inputs: str, responses: list[str]) -> list[dict[str, Any]]:
        return [{"text": response, "score": random.gauss()} for response in responses]


class GPT2Model(BaseRewardModel, _GPT2MixIn):
    """A classifier with GPT-2's tokenizer; the score is the probability of its second label."""

    def __init__(self, hf_model_name: str) -> None:
        self.hf_model_name = hf_model_name
        self.model, self.tokenizer = self._load_model(), self._load_tokenizer()

    def _load_model(self) -> Any:
        import torch
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(self.hf_model_name).eval()
        return model.to("cuda" if torch.cuda.is_available() else "cpu")

    def _predict(self, inputs: str, responses: list[str]) -> list[dict[str, Any]]:
        import torch

        with torch.inference_mode():
            logits = [self.model(**self._tokenize(inputs + response)).logits[0] for response in responses]
        return [
            {"text": response, "score": float(one.float().softmax(-1)[1])}
            for response, one in zip(responses, logits, strict=True)
        ]

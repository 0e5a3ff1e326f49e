"""Models and scorers as the experiments of the first lmgym (2023) have them: objects that `predict`, and functions.

    model.predict(text, best_of) -> replies
    scorer.predict(inputs, responses) -> [{"text": response, "score": number}, ...], or numbers

`text` and `inputs` are the conversation as a flat transcript that ends in "Bot:"; a response follows it directly, so it
begins with a blank.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from lmgym.errors import InputError, shown
from lmgym.generation.protocol import Completion, Progress, Sampling
from lmgym.runs.user_code import call_user_code
from lmgym.scoring.function_scorers import FileScorer
from lmgym.scoring.protocol import Scorer, read_scores
from lmgym.text import Conversation, Reply, reply_text, to_transcript, words_of

SCORERS = "score(conversations, replies), predict(inputs, responses), or a function in a form of docs/rewards.md"
MODELS = "reply(conversations, n, sampling), or predict(text, best_of)"


class PredictingModel:
    """A model with `predict(text, best_of)`, which has settings of sampling of its own."""

    def __init__(self, name: str, predict: Callable[..., Any]) -> None:
        self.name, self._predict = name, predict

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation. Raises InputError for what the model raises, or gives instead of n texts."""
        return [self._replies(to_transcript(conversation), n) for conversation in conversations]

    def _replies(self, text: str, n: int) -> list[Completion]:
        found = call_user_code(f"predict of {self.name}", lambda: self._predict(text, n))
        if not isinstance(found, Sequence) or len(found) != n or not all(isinstance(one, str) for one in found):
            raise InputError(f"predict of {self.name} gave {shown(found)}; needed: a list of {n} texts")
        return [Completion(reply_text(one), "eos", tokens=len(one.split())) for one in found]


class PredictingScorer:
    """A scorer with `predict(inputs, responses)`: all replies to a conversation in one call."""

    def __init__(self, name: str, predict: Callable[..., Any]) -> None:
        self.name, self._predict = name, predict

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]. Raises InputError for what `predict` raises, and for what is no score of each reply."""
        found: list[float] = []
        given = zip(conversations, replies, strict=True)
        for conversation, rows in groupby(given, key=lambda row: row[0]):
            texts = [words_of(reply) for _, reply in rows]
            found += self._scores(to_transcript(conversation), [f" {text}" if text else "" for text in texts])
        return np.array(found, dtype=np.float32)

    def _scores(self, inputs: str, responses: list[str]) -> list[float]:
        found = call_user_code(f"predict of {self.name}", lambda: self._predict(inputs, responses))
        try:
            return read_scores(_in_order(found, responses), len(responses))
        except (TypeError, ValueError, KeyError) as error:
            needed = 'a list with a number, or {"text": response, "score": number}, for each'
            raise InputError(
                f"predict of {self.name} gave {shown(found)} for {len(responses)} responses; needed: {needed}"
            ) from error


def _in_order(found: Any, responses: Sequence[str]) -> Any:
    """The scores in the order of the responses, whichever order the list of their texts has."""
    if not isinstance(found, Sequence) or not all(isinstance(one, Mapping) for one in found):
        return found
    if [one["text"] for one in found] == [*responses]:
        return [one["score"] for one in found]
    scores = {one["text"]: one["score"] for one in found}
    return [scores[response] for response in responses]


def as_generator(value: Any, name: str) -> Any:
    """The model that an experiment gives, as a generator. Raises InputError for anything else."""
    if callable(getattr(value, "reply", None)):
        return value
    if callable(getattr(value, "predict", None)):
        return PredictingModel(name, value.predict)
    raise InputError(f"{name} is {type(value).__name__}; needed: something with {MODELS}")


def as_scorer(value: Any, name: str) -> Scorer:
    """A scorer from what an experiment gives as one. Raises InputError for anything else."""
    if callable(getattr(value, "score", None)):
        return value
    if callable(getattr(value, "predict", None)):
        return PredictingScorer(name, value.predict)
    if inspect.isroutine(value):
        if {"inputs", "responses"} <= inspect.signature(value).parameters.keys():
            return PredictingScorer(name, value)
        return FileScorer(name, value)
    raise InputError(f"{name} is {type(value).__name__}; needed: something with {SCORERS}")

"""Who judges a reply: `score(conversations, replies) -> float32 [batch]` on the CPU, higher is better always."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from lmgym.data.batching import length_batches
from lmgym.data.truncation import tokenize_replies
from lmgym.errors import InputError
from lmgym.models.classifiers import round_weights
from lmgym.models.config_fields import context_length
from lmgym.models.forward.prefixes import Prefix
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_config, load_tokenizer
from lmgym.models.sources import resolve_source
from lmgym.scoring.random_scorer import NumpyRandomScorer
from lmgym.text import Conversation, Replies, render, tokenize_texts

REPLIES_A_ROW = 16
Reduce = Literal["logit", "softmax[1]", "mean_sigmoid"]


class Scorer(Protocol):
    """What every stage asks for an opinion."""

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """One float32 a reply, on the CPU, higher is better. Reply i answers conversation i."""
        ...


def reduce_logits(logits: torch.Tensor, reduce: str) -> torch.Tensor:
    """[n, labels] logits to [n] scores. Raises InputError where the reduction does not suit the number of labels."""
    labels = logits.shape[1]
    if reduce == "logit" and labels == 1:
        return logits[:, 0]
    if reduce == "softmax[1]" and labels == 2:
        return logits.softmax(-1)[:, 1]
    if reduce == "mean_sigmoid":
        return logits.sigmoid().mean(-1)
    raise InputError(
        f"reduce={reduce!r} does not suit a scorer of {labels} output(s); logit takes 1, softmax[1] takes 2, "
        "mean_sigmoid any number"
    )


@dataclass(frozen=True)
class Seen:
    """What a scorer was shown: the text, its tokens, and how many tokens of the whole text were left out."""

    text: str
    tokens: int
    cut: int


@dataclass
class TextCounts:
    """Texts that a scorer was shown since it was made, and how many of them were not whole."""

    texts: int = 0
    truncated: int = 0
    """without their oldest turns, or shortened"""
    shortened: int = 0
    """of which the last turn, or the reply, had to be cut: see data/truncation.py"""

    def add(self, texts: int, row: Replies) -> None:
        """Counts the replies of a row."""
        self.texts += texts
        self.truncated += texts * row.truncated
        self.shortened += texts * (row.shortened > 0)


class HFScorer:
    """A Hugging Face sequence classifier as a scorer. Made by `HFScorer.load`."""

    def __init__(
        self,
        model: ScoringModel,
        tokenizer,
        reduce: str = "logit",
        max_length: int = 1024,
        batch_tokens: int = 8192,
        moments: tuple[float, float] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.reduce = model.eval(), tokenizer, reduce
        self.max_length, self.batch_tokens, self.moments = max_length, batch_tokens, moments
        self.prefix = Prefix(model.decoder) if model.decoder is not None and model.packed else None
        self.counts = TextCounts()

    @classmethod
    def load(
        cls,
        path: str | Path,
        reduce: Reduce | None = None,
        max_length: int | None = None,
        batch_tokens: int = 8192,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        normalize: bool = False,
    ) -> "HFScorer":
        """A scorer out of a folder or hub id; what `scorer.json` beside the weights says holds unless given here.

        With `normalize` scores are shifted and scaled by the mean and std over reference replies that the folder
        stores. Raises InputError for a folder without a trained head, or without those moments when asked for.
        """
        source = resolve_source(str(path), role="scorer")
        saved = _read_settings(Path(source) / "scorer.json")
        tokenizer = load_tokenizer(source)
        config = load_config(source)
        model, _ = load_classifier(source, tokenizer, num_labels=config.num_labels, fresh_head=False)
        limit = context_length(config)
        moments = _moments(saved, path) if normalize else None
        round_weights(model, dtype)
        scorer = cls(
            ScoringModel(model.to(device)),
            tokenizer,
            reduce or saved.get("reduce", "logit"),
            min(limit, max_length or saved.get("max_length") or 1024),
            batch_tokens,
            moments,
        )
        reduce_logits(torch.zeros(1, config.num_labels), scorer.reduce)
        return scorer

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """One float32 a reply. Replies to one conversation share its forward.

        Where a text is too long, all replies to that conversation lose the same turns (data/truncation.py), so that
        they are compared in the same context, as in training. A request about one conversation goes on from the one
        before. Raises InputError where a system message alone is too long, or the chat template refuses a conversation.
        """
        rows, members = self._rows(conversations, replies)
        scores = torch.empty(len(replies), dtype=torch.float32)
        for batch in length_batches([row.tokens for row in rows], self.batch_tokens):
            logits = self._logits([rows[i] for i in batch], alone=len(rows) == 1)
            scores[[m for i in batch for m in members[i]]] = reduce_logits(logits, self.reduce).float().cpu()
        if self.moments:
            scores = (scores - self.moments[0]) / self.moments[1]
        return scores

    def seen(self, conversation: Conversation, reply: str, beside: Sequence[str] = ()) -> Seen:
        """What of a reply in its conversation the model is shown, when these others are scored beside it."""
        [ids] = tokenize_texts(self.tokenizer, [render(self.tokenizer, conversation, reply)])
        rows, members = self._rows([conversation] * (1 + len(beside)), [reply, *beside])
        row = next(row for row, here in zip(rows, members, strict=True) if here[0] == 0)
        kept = row.prefix + row.suffixes[0]
        text = self.tokenizer.decode(kept) if len(kept) < len(ids) else render(self.tokenizer, conversation, reply)
        return Seen(text, len(kept), len(ids) - len(kept))

    def _rows(
        self, conversations: Sequence[Conversation], replies: Sequence[str]
    ) -> tuple[list[Replies], list[list[int]]]:
        """Rows of replies, a row a conversation, and which replies stand in each."""
        groups: dict[Conversation, list[int]] = {}
        for index, conversation in enumerate(conversations):
            groups.setdefault(conversation, []).append(index)
        texts = [[replies[i] for i in group] for group in groups.values()]
        found = tokenize_replies(self.tokenizer, list(groups), texts, self.max_length)
        rows: list[Replies] = []
        members: list[list[int]] = []
        for (conversation, group), row in zip(groups.items(), found, strict=True):
            if not isinstance(row, str):
                rows.append(row)
                members.append(group)
            else:  # a reply alone is too long: each is fitted by itself, and such a reply keeps its end
                rows += [self._alone(conversation, replies[i]) for i in group]
                members += [[i] for i in group]
        for row, here in zip(rows, members, strict=True):
            self.counts.add(len(here), row)
        return rows, members

    def _alone(self, conversation: Conversation, reply: str) -> Replies:
        [row] = tokenize_replies(self.tokenizer, [conversation], [[reply]], self.max_length, cut_replies=True)
        if isinstance(row, str):
            raise InputError(f"a text cannot be scored: {row}")
        return row

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Replies], alone: bool) -> torch.Tensor:
        """Of the rows' replies, in their order; a row that is alone goes on from what was alone before it."""
        if alone and self.prefix and not self.model.training:
            [row] = rows
            self.prefix.extend_to(row.prefix)
            return self.prefix.decoder.scores(self.prefix.suffix_states(row.suffixes))
        inputs = self.model.collate(_rows_of_few(rows), self.tokenizer.pad_token_id)
        device = next(self.model.parameters()).device
        return self.model(**{name: value.to(device) for name, value in inputs.items()})


class FunctionScorer:
    """A plain function `f(conversations, replies) -> list[float]` as a scorer."""

    def __init__(self, function: Callable[[Sequence[Conversation], Sequence[str]], Sequence[float]]) -> None:
        self.function = function

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """What the function says. Raises ValueError for a wrong count or a score that is not finite."""
        values = list(self.function(conversations, replies))
        if len(values) != len(replies):
            raise ValueError(f"the scorer gave {len(values)} scores for {len(replies)} replies; needed: one a reply")
        if bad := [i for i, value in enumerate(values) if not math.isfinite(value)]:
            raise ValueError(f"the scorer gave {values[bad[0]]} for reply {bad[0]} ({len(bad)} such); needed: numbers")
        return torch.tensor(values, dtype=torch.float32)


class RandomScorer:
    """A baseline: uniform in [0, 1), the same for the same seed, conversation and reply, whatever the batch."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """One number a reply."""
        return torch.from_numpy(NumpyRandomScorer(self.seed).score(conversations, replies))


class Ensemble:
    """Several scorers as one: their mean, the least, or the mean less `penalty` standard deviations.

    The least and the lower bound resist over-optimisation (Coste et al. 2023).
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        combine: Literal["mean", "min", "mean_minus_std"] = "mean",
        penalty: float = 1.0,
    ) -> None:
        if not scorers:
            raise InputError("an ensemble of 0 scorers has no opinion; give at least 1")
        if combine not in ("mean", "min", "mean_minus_std"):
            raise InputError(f"combine={combine!r} is unknown; needed: mean, min or mean_minus_std")
        self.scorers, self.combine, self.penalty = list(scorers), combine, penalty

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """One float32 a reply."""
        opinions = torch.stack([scorer.score(conversations, replies) for scorer in self.scorers])
        if self.combine == "min":
            return opinions.min(0).values
        mean = opinions.mean(0)
        return mean if self.combine == "mean" else mean - self.penalty * opinions.std(0, correction=0)


def _rows_of_few(rows: Sequence[Replies]) -> list[Replies]:
    """Attention is quadratic in a row: more replies than REPLIES_A_ROW start another, with the prefix again."""
    return [
        Replies(row.prefix, row.suffixes[first : first + REPLIES_A_ROW])
        for row in rows
        for first in range(0, len(row.suffixes), REPLIES_A_ROW)
    ]


def _moments(saved: dict, path: str | Path) -> tuple[float, float]:
    if not saved.get("moments"):
        raise InputError(f"scorer {path} stores no moments of reference replies; load it without normalize")
    mean, std = saved["moments"]
    return float(mean), float(std)


def _read_settings(path: Path) -> dict:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}; restore it, or delete it to use the defaults") from error
    if not isinstance(settings, dict):
        found = type(settings).__name__
        raise InputError(f"{path} is a JSON {found}, not an object; restore it, or delete it to use the defaults")
    return settings

"""Scorers: Hugging Face sequence classifiers and plain functions."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from lmgym.console import say
from lmgym.data.batching import length_batches
from lmgym.data.truncation import bounded_replies, ends_of, tokenize_replies
from lmgym.errors import InputError, shown, shown_path
from lmgym.models.classifiers import round_weights
from lmgym.models.config_fields import context_length
from lmgym.models.forward.prefixes import Prefix
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.scorer_folders import ScorerModel, file_of, load_scorer_model
from lmgym.models.sources import resolve_source
from lmgym.scoring.combinations import combine, is_combination
from lmgym.scoring.protocol import read_scores
from lmgym.text import Conversation, Replies, Reply, has_special_ends, render, share_prefix, tokenize_texts
from lmgym.turn_ends import END_OF_TURN, turn_ends

REPLIES_A_ROW = 16
Reduce = Literal["logit", "softmax[1]", "difference", "mean_sigmoid", "mean"]
REDUCTIONS: tuple[str, ...] = get_args(Reduce)


def reduce_logits(logits: torch.Tensor, reduce: str) -> torch.Tensor:
    """Scores [n] of logits [n, labels], which are those of heads where `reduce` combines them (combinations.py).

    Raises InputError if the reduction does not suit the number of labels.
    """
    labels = logits.shape[1]
    if is_combination(reduce):
        return combine(logits.T, reduce)
    if reduce == "logit" and labels == 1:
        return logits[:, 0]
    if reduce == "softmax[1]" and labels == 2:
        return logits.softmax(-1)[:, 1]
    if reduce == "difference" and labels == 2:
        return logits[:, 1] - logits[:, 0]
    if reduce == "mean_sigmoid":
        return logits.sigmoid().mean(-1)
    raise InputError(
        f"{shown(reduce)} does not suit a scorer of {labels} output(s): logit takes 1, softmax[1] and difference "
        "take 2, mean_sigmoid any number; needed: the right one behind its path, as in PATH#softmax[1]"
    )


@dataclass(frozen=True)
class ScoredText:
    """The text that a scorer reads of a conversation and reply."""

    text: str
    tokens: int
    cut: int
    """tokens of the whole text that were left out"""


@dataclass(frozen=True)
class Judged:
    """Scores of replies, and what was read of each text."""

    scores: torch.Tensor
    """float32 [replies]"""
    tokens: list[int]
    dropped_turns: list[int]
    """oldest turns that were left out: see lmgym/data/truncation.py"""
    shortened: list[int]
    """tokens cut from the last turn or the reply, which alone was too long"""
    members: torch.Tensor
    """float32 [heads, replies]: the score of each head, before they are combined; [0, replies] of a single one"""

    @classmethod
    def empty(cls, replies: int, heads: int = 0) -> "Judged":
        """Places for so many replies."""
        scores, members = torch.empty(replies), torch.empty(heads, replies)
        return cls(scores, [0] * replies, [0] * replies, [0] * replies, members)


@dataclass
class TextCounts:
    """Texts that a scorer has read, and how many of them were truncated."""

    texts: int = 0
    truncated: int = 0
    """without their oldest turns, or shortened"""
    shortened: int = 0
    """truncated within the last turn or the reply: see data/truncation.py"""

    def add(self, texts: int, row: Replies) -> None:
        """Count the texts of a row."""
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
        ends_in_eos: bool = False,
        means: Sequence[float] = (),
        as_sampled: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.reduce = model.eval(), tokenizer, reduce
        self.means = torch.tensor(means) if is_combination(reduce) else torch.empty(0)
        self.ends_in_eos, self.as_sampled = ends_in_eos, as_sampled
        # room for the eos, perhaps after a space
        self.max_length, self.batch_tokens = max_length - (2 if ends_in_eos else 0), batch_tokens
        self.moments = moments
        self.prefix = Prefix(model.decoder) if model.decoder is not None and model.packed else None
        self.counts = TextCounts()

    @classmethod
    def load(
        cls,
        path: str | Path,
        reduce: str | None = None,
        max_length: int | None = None,
        batch_tokens: int = 8192,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        normalize: bool = False,
    ) -> "HFScorer":
        """The scorer in a folder or hub id (see lmgym/models/scorer_folders.py); arguments override its `scorer.json`.

        With `normalize` scores are shifted and scaled by the mean and std over reference replies that the folder
        stores. A `max_length` above the model's context is reduced to it, and a line on stderr says so. Raises
        InputError for a folder without a trained head, or without those moments.
        """
        source = resolve_source(str(path), role="scorer")
        return cls.of(load_scorer_model(source), source, reduce, max_length, batch_tokens, device, dtype, normalize)

    @classmethod
    def of(
        cls,
        found: ScorerModel,
        source: str,
        reduce: str | None = None,
        max_length: int | None = None,
        batch_tokens: int = 8192,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        normalize: bool = False,
    ) -> "HFScorer":
        """`load` of a model that is loaded already, with the settings of the folder or hub id `source`."""
        model, tokenizer, ends_in_eos = found
        saved, path = read_settings(source), source
        config = model.config
        limit, asked = context_length(config), max_length or saved.get("max_length") or 0
        if asked > limit:
            say(f"max_length {asked} exceeds what {path} reads: texts are truncated to its {limit} tokens", error=True)
        moments = _moments(saved, path) if normalize else None
        round_weights(model, dtype)
        scorer = cls(
            ScoringModel(model.to(device)),
            tokenizer,
            reduce or saved.get("reduce", "logit"),
            min(limit, asked or 1024),
            batch_tokens,
            moments,
            ends_in_eos,
            saved.get("means") or (),
            saved.get("reads") == END_OF_TURN,
        )
        try:
            reduce_logits(torch.zeros(1, config.num_labels), scorer.reduce)
        except InputError as error:
            raise InputError(f"scorer {shown_path(path)}: {error}") from error
        if is_combination(scorer.reduce) and len(scorer.means) != config.num_labels:
            raise InputError(
                f"#{scorer.reduce} of the scorer {shown_path(path)}, whose scorer.json has means of "
                f"{len(scorer.means)} heads and not of {config.num_labels}; needed: a scorer by "
                "lmgym train reward --heads N, or an ensemble (lmgym ensemble)"
            )
        return scorer

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies]. Replies to one conversation share its forward.

        If a text is too long, all replies to its conversation lose the same turns (data/truncation.py), so that they
        are compared in the same context, as in training. A call with a single conversation reuses the keys and values
        of the call before. Raises InputError if a system message alone is too long, or the chat template refuses a
        conversation.
        """
        return self.judge(conversations, replies).scores

    def score_members(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [heads, replies]; [0, replies] where the scorer has a single one (combinations.py)."""
        return self.judge(conversations, replies).members

    def judge(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> Judged:
        """`score`, with what was read of each text."""
        return self._judge(*self._rows(conversations, replies))

    def judge_texts(self, texts: Sequence[str]) -> Judged:
        """`judge` of texts that are rendered already, each by itself; one that is too long loses its beginning.

        Raises InputError for a text without tokens.
        """
        marks = int(has_special_ends(self.tokenizer))  # [CLS] stays
        rows = []
        ends = ends_of(self.tokenizer, texts, self.max_length)
        for text, ids in zip(texts, tokenize_texts(self.tokenizer, ends), strict=True):
            if not ids:
                raise InputError(f"the text {shown(text)} has no tokens; needed: a rendered chat")
            ids = self._up_to_end(ids) if self.as_sampled else ids
            cut = max(0, len(ids) - self.max_length)
            row = share_prefix([ids[:marks] + ids[marks + cut :]], shortened=cut)
            self.counts.add(1, row)
            rows.append(self._ended(row) if self.ends_in_eos else row)
        return self._judge(rows, [[place] for place in range(len(rows))])

    def _judge(self, rows: Sequence[Replies], members: Sequence[Sequence[int]]) -> Judged:
        """Scores of the rows' replies, which are at the indices `members`."""
        judged = Judged.empty(sum(map(len, members)), len(self.means))
        for batch in length_batches([row.tokens for row in rows], self.batch_tokens):
            logits = self._logits([rows[i] for i in batch], alone=len(rows) == 1)
            places = [member for i in batch for member in members[i]]
            if len(self.means):
                logits = logits.float().cpu() - self.means
                judged.members[:, places] = logits.T
            judged.scores[places] = reduce_logits(logits, self.reduce).float().cpu()
        for row, indices in zip(rows, members, strict=True):
            for index, suffix in zip(indices, row.suffixes, strict=True):
                judged.tokens[index] = len(row.prefix) + len(suffix)
                judged.dropped_turns[index], judged.shortened[index] = row.dropped_turns, row.shortened
        if self.moments:
            judged.scores.sub_(self.moments[0]).div_(self.moments[1])
        return judged

    def seen(self, conversation: Conversation, reply: str, beside: Sequence[str] = ()) -> ScoredText:
        """The text that the model reads of a reply in its conversation, if the replies `beside` are scored with it."""
        [ids] = tokenize_texts(self.tokenizer, [render(self.tokenizer, conversation, reply)])
        rows, members = self._rows([conversation] * (1 + len(beside)), [reply, *beside])
        row = next(row for row, indices in zip(rows, members, strict=True) if indices[0] == 0)
        kept = row.prefix + row.suffixes[0]
        text = self.tokenizer.decode(kept) if len(kept) < len(ids) else render(self.tokenizer, conversation, reply)
        return ScoredText(text, len(kept), len(ids) - len(kept))

    def _rows(
        self, conversations: Sequence[Conversation], replies: Sequence[str]
    ) -> tuple[list[Replies], list[list[int]]]:
        """Rows, one a conversation, and the indices of the replies in each."""
        groups: dict[Conversation, list[int]] = {}
        for index, conversation in enumerate(conversations):
            groups.setdefault(conversation, []).append(index)
        bounded = bounded_replies(self.tokenizer, replies, self.max_length)
        texts = [[bounded[i] for i in group] for group in groups.values()]
        settings = {"may_lose_text": True, "as_sampled": self.as_sampled}
        tokenized = tokenize_replies(self.tokenizer, list(groups), texts, self.max_length, **settings)
        rows: list[Replies] = []
        members: list[list[int]] = []
        for (conversation, group), row in zip(groups.items(), tokenized, strict=True):
            if not isinstance(row, str):
                rows.append(row)
                members.append(group)
            else:  # a reply alone is too long: each is truncated by itself, and such a reply keeps its end
                rows += [self._single_row(conversation, bounded[i]) for i in group]
                members += [[i] for i in group]
        for row in rows:
            self.counts.add(len(row.suffixes), row)
        return [self._ended(row) for row in rows] if self.ends_in_eos else rows, members

    def _ended(self, row: Replies) -> Replies:
        """The row with texts that end in eos: in place of trailing line breaks, or else after a space."""
        eos, wholes = self.tokenizer.eos_token_id, [row.prefix + suffix for suffix in row.suffixes]
        for ids in wholes:
            while len(ids) > 1 and ids[-1] != eos and not self.tokenizer.decode(ids[-1:]).strip("\n"):
                ids.pop()
            if ids[-1] != eos:
                ids += tokenize_texts(self.tokenizer, [f" {self.tokenizer.eos_token}"])[0]
        return share_prefix(wholes, row.dropped_turns, row.shortened, row.realigned)

    def _up_to_end(self, ids: list[int]) -> list[int]:
        """The ids of a text up to the end of its last turn, if only blanks stand behind it."""
        ends = turn_ends(self.tokenizer).ids
        last = max((place for place, token in enumerate(ids) if token in ends), default=len(ids) - 1)
        return ids if self.tokenizer.decode(ids[last + 1 :]).strip() else ids[: last + 1]

    def _single_row(self, conversation: Conversation, reply: Reply) -> Replies:
        settings = {"cut_replies": True, "as_sampled": self.as_sampled}
        [row] = tokenize_replies(self.tokenizer, [conversation], [[reply]], self.max_length, **settings)
        if isinstance(row, str):
            raise InputError(f"a text cannot be scored: {row}")
        return row

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Replies], alone: bool) -> torch.Tensor:
        """Logits of the rows' replies, in order; a row that is alone reuses the prefix of the one before it."""
        if alone and self.prefix and not self.model.training:
            [row] = rows
            self.prefix.extend_to(row.prefix)
            return self.prefix.decoder.scores(self.prefix.suffix_states(row.suffixes))
        inputs = self.model.collate(_split_long_rows(rows), self.tokenizer.pad_token_id)
        device = next(self.model.parameters()).device
        return self.model(**{name: value.to(device) for name, value in inputs.items()})


class FunctionScorer:
    """A plain function `f(conversations, replies) -> list[float]` as a scorer."""

    def __init__(self, function: Callable[[Sequence[Conversation], Sequence[str]], Sequence[float]]) -> None:
        self.function = function

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies]. Raises ValueError for a wrong count or a score that is not finite."""
        return torch.tensor(read_scores(self.function(conversations, replies), len(replies)), dtype=torch.float32)


def _split_long_rows(rows: Sequence[Replies]) -> list[Replies]:
    """The rows with at most REPLIES_A_ROW replies each, since attention is quadratic in a row; prefixes repeat."""
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


def read_settings(name: str) -> dict:
    """The settings in the `scorer.json` of a folder or hub id; none where there is no such file.

    Raises InputError for one that is damaged.
    """
    if (path := file_of(name, "scorer.json")) is None:
        return {}
    try:
        settings = json.loads(Path(path).read_text())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}; restore it, or delete it to use the defaults") from error
    if not isinstance(settings, dict):
        kind = type(settings).__name__
        raise InputError(f"{path} is a JSON {kind}, not an object; restore it, or delete it to use the defaults")
    for field, value in settings.items():
        if field in SETTINGS and not SETTINGS[field][0](value):
            needed = f"{SETTINGS[field][1]}; restore it, or delete it to use the defaults"
            raise InputError(f"{path}: {field} is {shown(value)}; needed: {needed}")
    return settings


def _are_numbers(value: Any, count: int | None = None) -> bool:
    right = isinstance(value, list) and all(type(one) in (int, float) and math.isfinite(one) for one in value)
    return right and count in (None, len(value))


SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "reduce": (lambda value: isinstance(value, str), "text"),
    "max_length": (lambda value: value is None or (type(value) is int and value > 0), "a number of tokens"),
    "moments": (lambda value: value is None or _are_numbers(value, 2), "a mean and a standard deviation"),
    "means": (lambda value: value is None or _are_numbers(value), "a list of numbers"),
}
"""what fields of scorer.json have to be, by their names"""

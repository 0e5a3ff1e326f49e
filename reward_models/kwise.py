"""Ranked groups as a task: k replies to one prompt in the order people gave them, Plackett-Luce.

Accepted rows: `prompt` as text or messages, `replies` (a list of text) and `ranks` (a list of integers, 1 the best).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.engine import world_size
from lmgym.errors import InputError
from lmgym.models import ScoringModel
from lmgym.records import Record, read_records
from lmgym.scorers import Reduce
from lmgym.text import Conversation, tokenize_replies
from reward_models.config import RewardConfig
from reward_models.data import Rejection, RowError, prompt_key, read_conversation, split_by_prompt, without_prompts
from reward_models.evaluations import GOLD, RANKING, Evaluation
from reward_models.losses import MOST_TIED
from reward_models.objectives import Ranked, RankedExample
from reward_models.probes import RankingProbe
from reward_models.tasks import TaskData, at_most, check_sides

COLUMNS = ("prompt", "replies", "ranks")


@dataclass(frozen=True)
class Group:
    """Replies to one conversation with their ranks, 1 the best."""

    conversation: Conversation
    replies: tuple[str, ...]
    ranks: tuple[int, ...]
    file: str = ""
    line: int = 0

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ in case and white space only."""
        return prompt_key(self.conversation)


@dataclass(frozen=True)
class KwiseTask:
    """Replies in people's order."""

    loss: str = "Plackett-Luce loss"
    outputs: int = 1
    reduce: Reduce = "logit"
    evaluations: tuple[Evaluation, ...] = (RANKING, GOLD)

    def prepare(self, config: RewardConfig, tokenizer) -> TaskData:
        """Groups read, validated, split by prompt and tokenised."""
        settings = config.data
        records = read_records(settings.dataset, settings.dataset_split)[: settings.max_rows]
        groups, rejections = validate_groups(records)
        if not groups:
            raise InputError(f"none of the {len(records)} rows of {settings.dataset} is usable: {rejections[0]}")
        if settings.eval_dataset:
            held_out, faults = validate_groups(read_records(settings.eval_dataset, "test"))
            kept, leaks = without_prompts(groups, held_out)
            sides, rejections = (kept, held_out), [*rejections, *faults, *leaks]
        else:
            sides = split_by_prompt(groups, settings.eval_size, config.optimizer.seed, "groups")
        kept_rows = at_most(len(sides[0]), settings.train_size, config.optimizer.seed)
        unused = len(sides[0]) - len(kept_rows)
        sides = ([sides[0][i] for i in kept_rows], sides[1])
        (train, long), (evaluation, also_long) = (tokenize_groups(s, tokenizer, settings.max_length) for s in sides)
        data = TaskData(
            noun="groups",
            train=train,
            evaluation=evaluation,
            lengths=np.array([example.replies.tokens for example in train]),
            replies=max((len(example.ranks) for example in train), default=0),
            truncated=sum(e.replies.truncated > 0 for e in (*train, *evaluation)),
            rejections=[*rejections, *long, *also_long],
            fingerprint=_fingerprint(*sides),
            left_out={"unused_rows": unused} if unused else {},
        )
        return check_sides(data, len(records), world_size())

    def tails(self, example: RankedExample) -> tuple[str, ...]:
        """The ranks of the replies."""
        return tuple(f"rank {rank}" for rank in example.ranks)

    def objective(self, config: RewardConfig, model: ScoringModel, pad_id: int) -> Ranked:
        """Plackett-Luce."""
        return Ranked(model, pad_id)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> RankingProbe:
        """Agreement with the ranking of held-out groups."""
        return RankingProbe(data.evaluation, model, pad_id, batch_tokens)


def validate_groups(records: Iterable[Record]) -> tuple[list[Group], list[Rejection]]:
    """Every record as a group or as a rejection. Raises InputError where no row has the columns that are needed."""
    records = list(records)
    if not records:
        raise InputError("the dataset is empty: found 0 rows; needed: at least 2 groups")
    if not any(set(COLUMNS) <= set(record.fields) for record in records):
        found = sorted({name for record in records[:100] for name in record.fields})
        missing = [name for name in COLUMNS if name not in found]
        raise InputError(
            f"{records[0].file} lacks the columns {' and '.join(missing)}; found: {', '.join(found) or 'none'}; "
            "needed: prompt, replies (a list of text) and ranks (a list of integers, 1 the best)"
        )
    groups, rejections = [], []
    for record in records:
        try:
            groups.append(_group(record))
        except RowError as error:
            rejections.append(Rejection(record.file, record.line, *error.args))
    return groups, rejections


def _group(record: Record) -> Group:
    if record.fault:
        raise RowError("(row)", record.fault)
    conversation = read_conversation(record.fields.get("prompt"), "prompt")
    if not any(turn.text for turn in conversation.turns):
        raise RowError("prompt", "no turn before the reply")
    replies, ranks = (_list(record.fields.get(name), name) for name in ("replies", "ranks"))
    if len(replies) < 2:
        raise RowError("replies", f"{len(replies)} of them; needed: at least 2")
    if len(replies) != len(ranks):
        raise RowError("ranks", f"{len(ranks)} of them for {len(replies)} replies")
    for reply in replies:
        if not isinstance(reply, str) or not reply.strip():
            raise RowError("replies", f"{reply!r}; needed: text")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise RowError("ranks", f"{rank!r}; needed: integers, 1 the best")
    rank, tied = Counter(ranks).most_common(1)[0]
    if tied > MOST_TIED:
        raise RowError("ranks", f"{tied} replies of rank {rank}; needed: at most {MOST_TIED} tied")
    if tied == len(ranks):
        raise RowError("ranks", f"all {tied} replies tied; needed: at least two ranks")
    return Group(conversation, tuple(r.strip() for r in replies), tuple(ranks), record.file, record.line)


def _list(value: Any, name: str) -> list:
    if isinstance(value, str):  # a CSV's list comes as JSON
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list):
        raise RowError(name, "missing, or no list")
    return value


def tokenize_groups(groups: Sequence[Group], tokenizer, max_length: int) -> tuple[list[RankedExample], list[Rejection]]:
    """Token ids of every group whose replies fit whole, prefix shared; the others as rejections."""
    rows = tokenize_replies(tokenizer, [g.conversation for g in groups], [g.replies for g in groups], max_length)
    numbers: dict[str, int] = {}
    examples, rejections = [], []
    for group, replies in zip(groups, rows, strict=True):
        if replies is None:
            found = f"a reply that with its turn's marks exceeds max_length={max_length}"
            rejections.append(Rejection(group.file, group.line, "replies", found))
            continue
        number = numbers.setdefault(group.prompt_key, len(numbers))
        examples.append(RankedExample(replies, group.ranks, number, f"{Path(group.file).name}:{group.line}"))
    return examples, rejections


def _fingerprint(*sides: Sequence[Group]) -> str:
    digest = hashlib.sha256()
    for groups in sides:
        for group in groups:
            digest.update(json.dumps([group.prompt_key, group.replies, group.ranks]).encode())
        digest.update(b"\0")
    return digest.hexdigest()

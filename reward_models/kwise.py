"""Ranked groups as a task: k replies to one prompt in the order people gave them, Plackett-Luce.

Accepted rows: `prompt` as text or messages, `replies` (a list of text) and `ranks` (a list of integers, 1 the best).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmgym.data.json_rows import parse_json, refuse_unusable_value
from lmgym.data.records import Record
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, OUT_OF_RANGE, UNFIT, WRONG_TYPE, Rejection, RowError
from lmgym.data.rows import prompt_key, read_conversation, read_rows, require_some_columns, require_value, whole_number
from lmgym.data.task_data import TaskData, prepare_prompted
from lmgym.data.truncation import tokenize_replies
from lmgym.errors import shown
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.text import Conversation
from reward_models.config import RewardModelConfig
from reward_models.losses import MOST_TIED
from reward_models.metrics.evaluations import GOLD, RANKING, Evaluation
from reward_models.objectives import Ranked, RankedExample
from reward_models.probes import RankingProbe

COLUMNS = ("prompt", "replies", "ranks")
MOST_RANK = 1_000_000
IDENTICAL_RANKS = "with too many tied ranks"


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

    @property
    def answers(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The replies and their ranks."""
        return self.replies, self.ranks


@dataclass(frozen=True)
class KwiseTask:
    """Replies in people's order."""

    loss: str = "Plackett-Luce loss"
    outputs: int = 1
    reduce: Reduce = "logit"
    evaluations: tuple[Evaluation, ...] = (RANKING, GOLD)

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Groups read, validated, split by prompt and tokenised."""
        return prepare_prompted(
            config.data, config.optimizer.split_seed, tokenizer, "groups", "usable", validate_groups, tokenize_groups
        )

    def suffixes(self, example: RankedExample) -> tuple[str, ...]:
        """The ranks of the replies."""
        return tuple(f"rank {rank}" for rank in example.ranks)

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Ranked:
        """Plackett-Luce."""
        return Ranked(model, pad_id)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> RankingProbe:
        """Agreement with the ranking of held-out groups."""
        return RankingProbe(data.evaluation, model, pad_id, batch_tokens)


def validate_groups(records: Sequence[Record]) -> tuple[list[Group], list[Rejection]]:
    """Every record as a group or as a rejection. Raises InputError where no row has the columns that are needed."""
    needed = "prompt, replies (a list of text) and ranks (a list of integers, 1 the best)"
    require_some_columns(records, COLUMNS, "groups", needed)
    return read_rows(records, _group)


def _group(record: Record) -> Group:
    conversation = read_conversation(record.fields.get("prompt"), "prompt")
    if not any(turn.text for turn in conversation.turns):
        raise RowError("prompt", "no turn before the reply", NO_PROMPT)
    replies, ranks = (_list(record, name) for name in ("replies", "ranks"))
    if len(replies) < 2:
        raise RowError("replies", f"{len(replies)} of them; needed: at least 2", NO_REPLY)
    if len(replies) != len(ranks):
        raise RowError("ranks", f"{len(ranks)} of them for {len(replies)} replies", WRONG_TYPE)
    for reply in replies:
        if not isinstance(reply, str) or not reply.strip():
            raise RowError("replies", f"{shown(reply)}; needed: text", NO_REPLY)
    whole = []
    for rank in ranks:
        number = whole_number(rank)
        if number is None or not 1 <= number <= MOST_RANK:
            raise RowError("ranks", f"{shown(rank)}; needed: integers, 1 the best", OUT_OF_RANGE)
        whole.append(number)
    rank, tied = Counter(whole).most_common(1)[0]
    if tied > MOST_TIED:
        raise RowError("ranks", f"{tied} replies of rank {rank}; needed: at most {MOST_TIED} tied", IDENTICAL_RANKS)
    if tied == len(whole):
        raise RowError("ranks", f"all {tied} replies tied; needed: at least two ranks", IDENTICAL_RANKS)
    return Group(conversation, tuple(r.strip() for r in replies), tuple(whole), record.file, record.line)


def _list(record: Record, name: str) -> list:
    value = require_value(record, name)
    if isinstance(value, str):  # a CSV's list comes as JSON
        value = parse_json(value, name)
        refuse_unusable_value(value, name)
    if not isinstance(value, list):
        raise RowError(name, f"{shown(value)}; needed: a list", WRONG_TYPE)
    return value


def tokenize_groups(groups: Sequence[Group], tokenizer, max_length: int) -> tuple[list[RankedExample], list[Rejection]]:
    """Token ids of every group whose replies fit whole, prefix shared; the others as rejections."""
    rows = tokenize_replies(tokenizer, [g.conversation for g in groups], [g.replies for g in groups], max_length)
    numbers: dict[str, int] = {}
    examples, rejections = [], []
    for group, replies in zip(groups, rows, strict=True):
        if isinstance(replies, str):
            rejections.append(Rejection(group.file, group.line, "replies", replies, UNFIT))
            continue
        number = numbers.setdefault(group.prompt_key, len(numbers))
        examples.append(RankedExample(replies, group.ranks, number, f"{Path(group.file).name}:{group.line}"))
    return examples, rejections

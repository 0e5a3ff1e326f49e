"""Ranked groups as a task: k replies to one prompt with people's ranks, Plackett-Luce.

Accepted rows: `prompt` as text or messages, `replies` (a list of text) and `ranks` (a list of integers, 1 the best);
UltraFeedback's, whose scores are ranks then (lmgym/data/formats.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmgym.config import ColumnConfig
from lmgym.data.pairs import RANKED, read_ranked
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import NO_PROMPT, TIED, Rejection, RowError
from lmgym.data.rows import prompt_key, read_prompt, read_rows
from lmgym.data.task_data import Preparation, TaskData, prepare
from lmgym.data.truncation import rejection_of, tokenize_replies
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.text import Conversation, Reply, words_of
from reward_models.config import RewardModelConfig
from reward_models.losses import MOST_TIED
from reward_models.metrics.evaluations import GOLD, RANKING, Evaluation
from reward_models.objectives import Ranked, RankedExample
from reward_models.probes import RankingProbe


@dataclass(frozen=True, slots=True)
class Group:
    """Replies to one conversation with their ranks, 1 the best."""

    conversation: Conversation
    replies: tuple[Reply, ...]
    ranks: tuple[int, ...]
    file: str = ""
    line: int = 0

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ in case and white space only."""
        return prompt_key(self.conversation)

    def map_replies(self, change: Callable[[Reply], Reply]) -> "Group":
        """The group with changed replies."""
        return replace(self, replies=tuple(map(change, self.replies)))

    @property
    def answers(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The replies and their ranks."""
        return tuple(map(words_of, self.replies)), self.ranks


@dataclass(frozen=True)
class KwiseTask:
    """Replies in people's order."""

    loss: str = "Plackett-Luce loss"
    outputs: int = 1
    reduce: Reduce = "logit"
    evaluations: tuple[Evaluation, ...] = (RANKING, GOLD)

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Groups read, validated, split by prompt and tokenised."""
        how = Preparation("groups", "usable", validate_groups, tokenize_groups, RankedExample)
        return prepare(config.data, config.columns, config.optimizer.split_seed, tokenizer, how)

    def suffixes(self, example: RankedExample) -> tuple[str, ...]:
        """The ranks of the replies."""
        return tuple(f"rank {rank}" for rank in example.ranks)

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Ranked:
        """Plackett-Luce."""
        return Ranked(model, pad_id)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> RankingProbe:
        """Agreement with the ranking of held-out groups."""
        return RankingProbe(data.evaluation, model, pad_id, batch_tokens)


NEEDED = (
    "prompt, replies (a list of text) and ranks (a list of integers, the lowest the best); or UltraFeedback's "
    "instruction and completions"
)
WANTED = Wanted("groups", NEEDED, [("prompt", *RANKED)], lambda fields: ("prompt", "tools", *RANKED))


def validate_groups(
    *sets: Iterable[Record], columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[Group], list[Rejection]]:
    """The rows of all data sets as groups or as rejections.

    Raises InputError as `interpret` does, which reads the columns and adds to the notes.
    """
    return read_rows(interpret(sets, WANTED, columns, notes), _group)


def _group(record: Record) -> Group:
    conversation = read_prompt(record, "prompt")
    if not any(turn.text for turn in conversation.turns):
        raise RowError("prompt", "no turn before the reply", NO_PROMPT)
    replies, ranks = read_ranked(record)
    rank, tied = Counter(ranks).most_common(1)[0]
    if tied > MOST_TIED:
        raise RowError("ranks", f"{tied} replies of rank {rank}; needed: at most {MOST_TIED} tied", TIED)
    if tied == len(ranks):
        raise RowError("ranks", f"all {tied} replies tied; needed: at least two ranks", TIED)
    return Group(conversation, replies, ranks, record.file, record.line)


def tokenize_groups(
    groups: Sequence[Group], tokenizer, max_length: int, numbers: dict[int, int] | None = None
) -> tuple[list[RankedExample], list[Rejection]]:
    """Token ids of every group whose replies fit whole, prefix shared; the others as rejections.

    `numbers` of distinct prompts are added to.
    """
    numbers = {} if numbers is None else numbers
    rows = tokenize_replies(tokenizer, [g.conversation for g in groups], [g.replies for g in groups], max_length)
    examples, rejections = [], []
    for group, replies in zip(groups, rows, strict=True):
        if isinstance(replies, str):
            rejections.append(rejection_of(group.file, group.line, "replies", replies))
            continue
        number = numbers.setdefault(hash(group.prompt_key), len(numbers))
        examples.append(RankedExample(replies, group.ranks, number, f"{Path(group.file).name}:{group.line}"))
    return examples, rejections

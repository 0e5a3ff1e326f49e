"""Pairs as a task: people's choices between two replies, Bradley-Terry."""

from dataclasses import dataclass

import numpy as np

from lmgym.engine import world_size
from lmgym.errors import InputError
from lmgym.models import ScoringModel
from lmgym.records import read_records
from lmgym.scorers import Reduce
from reward_models.config import RewardConfig
from reward_models.data import PairExample, fingerprint, split_by_prompt, tokenize_pairs, validate, without_prompts
from reward_models.evaluations import GOLD, RANKING, Evaluation
from reward_models.objectives import Pairwise
from reward_models.probes import PairProbe
from reward_models.tasks import TaskData, at_most, check_sides


@dataclass(frozen=True)
class PairTask:
    """Chosen above rejected."""

    loss: str = "Bradley-Terry loss"
    outputs: int = 1
    reduce: Reduce = "logit"
    evaluations: tuple[Evaluation, ...] = (RANKING, GOLD)

    def prepare(self, config: RewardConfig, tokenizer) -> TaskData:
        """Pairs read, validated, split by prompt and tokenised."""
        return prepare_pairs(config, tokenizer)

    def tails(self, example: PairExample) -> tuple[str, ...]:
        """The sides of a pair."""
        return "chosen", "rejected"

    def objective(self, config: RewardConfig, model: ScoringModel, pad_id: int) -> Pairwise:
        """Bradley-Terry, centred where asked for."""
        return Pairwise(model, pad_id, config.optimizer.centering)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> PairProbe:
        """Accuracy, calibration and length bias."""
        return PairProbe(data.evaluation, model, pad_id, batch_tokens)


def prepare_pairs(config: RewardConfig, tokenizer) -> TaskData:
    """Rows to tokenised pairs for training and evaluation."""
    settings = config.data
    records = read_records(settings.dataset, settings.dataset_split)[: settings.max_rows]
    usable = validate(records)
    rejections = list(usable.rejections)
    if not usable.pairs:
        raise InputError(f"none of the {len(records)} rows of {settings.dataset} is a usable pair: {rejections[0]}")
    if settings.eval_dataset:
        held_out = validate(read_records(settings.eval_dataset, "test"))
        kept, leaks = without_prompts(usable.pairs, held_out.pairs)
        rejections += [*held_out.rejections, *leaks]
        sides = (kept, held_out.pairs)
    else:
        sides = split_by_prompt(usable.pairs, settings.eval_size, config.optimizer.seed)
    kept_rows = at_most(len(sides[0]), settings.train_size, config.optimizer.seed)
    unused = len(sides[0]) - len(kept_rows)
    sides = ([sides[0][i] for i in kept_rows], sides[1])
    train, too_long = tokenize_pairs(sides[0], tokenizer, settings.max_length)
    evaluation, too_long_held_out = tokenize_pairs(sides[1], tokenizer, settings.max_length)
    rejections += [*too_long, *too_long_held_out]
    data = TaskData(
        noun="pairs",
        train=train,
        evaluation=evaluation,
        lengths=np.array([example.replies.tokens for example in train]),
        replies=2,
        truncated=sum(e.replies.truncated > 0 for e in (*train, *evaluation)),
        rejections=rejections,
        fingerprint=fingerprint(*sides),
        left_out={"unused_rows": unused} if unused else {},
    )
    return check_sides(data, len(records), world_size())

"""Pairs as a task: people's choices between two replies, Bradley-Terry."""

from dataclasses import dataclass, replace
from functools import partial

from lmgym.data.pairs import validate
from lmgym.data.task_data import Preparation, TaskData, check_sides, prepare
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.training.length_rule import LengthRule
from reward_models.config import RewardModelConfig
from reward_models.data import PairExample, decided, pair_lengths, tokenize_pairs
from reward_models.heads import PairwiseHeads
from reward_models.metrics.evaluations import GOLD, RANKING, Evaluation
from reward_models.objectives import Pairwise
from reward_models.probes import PairProbe


@dataclass(frozen=True)
class PairTask:
    """Chosen above rejected."""

    loss: str = "Bradley-Terry loss"
    outputs: int = 1
    """heads on one trunk: see heads.py"""
    evaluations: tuple[Evaluation, ...] = (RANKING, GOLD)

    @property
    def reduce(self) -> Reduce:
        """The mean of several heads."""
        return "mean" if self.outputs > 1 else "logit"

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Pairs read, with their preferences, validated, split by prompt and tokenised."""
        how = Preparation("pairs", "a usable pair", partial(validate, soft=True), tokenize_pairs, PairExample, "soft")
        data = prepare(config.data, config.columns, config.optimizer.split_seed, tokenizer, how)
        ties = len(data.evaluation) - len(decided(data.evaluation))
        if not ties:
            return data
        left_out = data.left_out | {"held_out_ties": ties}
        return check_sides(replace(data, evaluation=decided(data.evaluation), left_out=left_out), data.rows, 1)

    def suffixes(self, example: PairExample) -> tuple[str, ...]:
        """The sides of a pair."""
        return "chosen", "rejected"

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Pairwise | PairwiseHeads:
        """Bradley-Terry, centred where asked for."""
        if self.outputs > 1:
            return PairwiseHeads(model, pad_id, self.outputs, config.optimizer.seed, config.centering)
        return Pairwise(model, pad_id, config.centering)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> PairProbe:
        """Accuracy, calibration and length bias."""
        rule = LengthRule.fitted(pair_lengths(decided(data.train)))
        return PairProbe(data.evaluation, model, pad_id, batch_tokens, rule)

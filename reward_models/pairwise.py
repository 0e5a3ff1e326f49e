"""Pairs as a task: people's choices between two replies, Bradley-Terry."""

from dataclasses import dataclass

from lmgym.data.pairs import validate
from lmgym.data.task_data import Preparation, TaskData, prepare
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.training.length_rule import LengthRule
from reward_models.config import RewardModelConfig
from reward_models.data import PairExample, pair_lengths, tokenize_pairs
from reward_models.metrics.evaluations import GOLD, RANKING, Evaluation
from reward_models.objectives import Pairwise
from reward_models.probes import PairProbe


@dataclass(frozen=True)
class PairTask:
    """Chosen above rejected."""

    loss: str = "Bradley-Terry loss"
    outputs: int = 1
    reduce: Reduce = "logit"
    evaluations: tuple[Evaluation, ...] = (RANKING, GOLD)

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Pairs read, validated, split by prompt and tokenised."""
        how = Preparation("pairs", "a usable pair", validate, tokenize_pairs, PairExample)
        return prepare(config.data, config.columns, config.optimizer.split_seed, tokenizer, how)

    def suffixes(self, example: PairExample) -> tuple[str, ...]:
        """The sides of a pair."""
        return "chosen", "rejected"

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Pairwise:
        """Bradley-Terry, centred where asked for."""
        return Pairwise(model, pad_id, config.centering)

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> PairProbe:
        """Accuracy, calibration and length bias."""
        rule = LengthRule.fitted(pair_lengths(data.train))
        return PairProbe(data.evaluation, model, pad_id, batch_tokens, rule)

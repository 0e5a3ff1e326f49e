"""The protocol of a reward model's task: its data, head, objective and evaluations."""

from collections.abc import Sequence
from typing import Any, Protocol

from lmgym.data.task_data import TaskData
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.training.objectives import Objective
from reward_models.config import RewardModelConfig
from reward_models.metrics.evaluations import Evaluation
from reward_models.probes import HeldOut


class Task(Protocol):
    """A kind of feedback that a reward model learns from."""

    @property
    def loss(self) -> str:
        """The loss in words."""

    @property
    def outputs(self) -> int:
        """Outputs of the head."""

    @property
    def reduce(self) -> Reduce:
        """Reduction of the outputs to one score, higher is better."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Further evaluations, if `--probe_data` has their sets."""

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Rows read, validated, split, labelled and tokenised. Raises InputError for what cannot be trained on."""

    def suffixes(self, example: Any) -> Sequence[str]:
        """Titles of an example's replies when it is shown."""

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Objective:
        """The loss over batches."""

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> HeldOut:
        """The evaluation on held-out examples."""

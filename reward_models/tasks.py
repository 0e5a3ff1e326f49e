"""What `train` is told of a task: how its data is prepared, what its head is, how it is fitted and judged."""

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
    """The pieces that `train` puts together."""

    @property
    def loss(self) -> str:
        """What is minimised, in words."""
        ...

    @property
    def outputs(self) -> int:
        """Outputs of the head."""
        ...

    @property
    def reduce(self) -> Reduce:
        """How the outputs become one score, higher is better."""
        ...

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """What else the scorer is judged on, where `--probe_data` has it."""
        ...

    def prepare(self, config: RewardModelConfig, tokenizer) -> TaskData:
        """Rows read, validated, split, labelled and tokenised. Raises InputError for what cannot be trained on."""
        ...

    def suffixes(self, example: Any) -> Sequence[str]:
        """What each reply of an example is called when it is shown."""
        ...

    def objective(self, config: RewardModelConfig, model: ScoringModel, pad_id: int) -> Objective:
        """The loss over batches."""
        ...

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> HeldOut:
        """How the model does on the held-out examples."""
        ...

"""Tasks of SFT: how rows become conversations, and the objective."""

from collections.abc import Callable
from dataclasses import dataclass

from lmgym.data.rejections import Rejection
from lmgym.data.task_data import Preparation, TaskData, prepare
from lmgym.models.forward.policies import PolicyModel
from sft.config import SftConfig
from sft.conversations import TrainingChat, validate_chats, validate_chosen, validate_distillation_rows
from sft.judging import validate_rationales
from sft.objectives import NextToken, SoftTargets
from sft.tokenization import Example, tokenize_chats


@dataclass(frozen=True)
class SftTask:
    """A form of rows, and the loss in words and as an objective."""

    loss: str
    validate: Callable[..., tuple[list[TrainingChat], list[Rejection]]]
    """of the rows of each data set"""
    objective: Callable[[PolicyModel, int], NextToken | SoftTargets]

    def prepare(self, config: SftConfig, tokenizer) -> TaskData:
        """Rows read, validated, split by what comes before the last output, and tokenised."""
        usable, variant = "a conversation to learn from", self.validate.__name__
        how = Preparation("rows", usable, self.validate, tokenize_chats, Example, variant)
        return prepare(config.data, config.columns, config.optimizer.split_seed, tokenizer, how)


CHAT = SftTask("cross entropy of the bot's turns", validate_chats, NextToken)
CHOSEN = SftTask("cross entropy of the chosen replies", validate_chosen, NextToken)
SOFT_TARGETS = SftTask("binary cross entropy with a teacher's probabilities", validate_distillation_rows, SoftTargets)
RATIONALES = SftTask("cross entropy of a judge's reasons and verdicts", validate_rationales, NextToken)

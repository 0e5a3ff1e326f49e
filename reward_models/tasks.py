"""What `train` is told of a task: how its data is prepared, what its head is, how it is fitted and judged."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lmgym.engine import world_size
from lmgym.errors import InputError
from lmgym.models import ScoringModel
from lmgym.objectives import Objective
from lmgym.records import Record, read_records
from lmgym.rows import P, Rejection, fingerprint, split_by_prompt, without_prompts
from lmgym.scorers import Reduce
from lmgym.task_data import TaskData, check_sides
from reward_models.config import RewardConfig
from reward_models.evaluations import Evaluation
from reward_models.probes import HeldOut
from reward_models.sampling import ordered_sample


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

    def prepare(self, config: RewardConfig, tokenizer) -> TaskData:
        """Rows read, validated, split, labelled and tokenised. Raises InputError for what cannot be trained on."""
        ...

    def tails(self, example: Any) -> Sequence[str]:
        """What each reply of an example is called when it is shown."""
        ...

    def objective(self, config: RewardConfig, model: ScoringModel, pad_id: int) -> Objective:
        """The loss over batches."""
        ...

    def probe(self, data: TaskData, model: ScoringModel, pad_id: int, batch_tokens: int) -> HeldOut:
        """How the model does on the held-out examples."""
        ...


def prepare_prompted(
    config: RewardConfig,
    tokenizer,
    noun: str,
    usable: str,
    validate: Callable[[Sequence[Record]], tuple[list[P], list[Rejection]]],
    tokenize: Callable[[Sequence[P], Any, int], tuple[list[Any], list[Rejection]]],
) -> TaskData:
    """Rows read, validated, split by prompt and tokenised; `usable` is what an error says that no row is."""
    settings, seed = config.data, config.optimizer.seed
    records = read_records(settings.dataset, settings.dataset_split)[: settings.max_rows]
    rows, rejections = validate(records)
    if not rows:
        raise InputError(f"none of the {len(records)} rows of {settings.dataset} is {usable}: {rejections[0]}")
    if settings.eval_dataset:
        held_out, faults = validate(read_records(settings.eval_dataset, "test"))
        rows, leaks = without_prompts(rows, held_out)
        rejections = [*rejections, *faults, *leaks]
    else:
        rows, held_out = split_by_prompt(rows, settings.eval_size, seed, noun)
    kept = [rows[i] for i in at_most(len(rows), settings.train_size, seed)]
    (train, long), (evaluation, also_long) = (tokenize(s, tokenizer, settings.max_length) for s in (kept, held_out))
    data = TaskData(
        noun=noun,
        train=train,
        evaluation=evaluation,
        lengths=np.array([example.replies.tokens for example in train]),
        replies=max((len(example.replies.tails) for example in train), default=0),
        truncated=sum(e.replies.truncated > 0 for e in (*train, *evaluation)),
        rejections=[*rejections, *long, *also_long],
        fingerprint=fingerprint(kept, held_out),
        left_out={"unused_rows": len(rows) - len(kept)} if len(kept) < len(rows) else {},
    )
    return check_sides(data, len(records), world_size())


def at_most(rows: int, size: int | None, seed: int) -> np.ndarray:
    """Indices of all rows, or of a random sample of `size` in their order. Raises InputError for a size below 1."""
    if size is not None and size < 1:
        raise InputError(f"--train_size {size} leaves nothing to train on; needed: 1 or more, or None for all")
    return np.arange(rows) if size is None or rows <= size else ordered_sample(rows, size, seed)

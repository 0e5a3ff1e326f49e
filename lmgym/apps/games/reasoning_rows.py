"""Problems of reasoning-gym: each row is a task of one turn, and the data set's own verifier is the reward.

reasoning-gym is an extra: `pip install 'lmgym[reasoning-gym]'`. Rewards are in [0, 1]; some verifiers give a little for
any text (countdown: 0.01).
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, final

from lmgym.apps.games.replies import OwnRandomState, import_extra, unknown_id
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

ROWS = 1_000_000
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@final
class ReasoningRow:
    """A problem of the data set `name`; the row is the task's `row`, or follows from the seed of `reset`.

    The answer is what stands between <answer> and </answer> in the reply, or the whole reply.
    """

    def __init__(self, name: str, data_seed: int = 0, settings: Mapping[str, Any] | None = None) -> None:
        self.random = OwnRandomState()
        self.data = _data(name, data_seed, tuple(sorted((settings or {}).items())))
        self.entry: dict[str, Any] = {}

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Show the problem."""
        row = int(task.get("row", seed % ROWS))
        self.random.seed(row)
        with self.random.active():
            self.entry = self.data[row]
        return {POLICY: Observation(Conversation((Turn("user", self.entry["question"].strip()),)))}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Judge the answer."""
        found = ANSWER.findall(actions[POLICY])
        answer = (found[-1] if found else actions[POLICY]).strip()
        with self.random.active():
            score = float(self.data.score_answer(answer, self.entry))
        return StepResult({}, {POLICY: score}, terminated=True, info={"solved": float(score >= 1)})


@lru_cache(maxsize=32)
def _data(name: str, seed: int, settings: tuple[tuple[str, Any], ...]) -> Any:
    """The data set, shared by episodes. Raises InputError for an unknown name, and settings that it refuses."""
    library = import_extra("reasoning_gym", "reasoning-gym")
    known = library.factory.DATASETS
    if name not in known:
        raise unknown_id(name, known, "reasoning-gym")
    try:
        return library.create_dataset(name, seed=seed, size=ROWS, **dict(settings))
    except (TypeError, AssertionError) as error:
        raise InputError(f"{name} cannot be made with {dict(settings)}: {error}; needed: its own settings") from error

"""One reply to a prompt, scored: the setting of most RLHF."""

from collections.abc import Mapping
from typing import final

from lmgym.environments.protocol import POLICY, Observation, ScoreRequest, StepResult, Task
from lmgym.errors import InputError
from lmgym.text import Conversation


@final
class ScoredChat:
    """One turn. A task is a row with `prompt` (a Conversation or a text) and columns for the reward function."""

    def __init__(self) -> None:
        self.task: Task = {}

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Shows the prompt; there is no chance. Raises InputError for a task without one."""
        prompt = task.get("prompt")
        if not isinstance(prompt, Conversation | str):
            raise InputError(f"a task has prompt={prompt!r}; needed: a Conversation or a text")
        self.task = task
        return {POLICY: Observation(prompt)}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Asks for the reply's score, and ends."""
        columns = {name: value for name, value in self.task.items() if name != "prompt"}
        request = ScoreRequest(POLICY, self.task["prompt"], actions[POLICY], columns)
        return StepResult(terminated=True, score_requests=(request,))

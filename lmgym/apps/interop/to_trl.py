"""Ours in TRL: environments for `GRPOTrainer(environment_factory=...)`. Needs nothing of TRL.

A class names the environment, and `rows` makes its training set, whose prompts are the first observations:

    class Blackjack(TRLEnvironment):
        ENVIRONMENT = "games:blackjack"

    train = Dataset.from_list(rows(Blackjack, 256))
    GRPOTrainer(MODEL, reward_funcs=reward, train_dataset=train, environment_factory=Blackjack)

Design decisions:
- TRL's environments act by tool calls: the model calls `reply(text)`, and reads what comes next as the call's result.
- The text behind the last call is a reply too, if the environment waits for one: a question with one answer needs no
  tool. TRL hands it to reward functions only, so that the reward is one, rather than the class's `get_reward`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from lmgym.environments.named import TRAIN, NamedEnvironment, load_environment
from lmgym.environments.protocol import EpisodeFailed
from lmgym.environments.session import Session
from lmgym.text import messages

ENDED = "It is over."


class TRLEnvironment:
    """An environment for one rollout at a time; a subclass names it. All other public methods are tools of TRL."""

    ENVIRONMENT: ClassVar[str]
    """as on the command line: `games:blackjack`"""

    def __init__(self) -> None:
        self._session = Session(named(self.ENVIRONMENT))
        self._total, self._error, self._ended = 0.0, "", True

    def reset(self, split: str, index: int, **columns: Any) -> None:
        """Begin the episode of a row of `rows`, whose prompt is what the agent sees first."""
        self._total, self._error, self._ended = 0.0, "", False
        try:
            self._session.reset(*self._session.named.episode(split, index))
        except EpisodeFailed as error:
            self._error, self._ended = str(error), True

    def reply(self, text: str) -> str:
        """
        Say or do something, and get what comes next.

        Args:
            text: What you say, or the move that you make.

        Returns:
            What comes next.
        """
        if self._ended:
            return ENDED
        try:
            seen = self._session.reply(text)
        except EpisodeFailed as error:
            self._error, self._ended = str(error), True
            return ENDED
        self._total += seen.reward
        self._ended = seen.ended
        return seen.text if seen.observation else ENDED

    def _finish(self, completion: Sequence[Mapping[str, Any]] | str) -> float | None:
        """The sum of the rewards, after the completion's last words; None if the environment failed."""
        last = {"role": "assistant", "content": completion} if isinstance(completion, str) else completion[-1]
        if not self._ended and last["role"] == "assistant" and not last.get("tool_calls"):
            self.reply(last.get("content") or "")
        self._ended = True
        return None if self._error else self._total


def reward(completions: Sequence[Any], environments: Sequence[TRLEnvironment], **columns: Any) -> list[float | None]:
    """The rewards of rollouts, for `reward_funcs`; None, which TRL leaves out, if an environment failed."""
    return [one._finish(completion) for one, completion in zip(environments, completions, strict=True)]


def rows(environment: type[TRLEnvironment], number: int, split: str = TRAIN) -> list[dict[str, Any]]:
    """So many rows of a split: `prompt`, the messages that the agent sees first, and `split` and `index`.

    Raises InputError for an environment that does not load or trains several agents, and EpisodeFailed if one fails.
    """
    found = []
    with Session(named(environment.ENVIRONMENT)) as session:
        for index in range(number):
            seen = session.reset(*session.named.episode(split, index))
            assert seen.observation is not None
            prompt = messages(seen.observation.conversation)
            found.append({"prompt": prompt, "split": split, "index": index})
    return found


@lru_cache
def named(words: str) -> NamedEnvironment:
    """The environment, loaded once a process. Raises InputError as `load_environment` does."""
    return load_environment(words)

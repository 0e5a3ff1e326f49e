"""Ours as an OpenEnv server: `lmgym serve env NAME`, by the package's own application, a `Session` for each of its own.

| | |
|---|---|
| action | `{"text": ...}`, what the agent says |
| observation | `text`, what is new since it spoke; `messages`, the conversation; `actions`, if the game lists them |
| reward, done, metadata | of the turn; the end; numbers of the episode |
| tasks | the splits `train` and `validation`, by the task API and by `reset(seed=, split=, index=)` |
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

import lmgym
from lmgym.environments.engine import hash_of
from lmgym.environments.named import NamedEnvironment
from lmgym.environments.protocol import Task
from lmgym.environments.session import Seen, Session
from lmgym.errors import listed, shown
from lmgym.text import messages

Split = Literal["train", "validation"]
TRAIN, VALIDATION = "train", "validation"
SEEDS = 2**32
"""from which a seed is drawn for a `reset` without one"""


@dataclass(frozen=True)
class Chosen:
    """Which episode is played: equal ones for an equal seed, split and index."""

    task: Task
    seed: int
    """of the environment"""
    split: str
    index: int


@final
class Tasks:
    """The tasks of an environment in two splits, without one in both.

    Those to evaluate on are the environment's own; without any, a tenth of its tasks, drawn by the seed 0. Of an
    environment with a single task, whose episodes differ by their seeds, those of validation are hashed.
    """

    def __init__(self, named: NamedEnvironment, split: Split = "train") -> None:
        self.default = split
        tasks, held_out = named.tasks, named.eval_tasks
        self.hashed = len(tasks) == 1 and not held_out
        if self.hashed:
            held_out = tasks
        elif not held_out:
            order = np.random.default_rng(0).permutation(len(tasks))
            number = max(1, len(tasks) // 10)
            held_out = [tasks[i] for i in np.sort(order[:number])]
            tasks = [tasks[i] for i in np.sort(order[number:])]
        self.splits: Mapping[str, Sequence[Task]] = {TRAIN: tasks, VALIDATION: held_out}

    def number(self, split: str) -> int:
        """Tasks of a split. Raises ValueError for another one."""
        if split not in self.splits:
            raise ValueError(f"there is no split {shown(split)}; needed: {listed(self.splits)}")
        return len(self.splits[split])

    def choose(self, seed: int | None = None, split: str | None = None, index: int | None = None) -> Chosen:
        """An episode: without a seed a random one; without an index the task that the seed gives.

        Raises ValueError for another split, and IndexError for a task that it does not have.
        """
        split = split or self.default
        number = self.number(split)
        seed = secrets.randbelow(SEEDS) if seed is None else seed
        index = seed % number if index is None else index
        if not 0 <= index < number:
            raise IndexError(f"{split} has no task {index}; needed: 0 to {number - 1}")
        own = hash_of(VALIDATION, seed) if self.hashed and split == VALIDATION else seed
        return Chosen(self.splits[split][index], own, split, index)


@final
class Episodes:
    """The episodes of one session of the server, one after the other. Made and played by one thread."""

    def __init__(self, named: NamedEnvironment, tasks: Tasks) -> None:
        self.named, self.tasks = named, tasks
        self.session: Session | None = None
        self.goes_on = False
        self.state: dict[str, Any] = {}
        """the server's: episode_id, step_count, seed, split, index"""

    def reset(self, seed: int | None, episode_id: str | None, split: str | None, index: int | None) -> dict[str, Any]:
        """The fields of the first observation. Raises as `Tasks.choose` and `Session.reset`."""
        self.goes_on = False
        chosen = self.tasks.choose(seed, split, index)
        self.session = self.session or Session(self.named)
        seen = self.session.reset(chosen.task, chosen.seed)
        self.goes_on = True
        self.state = {"episode_id": episode_id, "step_count": 0}
        self.state |= {"seed": chosen.seed, "split": chosen.split, "index": chosen.index}
        return fields_of(seen) | {"reward": None}

    def step(self, text: str) -> dict[str, Any]:
        """The fields of the next observation. Raises ValueError if no episode goes on, and as `Session.reply`."""
        if not self.goes_on or self.session is None:
            raise ValueError("no episode goes on; needed: reset")
        self.goes_on = False  # unless the environment answers
        seen = self.session.reply(text)
        self.goes_on = not seen.ended
        self.state["step_count"] += 1
        return fields_of(seen)

    def close(self) -> None:
        """End the session of the environment, if it has begun."""
        if self.session is not None:
            self.session.close()


def fields_of(seen: Seen) -> dict[str, Any]:
    """The fields of an observation, which at the end shows nothing."""
    found = seen.observation
    chat = messages(found.conversation) if found else []
    actions = list(found.actions) if found else []
    info = dict(seen.info) | ({"truncated": float(not seen.terminated)} if seen.ended else {})
    outcome = {"reward": seen.reward, "done": seen.ended, "metadata": info}
    return {"text": seen.text, "messages": chat, "actions": actions, **outcome}


def make_app(named: NamedEnvironment, split: Split, max_sessions: int) -> Any:
    """The FastAPI application of a named environment; `split` is that of a `reset` without one.

    Raises InputError for environments that train several agents.
    """
    from openenv.core.env_server import http_server, interfaces, types
    from pydantic import Field

    Session(named).close()  # refuses now what no session could play
    tasks = Tasks(named, split)
    is_blocking = bool(getattr(named.environment(), "blocking", False))

    class TextAction(types.Action):
        text: str = Field(description="what the agent says")

    class TextObservation(types.Observation):
        text: str = Field("", description="what is new since the agent spoke")
        messages: list[dict[str, Any]] = Field(default_factory=list, description="the conversation, as a chat")
        actions: list[str] = Field(default_factory=list, description="replies that the game allows; empty: any text")

    class Served(interfaces.Environment[TextAction, TextObservation, types.State]):
        SUPPORTS_CONCURRENT_SESSIONS = True
        # environments that do not block are played by one thread, for which they are made
        REQUIRES_SINGLE_THREAD_EXECUTOR = not is_blocking

        def __init__(self) -> None:
            super().__init__()
            self.episodes = Episodes(named, tasks)
            self.close = self.episodes.close

        def reset(self, seed=None, episode_id=None, split=None, index=None) -> TextObservation:
            return TextObservation(**self.episodes.reset(seed, episode_id, split, index))

        def step(self, action: TextAction, timeout_s: float | None = None) -> TextObservation:
            return TextObservation(**self.episodes.step(action.text))

        @property
        def state(self) -> types.State:
            return types.State(**self.episodes.state)

        def get_metadata(self) -> types.EnvironmentMetadata:
            return types.EnvironmentMetadata(name=named.name, description=named.about, version=lmgym.__version__)

        def list_splits(self) -> list[str]:
            return list(tasks.splits)

        def num_tasks(self, split: str) -> int:
            return tasks.number(split)

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            chosen = tasks.choose(0, split, index)
            return {"id": f"{split}-{index}", "split": chosen.split, "index": chosen.index}

    name = re.sub(r"\W+", "_", named.name.partition("?")[0])
    return http_server.create_fastapi_app(Served, TextAction, TextObservation, max_sessions, env_name=name)

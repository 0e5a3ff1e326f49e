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
from dataclasses import dataclass
from typing import Any, Literal, final

import lmgym
from lmgym.environments.named import SPLITS, TRAIN, NamedEnvironment
from lmgym.environments.protocol import Task
from lmgym.environments.session import Seen, Session
from lmgym.text import messages

Split = Literal["train", "validation"]
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


def choose(named: NamedEnvironment, split: str, seed: int | None, index: int | None) -> Chosen:
    """An episode: without a seed a random one; without an index the task that the seed gives.

    Raises InputError for another split, and IndexError for a task that it does not have.
    """
    tasks = named.tasks_of(split)
    seed = secrets.randbelow(SEEDS) if seed is None else seed
    index = seed % len(tasks) if index is None else index
    if not 0 <= index < len(tasks):
        raise IndexError(f"{split} has no task {index}; needed: 0 to {len(tasks) - 1}")
    return Chosen(tasks[index], named.seed_of(split, seed), split, index)


@final
class Episodes:
    """The episodes of one session of the server, one after the other. Made and played by one thread."""

    def __init__(self, named: NamedEnvironment, split: str = TRAIN) -> None:
        self.named, self.split = named, split
        self.session: Session | None = None
        self.goes_on = False
        self.state: dict[str, Any] = {}
        """the server's: episode_id, step_count, seed, split, index"""

    def reset(self, seed: int | None, episode_id: str | None, split: str | None, index: int | None) -> dict[str, Any]:
        """The fields of the first observation. Raises as `choose` and `Session.reset`."""
        self.goes_on = False
        chosen = choose(self.named, split or self.split, seed, index)
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
            self.episodes = Episodes(named, split)
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
            return list(SPLITS)

        def num_tasks(self, split: str) -> int:
            return len(named.tasks_of(split))

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            chosen = choose(named, split, 0, index)
            return {"id": f"{split}-{index}", "split": chosen.split, "index": chosen.index}

    name = re.sub(r"\W+", "_", named.name.partition("?")[0])
    return http_server.create_fastapi_app(Served, TextAction, TextObservation, max_sessions, env_name=name)

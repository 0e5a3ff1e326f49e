"""The names of the package openenv that lmgym/apps/interop/to_openenv.py uses, for tests without it."""

import sys
from types import ModuleType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

A, Seen, S = TypeVar("A"), TypeVar("Seen"), TypeVar("S")


class Action(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(Action):
    done: bool = False
    reward: bool | int | float | None = None


class State(BaseModel):
    model_config = ConfigDict(extra="allow")
    episode_id: str | None = None
    step_count: int = 0


class EnvironmentMetadata(BaseModel):
    name: str
    description: str
    version: str | None = None


class Environment(Generic[A, Seen, S]):
    """Its base class."""


class App:
    """The arguments of `create_fastapi_app`."""

    def __init__(self, environment: Any, action: Any, observation: Any, sessions: int, env_name: str) -> None:
        self.environment, self.action, self.observation = environment, action, observation
        self.sessions, self.env_name = sessions, env_name

    def plain(self) -> Any:
        """An environment whose messages are those of the wire."""
        return Wire(self)


class Wire:
    """An environment behind the wire: JSON in, JSON out."""

    def __init__(self, app: App) -> None:
        self.app, self.environment = app, app.environment()

    def reset(self, **data: Any) -> dict[str, Any]:
        return sent(self.environment.reset(**data))

    def step(self, **data: Any) -> dict[str, Any]:
        return sent(self.environment.step(self.app.action(**data)))


def sent(observation: Observation) -> dict[str, Any]:
    """An observation as a server sends it."""
    fields = observation.model_dump(exclude={"done", "reward"})
    told = {"observation": fields, "reward": observation.reward, "done": observation.done}
    return told | ({"metadata": observation.metadata} if observation.metadata else {})


def pretend(monkeypatch: Any) -> None:
    """Lets the package be imported."""
    parts = {"http_server": {"create_fastapi_app": App}, "interfaces": {"Environment": Environment}}
    names = ("Action", "Observation", "State", "EnvironmentMetadata")
    parts["types"] = {name: globals()[name] for name in names}
    server = ModuleType("openenv.core.env_server")
    for name, values in parts.items():
        module = ModuleType(f"openenv.core.env_server.{name}")
        vars(module).update(values)
        setattr(server, name, module)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("openenv", "openenv.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, server.__name__, server)

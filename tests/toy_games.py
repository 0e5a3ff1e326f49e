"""Games of the tests' own: one for the bridge, with a stand-in for clemcore, and one in this process."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import read_checkout
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments.protocol import EpisodeFailed, Observation, StepResult
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.text import Conversation, Turn

TESTS = Path(__file__).parent
TOY, STUB = TESTS / "clembench_toy", TESTS / "clemcore_stub"


def toy_spec() -> Spec:
    """The entry of the game for the bridge."""
    [spec] = read_checkout(TOY)
    return spec


def stub_python(folder: Path, stub: Path = STUB) -> Path:
    """A Python in whose path the stand-in is; quick to start."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={stub} exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


def scripted(script: Callable[..., str] | Sequence[str], name: str = "scripted", temperature: float = 0.0) -> Model:
    """A player that replies by a script."""
    player = Model(Spec({"model_name": name, "backend": "huggingface_local"}), temperature)
    vars(player)["generator"] = ScriptedGenerator(script)
    return player


class SayGame:
    """Two seats, who say in turn what is asked of them: yes goes on, no loses, anything else aborts.

    So many times yes wins, by default three. An instance with `breaks` fails at that step.
    """

    seats: Sequence[str] = ("first", "second")

    def __init__(self, instances: int = 4, name: str = "say", breaks: int = -1, length: int = 3) -> None:
        self.spec = Spec({"game_name": name, "players": 2, "benchmark": ["toy"]}, "tests")
        self.length = length
        self.instances = [{"game_id": i, "breaks": breaks} for i in range(instances)]

    def experiments(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "easy", "game_instances": self.instances}]

    def environment(self) -> "SayEpisode":
        return SayEpisode(self.spec.name, self.length)

    def script(self, seat: str) -> Callable[..., str]:
        return lambda conversation, rng: "yes"


class SayEpisode:
    """One episode."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def reset(self, task: Mapping[str, Any], seed: int) -> Mapping[str, Observation]:
        self.task, self.events, self.kind = task, [], ""
        if "game_id" not in task["instance"]:
            raise ValueError("an instance without game_id")
        return self.ask()

    def ask(self) -> dict[str, Observation]:
        seat = SayGame.seats[len(self.events) % 2]
        return {seat: Observation(Conversation((Turn("user", f"{seat}: say yes, {len(self.events)}"),)))}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        [(seat, reply)] = actions.items()
        if len(self.events) == self.task["instance"]["breaks"]:
            raise EpisodeFailed("the game broke")
        self.events.append((seat, reply))
        self.kind = (
            ""
            if reply == "yes" and len(self.events) < self.length
            else {"yes": "won", "no": "lost"}.get(reply, "aborted")
        )
        return StepResult(terminated=True) if self.kind else StepResult(self.ask())

    def records(self):
        from lmgym.apps.games.dialogue.records import Records

        meta = {"game_name": self.name, "experiment_name": "easy", "game_id": self.task["instance"]["game_id"]}
        names = self.task.get("players") or {}
        players = {seat: {"game_role": seat, "model_name": names.get(seat, "?")} for seat in SayGame.seats}
        turns = [[
            {"from": "GM", "to": seat, "action": {"type": "send message", "content": f"{seat}: say yes"}},
            {"from": seat, "to": "GM", "action": {"type": "get message", "content": reply}},
        ] for seat, reply in self.events]  # fmt: skip
        main = {"won": 100.0, "lost": 0.0}.get(self.kind, float("nan"))
        kinds = {"Aborted": "aborted", "Success": "won", "Lose": "lost"}
        scores = {name: int(self.kind == kind) for name, kind in kinds.items()} | {"Main Score": main}
        interactions = {"meta": meta, "players": players, "turns": turns}
        return Records(interactions, (), {"meta": meta, "episode scores": scores})


def without_keys(monkeypatch, home: Path) -> None:
    """No API key of this machine's, and an empty current folder."""
    for name in [*os.environ]:
        if name.endswith("_API_KEY") or name == "HF_TOKEN":
            monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.chdir(home)

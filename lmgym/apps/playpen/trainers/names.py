"""The names that a trainer's file imports from `playpen` and `clemcore`: `playpen run` makes them importable.

They are those packages' names for what is here. In a process of `playpen run` each of their modules, whatever its name,
is a stand-in that finds them all, so that a file runs alike whether the packages are installed or not; nothing of them
is loaded. A name that is not here is an ImportError of one line.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.registries.models import ModelRegistry, load_models
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.trainers import base, branching, buffers, game_runs, result_files, starters, stepping
from lmgym.apps.playpen.trainers.runners import batchwise, sequential
from lmgym.apps.playpen.trainers.runners import branching as branching_runner
from lmgym.errors import did_you_mean, listed

PACKAGES = ("playpen", "clemcore", "clemgame")
OWN = (base, branching, buffers, game_runs, result_files, starters, stepping)
"""modules here whose public names are those packages' own"""
OTHERS: Mapping[str, Any] = {
    "BasePlaypenTrainer": base.BasePlayPen,  # of later versions, whose `learn` takes no registry
    "BranchingPlaypenTrainer": starters.BranchingPlayPenTrainer,
    "BatchwisePlaypenTrainer": starters.BatchwisePlayPenTrainer,
    "SequentialPlaypenTrainer": starters.SequentialPlayPenTrainer,
    "CallbackList": list,
    "GameInstanceIterator": game_runs.GameInstances,
    "GameMaster": stepping.GameEnv,
    "Player": stepping.SeatedPlayer,
    "GameSpec": Spec,
    "ModelSpec": Spec,
    "Model": Model,
    "BatchGenerativeModel": Model,
    "HuggingfaceLocalModel": Model,
    "batchwise": batchwise,
    "branching": branching_runner,
    "sequential": sequential,
}
"""names of those packages for what has another name here"""


def names_for(registry: GameRegistry) -> dict[str, Any]:
    """Every name that a file finds; its registry of games is the command's."""

    class CommandGameRegistry(GameRegistry):
        """The games of the command."""

        @staticmethod
        def from_directories_and_cwd_files() -> GameRegistry:
            return registry

    class CommandModelRegistry(ModelRegistry):
        """The models of the current folder."""

        @staticmethod
        def from_packaged_and_cwd_files() -> ModelRegistry:
            return load_models()

    own = {
        name: thing
        for module in OWN
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
    }
    registries = {"GameRegistry": CommandGameRegistry, "ModelRegistry": CommandModelRegistry}
    return {**own, "PlayPenEnv": branching.PlayPenEnv, **OTHERS, **registries}


class StandIn(ModuleType):
    """A module of another package: it has all names, or those of the module here that it is named after."""

    def __init__(self, name: str, names: Mapping[str, Any]) -> None:
        super().__init__(name)
        own = names.get(name.rpartition(".")[2])
        found = vars(own) if isinstance(own, ModuleType) else names
        self.__dict__["_names"] = {n: thing for n, thing in found.items() if not n.startswith("_")}
        self.__dict__["__all__"] = list(self._names)

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        if name.startswith("_") or name.islower():  # it may be a module
            raise AttributeError(name)
        raise self._absent(name)

    def __call__(self, *given: Any, **more: Any) -> NoReturn:
        """Refuse: a function that is not here was imported as if it were a module."""
        parent, _, name = self.__name__.rpartition(".")
        raise StandIn(parent or self.__name__, self._names)._absent(name)

    def _absent(self, name: str) -> ImportError:
        near = did_you_mean(name, self._names)
        return ImportError(
            f"{self.__name__} has no {name} in lmgym; {near}needed: Playpen itself, in an environment of its own with "
            f"clemcore (pip install clemcore), or one of {listed(sorted(self._names), 20)}"
        )


class StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for each module of the packages."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The stand-in for a module of the packages, and None for any other."""
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stand-in."""
        return StandIn(spec.name, self.names)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: a stand-in is whole."""


def make_importable(registry: GameRegistry) -> None:
    """Make the stand-ins what `import playpen` and `import clemcore` find in this process."""
    for name in [n for n in sys.modules if n.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.meta_path[:] = [StandIns(names_for(registry)), *(f for f in sys.meta_path if not isinstance(f, StandIns))]

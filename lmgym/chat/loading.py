"""Evaluation experiments: found by name or by path, their flags read, their models loaded, mistakes said in a line.

An experiment is a Python file with `get_base_model() -> Generator` and `get_reward_models() -> dict[str, Scorer]`. It
may have `SAMPLING`, or `DEFAULT_SAMPLING` for models whose folder does not say how to sample, `PERSONA`,
`FIRST_MESSAGE`, `get_conversations() -> list[Conversation]`, and a frozen dataclass `CONFIG`, which flags override and
both functions are then given.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from lmgym.chat.actions import near
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.generation.protocol import Sampling, own_sampling
from lmgym.scoring.judging import Judge
from lmgym.text import flat_template_note

FOLDER = Path(__file__).parents[2] / "reward_models/evaluation/experiments"
NAME = re.compile(r"[a-z0-9_]+")
SCORER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
COLUMNS = ("text", "tokens", "finish_reason", "chosen")  # of a DataFrame beside the scorers'


@dataclass(frozen=True)
class Experiment:
    """A file that says who talks and who judges, with its config as the flags have it."""

    name: str
    module: ModuleType
    arguments: tuple[Any, ...]

    def judges(self) -> dict[str, Judge]:
        """Its scorers by name. Raises InputError where they do not load or have names that commands cannot say."""
        judges = self._call("get_reward_models")
        if not isinstance(judges, dict) or not judges:
            raise InputError(f"get_reward_models of {self.name} gave {type(judges).__name__}; needed: scorers by name")
        for name, judge in judges.items():
            if not isinstance(name, str) or not SCORER_NAME.fullmatch(name) or name in COLUMNS:
                raise InputError(f"scorer {shown(name)} of {self.name}: needed a name of letters, digits and _ . : -")
            self._refuse_without("score", judge, f"scorer {name}")
        return judges

    def generator(self) -> Any:
        """Who talks. Raises InputError where that cannot."""
        generator = self._call("get_base_model")
        self._refuse_without("reply", generator, "get_base_model")
        return generator

    def _refuse_without(self, method: str, thing: Any, what: str) -> None:
        if not callable(getattr(thing, method, None)):
            raise InputError(f"{what} of {self.name} is {type(thing).__name__}; needed: something with {method}(...)")

    def get(self, name: str, default: Any = None) -> Any:
        """What else the file defines."""
        return getattr(self.module, name, default)

    def conversations(self) -> list | None:
        """Those that the file brings, None where it brings none."""
        return self._call("get_conversations") if hasattr(self.module, "get_conversations") else None

    def _call(self, name: str) -> Any:
        return _guarded(f"{name} of {self.name}", lambda: getattr(self.module, name)(*self.arguments))


def names() -> list[str]:
    """Of the experiments that come with lmgym."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def load_experiment(name: str | None, flags: Sequence[str] = (), known: Sequence[str] = ()) -> Experiment:
    """The experiment of a name or path. `known` are the command's own flags.

    Raises InputError for a name that there is not, a file that does not import or lacks a function, and a wrong flag.
    """
    if not name:
        raise InputError(f"--experiment_name is missing; there are {', '.join(names())}, or give a path to a file.py")
    if name.endswith(".py") or "/" in name:
        path = Path(os.path.expanduser(name))
        if not os.path.isfile(path):
            raise InputError(f"there is no experiment file {shown_path(name)}; by name there are {', '.join(names())}")
        module = _guarded(str(path), lambda: _import_file(path))
    elif not NAME.fullmatch(name) or name not in names():
        raise InputError(
            f"there is no experiment {shown(name)}; there are {', '.join(names())}, or give path/to/file.py"
        )
    else:
        module = _guarded(name, lambda: importlib.import_module(f"reward_models.evaluation.experiments.{name}"))
    for function in ("get_base_model", "get_reward_models"):
        if not callable(getattr(module, function, None)):
            raise InputError(f"{module.__file__} defines no {function}(); an experiment needs it")
    return Experiment(Path(name).stem, module, _configured(module, flags, known))


def _import_file(path: Path) -> ModuleType:
    # under a name of its own: no file can shadow a module
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"lmgym_experiment_{digest}", path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file; needed: file.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _configured(module: ModuleType, flags: Sequence[str], known: Sequence[str]) -> tuple[Any, ...]:
    config = getattr(module, "CONFIG", None)
    own = [field.name for field in fields(config)] if config is not None else []
    for flag in flags:
        name = flag[2:].partition("=")[0].replace("-", "_")
        if flag.startswith("--") and name not in own:
            meant = near(name[:80], [*known, *own])
            also = f"; {Path(str(module.__file__)).stem} takes --{', --'.join(own)} too" if own else ""
            raise InputError(f"unknown flag --{one_line(name, 80)}; did you mean --{meant}? (--help lists them{also})")
    if config is None:
        if flags:
            raise InputError(f"unexpected argument {shown(flags[0])}; flags look like --name value, --help lists them")
        return ()
    from lmgym.runs.flags import override

    return (override(config, list(flags)),)


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    """What `call` gives. Whatever an experiment's code raises becomes an InputError with the line where it happened."""
    try:
        return call()
    except InputError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        said = one_line(f"{type(error).__name__}: {error}", 1000)
        raise InputError(f"{what} failed: {said}{place}") from error


def refuse_unknown_scorer(select: str | None, judges: dict[str, Judge]) -> str:
    """The name of the scorer that selects. Raises InputError, with those that there are."""
    there_are = f"there are {', '.join(judges)}"
    if not select:
        raise InputError(f"--select_model is missing; {there_are}")
    if select not in judges:
        raise InputError(f"there is no model {shown(select)} in this experiment; {there_are}")
    return select


def sampling_of(experiment: Experiment, generator: Any) -> tuple[Sampling, str]:
    """How replies are drawn, and a line for people: whether the experiment says so, the model's folder, or neither.

    The line is empty where no model draws them.
    """
    sampling, source = experiment.get("SAMPLING"), f"SAMPLING of {experiment.name}"
    model = getattr(_innermost(generator), "model", None)
    if sampling is None:
        default = experiment.get("DEFAULT_SAMPLING") or Sampling()
        sampling, source = own_sampling(getattr(model, "generation_config", None), default)
    return sampling, "" if model is None else f"samples: {sampling} ({source})"


def template_note(generator: Any) -> str:
    """A line where the model that talks has no chat template of its own; empty where it has, or no model talks."""
    tokenizer = getattr(_innermost(generator), "tokenizer", None)
    return "" if tokenizer is None else " ".join(flat_template_note(tokenizer))


def _innermost(generator: Any) -> Any:
    """What stands behind the generators that pass requests on."""
    while hasattr(generator, "generator"):
        generator = generator.generator
    return generator


def model_revisions(generator: Any, judges: dict[str, Judge]) -> dict[str, dict[str, str]]:
    """What is known of who talked and who judged: class, path or hub id, commit, a digest of weights in a folder."""
    return {"generator": _revision(_innermost(generator))} | {name: _revision(judge) for name, judge in judges.items()}


def _revision(thing: Any) -> dict[str, str]:
    found = {"kind": type(thing).__name__}
    if url := getattr(thing, "base_url", None):
        found["server"] = str(url)
    model = getattr(thing, "model", None)
    config = getattr(model, "config", None)
    name = model if isinstance(model, str) else getattr(config, "_name_or_path", "")
    if name:
        found["model"] = str(name)
    if commit := getattr(config, "_commit_hash", None):
        found["commit"] = str(commit)
    weights = sorted(Path(name).glob("*.safetensors")) if name and Path(name).is_dir() else []
    if weights:
        digest = hashlib.sha256()
        for path in weights:  # the ends of each: enough to tell two trainings apart, and quick for any size
            with path.open("rb") as file:
                size = file.seek(0, 2)
                digest.update(f"{path.name} {size}".encode())
                for start in (0, max(0, size - (1 << 20))):
                    file.seek(start)
                    digest.update(file.read(1 << 20))
        found["weights"] = digest.hexdigest()[:16]
    return found

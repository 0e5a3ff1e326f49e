"""Evaluation experiments: found by name or path, configured by flags, and loaded. Mistakes raise InputError.

An experiment is a Python file with `get_base_model() -> Generator` and `get_reward_models() -> dict[str, Scorer]`, or
what the first lmgym and functions have in their place (first_form.py).
Optional: `SAMPLING`, or `DEFAULT_SAMPLING` for models without a generation config; `PERSONA`; `FIRST_MESSAGE`;
`get_conversations() -> list[Conversation]`; and a frozen dataclass `CONFIG`, whose fields are flags and which all
functions then receive.
"""

import ast
import hashlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from lmgym.apps.chat.first_form import as_generator, as_scorer
from lmgym.errors import InputError, nearest, one_line, shown
from lmgym.generation.protocol import Sampling, sampling_from_config
from lmgym.runs.user_code import call_user_code, import_file
from lmgym.scoring.protocol import Scorer
from lmgym.turn_ends import template_notes

ROOT = Path(__file__).parents[3]
PACKAGES = ("reward_models.evaluation.experiments", "lmgym.apps.world.experiments")
SCORER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
COLUMNS = ("text", "tokens", "finish_reason", "chosen")  # of a DataFrame, in addition to the scorers


@dataclass(frozen=True)
class Experiment:
    """An experiment's module, and the arguments of its functions: its config, if it has one."""

    name: str
    module: ModuleType
    arguments: tuple[Any, ...]

    def judges(self) -> dict[str, Scorer]:
        """The scorers by name; there may be none. Raises InputError if they do not load, or have unusable names."""
        judges = self._call("get_reward_models")
        if not isinstance(judges, dict):
            raise InputError(f"get_reward_models of {self.name} gave {type(judges).__name__}; needed: scorers by name")
        check_scorer_names(judges, self.name)
        return {name: as_scorer(judge, f"scorer {name} of {self.name}") for name, judge in judges.items()}

    def generator(self) -> Any:
        """The model that replies. Raises InputError if it does not load."""
        return as_generator(self._call("get_base_model"), f"get_base_model of {self.name}")

    def get(self, name: str, default: Any = None) -> Any:
        """Another name that the file may define."""
        return getattr(self.module, name, default)

    def conversations(self) -> list | None:
        """The experiment's own conversations, or None."""
        return self._call("get_conversations") if hasattr(self.module, "get_conversations") else None

    def _call(self, name: str) -> Any:
        return call_user_code(f"{name} of {self.name}", lambda: getattr(self.module, name)(*self.arguments))


def experiment_modules() -> dict[str, str]:
    """The modules of the experiments that come with lmgym, by name. The second package has other experiments too."""
    files = ((package, path) for package in PACKAGES for path in (ROOT / package.replace(".", "/")).glob("*.py"))
    found = {
        path.stem: f"{package}.{path.stem}"
        for package, path in files
        if "def get_base_model(" in path.read_text("utf-8")
    }
    return dict(sorted(found.items()))


def describe_experiments() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(name and purpose of every experiment, `NAME: --flag` and meaning of every field of a config), for a help."""
    purposes, flags = [], []
    for name, module_name in experiment_modules().items():
        module = importlib.import_module(module_name)
        purposes.append((name, (module.__doc__ or "").partition("\n")[0]))
        if (config := getattr(module, "CONFIG", None)) is not None:
            meanings = _field_docstrings(type(config))
            for field in fields(config):
                default = getattr(config, field.name)
                flags.append((f"{name}: --{field.name}", f"{meanings.get(field.name, '')}  [default: {default}]"))
    return purposes, flags


def _field_docstrings(kind: type) -> dict[str, str]:
    """The strings under the fields of a dataclass, by field."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        statement.target.id: text.value.value.strip()
        for statement, text in pairwise(definition.body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def load_experiment(name: str | None, flags: Sequence[str] = (), known: Sequence[str] = ()) -> Experiment:
    """The experiment of a name or path. `known` are the command's own flags.

    Raises InputError for an unknown name, a file that does not import or lacks a function, and a wrong flag.
    """
    names = experiment_modules()
    available = f"available: {', '.join(names)}, or a path/to/file.py"
    if not name:
        raise InputError(f"--experiment_name is missing; {available}")
    if name.endswith(".py") or "/" in name:
        module = import_file(name, available)
    elif name in names:
        module = call_user_code(name, lambda: importlib.import_module(names[name]))
    else:
        raise InputError(f"there is no experiment {shown(name)}; {available}")
    for function in ("get_base_model", "get_reward_models"):
        if not callable(getattr(module, function, None)):
            raise InputError(f"{module.__file__} defines no {function}(); an experiment needs it")
    return Experiment(Path(name).stem, module, _config(module, flags, known))


def _config(module: ModuleType, flags: Sequence[str], known: Sequence[str]) -> tuple[Any, ...]:
    """(the config with the flags,), or () if the experiment has none."""
    config = getattr(module, "CONFIG", None)
    own = [field.name for field in fields(config)] if config is not None else []
    for flag in flags:
        name = flag[2:].partition("=")[0].replace("-", "_")
        if flag.startswith("--") and name not in own:
            suggestion = nearest(name, [*known, *own], 0)
            also = f"; {Path(str(module.__file__)).stem} also has --{', --'.join(own)}" if own else ""
            raise InputError(f"unknown flag --{one_line(name, 80)}; did you mean --{suggestion}? (see --help{also})")
    if config is None:
        if flags:
            raise InputError(f"unexpected argument {shown(flags[0])}; flags look like --name value, --help lists them")
        return ()
    from lmgym.runs.flags import override

    return (override(config, list(flags)),)


def check_scorer_names(names: Iterable[Any], source: str) -> None:
    """Raises InputError for a name that commands cannot contain, or that is a column's."""
    for name in names:
        if not isinstance(name, str) or not SCORER_NAME.fullmatch(name) or name in COLUMNS:
            raise InputError(f"scorer {shown(name)} of {source}: needed a name of letters, digits and _ . : -")


def check_scorer(select: str | None, judges: Mapping[str, Scorer], experiment: str) -> str:
    """The name of the scorer that selects: the first, or none, by default. Raises InputError if it is unknown."""
    if not select:
        return next(iter(judges), "")
    if select not in judges:
        raise InputError(
            f"there is no scorer {shown(select)} in {experiment}; available: {', '.join(judges) or 'none'}"
        )
    return select


def sampling_of(experiment: Experiment, generator: Any, given: Mapping[str, Any] | None = None) -> tuple[Sampling, str]:
    """The sampling of the experiment, else of the model's folder, else the default; and a note with its source.

    Settings that are `given` go before. The note is empty if no model generates the replies.
    """
    sampling, source = experiment.get("SAMPLING"), f"SAMPLING of {experiment.name}"
    model = getattr(_innermost(generator), "model", None)
    if sampling is None:
        default = experiment.get("DEFAULT_SAMPLING") or Sampling()
        sampling, source = sampling_from_config(getattr(model, "generation_config", None), default)
    if given:
        sampling, source = replace(sampling, **given), f"{source}, but for {', '.join(given)}"
    return sampling, "" if model is None else f"sampling: {sampling} ({source})"


def template_note(generator: Any) -> str:
    """Notes on a model without a chat template, and on one whose turns do not end with its eos; else empty."""
    tokenizer = getattr(_innermost(generator), "tokenizer", None)
    return "" if tokenizer is None else ". ".join(template_notes(tokenizer))


def _innermost(generator: Any) -> Any:
    """The generator inside wrappers."""
    while hasattr(generator, "generator"):
        generator = generator.generator
    return generator


def model_revisions(generator: Any, judges: dict[str, Scorer]) -> dict[str, dict[str, str]]:
    """Class, path or hub id, commit, and digest of the weights, of the generator and each scorer by name."""
    return {"generator": _revision(_innermost(generator))} | {name: _revision(judge) for name, judge in judges.items()}


def describe_revision(revision: Mapping[str, str]) -> str:
    """A model's class, its path or hub id, and what tells its versions apart, in words."""
    facts = [f"{name} {value}" for name, value in revision.items() if name not in ("kind", "model")]
    return ", ".join([" ".join(filter(None, [revision["kind"], revision.get("model")])), *facts])


def _revision(source: Any) -> dict[str, str]:
    revision = {"kind": type(source).__name__}
    if url := getattr(source, "base_url", None):
        revision["server"] = str(url)
    model = getattr(source, "model", None)
    config = getattr(model, "config", None)
    if name := model if isinstance(model, str) else getattr(config, "_name_or_path", ""):
        revision["model"] = str(name)
    if commit := getattr(config, "_commit_hash", None):
        revision["commit"] = str(commit)
    weights = sorted(Path(name).glob("*.safetensors")) if name and Path(name).is_dir() else []
    if weights:
        digest = hashlib.sha256()
        for path in weights:  # both ends of each file suffice to tell two trainings apart, and are fast to read
            with path.open("rb") as file:
                size = file.seek(0, 2)
                digest.update(f"{path.name} {size}".encode())
                for start in (0, max(0, size - (1 << 20))):
                    file.seek(start)
                    digest.update(file.read(1 << 20))
        revision["weights"] = digest.hexdigest()[:16]
    return revision

"""Tasks of lm-eval by name, from task files, and with rows of the user's own; what cannot be loaded is said on a line.

A task file may name Python functions beside it, which are executed.
"""

import contextlib
import difflib
import functools
import io
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lmgym.console import VERBOSE
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.models.sources import hub_has_address

FORMATS = {".parquet": "parquet", ".csv": "csv"}
"""of files with rows, besides JSON lines"""


def load_tasks(suite: str, data: str | None = None) -> list[Any]:
    """Tasks and groups of lm-eval: names, task files and folders of them, separated by commas.

    `data` has files of rows: TASK=FILE, separated by commas, or one FILE for the only task. Raises InputError where
    lm-eval is not installed, for an unknown task, and for one whose rows are not reached.
    """
    words = [word.strip() for word in suite.split(",") if word.strip()]
    if not words:
        raise InputError("no task is named; needed: names of lm-eval such as gsm8k,ifeval, or a task's .yaml file")
    with quiet(), contextlib.nullcontext() if hub_has_address() else _offline():
        specs = _find(words)
        files = _files_of(data, list(specs))
        with tempfile.TemporaryDirectory() as scratch:
            return [
                task
                for name, path in specs.items()
                for task in _load(name, _with_rows(name, path, files[name], Path(scratch)) if name in files else path)
            ]


def _find(words: Sequence[str]) -> dict[str, Path | None]:
    """The task files by the names of their tasks; None for a group or tag that comes with lm-eval."""
    manager = _manager()
    paths = {word: Path(word).expanduser() for word in words}
    names = [word for word, path in paths.items() if not (path.exists() or "/" in word or path.suffix == ".yaml")]
    known = _defaults().task_index if names else {}
    found: dict[str, Path | None] = {}
    for word, path in paths.items():
        if word in names:
            if word not in known:
                near = difflib.get_close_matches(word.lower(), known, 3)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise InputError(
                    f"lm-eval has no task {shown(word)}{hint} needed: one that `lm-eval ls tasks` lists, or a task's "
                    ".yaml file"
                )
            found[word] = known[word].yaml_path if known[word].kind.name == "TASK" else None
        elif path.is_dir():
            inside = manager(include_path=path, include_defaults=False)
            if not inside.all_subtasks:
                raise InputError(f"{shown_path(path)} holds no task; needed: .yaml files as lm-eval reads them")
            found |= {name: inside.task_index[name].yaml_path for name in inside.all_subtasks}
        elif path.is_file():
            found[path.stem] = path
        else:
            raise InputError(f"there is no task file {shown_path(path)}; needed: a .yaml file or a folder of them")
    return found


@functools.cache
def _defaults() -> Any:
    """The tasks, groups and tags that come with lm-eval: read in ten seconds."""
    return _manager()()


def _manager() -> Any:
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise InputError(
            f"tests of capabilities are lm-eval's, which is not installed ({one_line(str(error), 80)}); needed: pip "
            "install 'lmgym[capabilities]'"
        ) from error
    return TaskManager


def _files_of(data: str | None, names: Sequence[str]) -> dict[str, Path]:
    """Files of rows by task. Raises InputError for one of no task, and for one that is not there."""
    found: dict[str, Path] = {}
    for word in (data or "").split(",") if data else []:
        name, equals, file = word.strip().rpartition("=")
        name = name if equals else names[0]
        if name not in names or (not equals and len(names) > 1):
            raise InputError(f"rows {shown(word)} are of no task here; needed: TASK=FILE, of {', '.join(names)}")
        found[name] = Path(file).expanduser().absolute()
        if not found[name].is_file():
            raise InputError(f"there are no rows {shown_path(file)} of {name}; needed: a .jsonl, .parquet or .csv file")
    return found


def _with_rows(name: str, path: Path | None, rows: Path, scratch: Path) -> Path:
    """A task file like that at `path`, with rows of a file. Examples of its prompt are other rows of it."""
    if path is None:
        raise InputError(f"{name} is a group of tasks; needed: rows of one task each, TASK=FILE")
    own = scratch / f"{name}.yaml"
    suffix = next((suffix for suffix in rows.suffixes if suffix in FORMATS), "")
    settings = {
        "include": str(path.absolute()),
        "dataset_path": FORMATS.get(suffix, "json"),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": "test",
    }
    own.write_text(yaml.safe_dump(settings))
    return own


def _load(name: str, path: Path | None) -> list[Any]:
    """The group of that name, or the tasks."""
    try:
        needs_others = path is None or "\ngroup:" in f"\n{path.read_text(encoding='utf-8')}"
        manager = _defaults() if needs_others else _manager()(include_defaults=False)
        found = manager.load([name if path is None else str(path)])
    except InputError:
        raise
    except OSError as error:  # of datasets: no network, no such data set, no such file
        raise InputError(
            f"the data of {name} are not reached ({first_line(error)}); needed: the hub, or a file of them: {name}="
            "ROWS.jsonl (--data, of a run --capabilities_data)"
        ) from error
    except Exception as error:  # of its file, of its Python functions, of rows that lack a column
        raise InputError(f"the task {name} does not load: {first_line(error)}") from error
    if unsafe := [task for task, one in found["tasks"].items() if getattr(one, "UNSAFE_CODE", False)]:
        raise InputError(f"{unsafe[0]} runs code that the model writes; needed: lm-eval's own command, in a sandbox")
    groups = list(found.get("groups", {}).values())
    return groups[:1] or list(found["tasks"].values())


def first_line(error: BaseException) -> str:
    """The kind of an error, unless it is one of files or networks, and the first line of its message."""
    lines = [
        line.strip(" *").rstrip(".") for line in str(error.args[0] if error.args else "").splitlines()
    ]  # NLTK frames its own
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    return kind + one_line(next(filter(None, lines), "no message"), 120)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Data sets that are not in the cache fail at once, instead of after 23 seconds each."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def quiet(everything: bool = True) -> Iterator[None]:
    """Without the log of lm-eval, and, with `everything`, without what it and other libraries print."""
    logging.getLogger("lm_eval").setLevel(logging.INFO if VERBOSE else logging.ERROR)
    with contextlib.ExitStack() as stack:
        if everything and not VERBOSE:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield

"""Pages and benchmarks name each other: scripts and flags that are printed exist, and no result lies there unread."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks"
PAGES = [
    ROOT / "README.md",
    ROOT / "Makefile",
    FOLDER / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "lmgym/apps").glob("*/README.md")),
]
READERS = [
    path for folder in ("benchmarks", "tests", "docs/images", "lmgym") for path in sorted((ROOT / folder).rglob("*.py"))
]
INSTALLED = {"lmgym", "sft", "reward_models", "preferences", "ppo"}
FLAG = re.compile(r"(?<=\s)--\w+")


def mentions(page: Path) -> list[tuple[str, str]]:
    """(script, what is printed behind it up to the end of the command) for each `benchmarks/SCRIPT.py` of a page."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"benchmarks/((?:runners/)?\w+\.py)([^`\n#|&]*)", text)


def sources(script: str) -> str:
    """A script with the benchmarks that it imports, which may declare its flags."""
    text = (FOLDER / script).read_text(encoding="utf-8")
    own = {path.stem: path for path in FOLDER.rglob("*.py")}
    imported = re.findall(r"^from (\w+) import", text, flags=re.MULTILINE)
    return text + "".join(own[name].read_text(encoding="utf-8") for name in imported if name in own)


def printed_commands() -> list[tuple[str, str]]:
    found = {mention for page in PAGES for mention in mentions(page)}
    assert len(found) > 40
    return sorted(found)


def test_scripts_that_a_page_names_exist() -> None:
    assert [script for script, _ in printed_commands() if not (FOLDER / script).is_file()] == []


def test_the_benchmarks_page_names_no_script_that_is_gone() -> None:
    named = re.findall(r"(?<![/\w])\w+\.py", (FOLDER / "README.md").read_text(encoding="utf-8"))
    here = {path.name for path in FOLDER.rglob("*.py")}
    assert set(named) <= here, sorted(set(named) - here)


def test_flags_printed_behind_a_script_are_its_own() -> None:
    wrong = []
    for script, words in printed_commands():
        declared = sources(script)
        wrong += [(script, flag) for flag in FLAG.findall(words) if f'"{flag}"' not in declared]
    assert wrong == []


@functools.cache
def names_of(module: str) -> set[str]:
    """The names that one of our modules has, read off its source."""
    folder = ROOT / module.replace(".", "/")
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not file.is_file():
        return set()
    found = {path.stem for path in folder.glob("*")} if folder.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one.asname or one.name for one in node.names}
    return found


def test_what_a_benchmark_imports_from_lmgym_is_there() -> None:
    """Most run once a release: a name that has moved would be found then."""
    missing = []
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in INSTALLED:
                absent = {one.name for one in node.names} - names_of(node.module)
                missing += [f"{path.name}: {node.module}.{name}" for name in sorted(absent)]
    assert missing == []


def test_modules_that_a_benchmark_imports_at_its_start_are_there() -> None:
    missing = []
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            found = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            packages = {name.split(".")[0] for name in found}
            missing += [f"{path.name}: {name}" for name in packages if importlib.util.find_spec(name) is None]
    assert missing == []


@pytest.mark.parametrize("result", sorted((FOLDER / "results").glob("*.json")), ids=lambda path: path.name)
def test_a_result_is_written_by_a_script_or_named_where_it_is_read(result: Path) -> None:
    """A script's own results begin with its name, as `reward_training_S_bf16.json` does."""
    if any(result.stem == script.stem or result.stem.startswith(f"{script.stem}_") for script in FOLDER.glob("*.py")):
        return
    readers = [path for path in (*PAGES, *READERS) if result.name in path.read_text(encoding="utf-8")]
    assert readers


@pytest.mark.parametrize(
    "runner",
    [
        path
        for path in sorted((FOLDER / "runners").glob("*.py"))
        if path.stem.startswith("trl_") or "interface" in path.stem
    ],
    ids=lambda path: path.name,
)
def test_what_runs_in_a_peers_environment_does_without_lmgym(runner: Path) -> None:
    text = runner.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import) (lmgym|ppo|sft|reward_models|preferences|shared)\b", text, re.MULTILINE)

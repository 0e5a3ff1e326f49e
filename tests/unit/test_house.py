"""The rules of the house, read off the source: who may import whom, what files are called, how long they are."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
STAGES = ("sft", "reward_models", "preferences", "ppo")
INSTALLED = {"lmgym", *STAGES, "eval_rewards_api"}
PACKAGES = [ROOT / name for name in ("lmgym", *STAGES) if (ROOT / name).is_dir()]


def files_in(*folders: Path) -> list[Path]:
    """Python files, and at least one: a rule that looks at nothing cannot be broken."""
    found = sorted(path for folder in folders for path in folder.rglob("*.py"))
    assert found
    return found


def experiments() -> list[Path]:
    found = {p for p in files_in(*PACKAGES) if p.parent.name == "experiments" and p.name != "__init__.py"}
    return sorted(found - set(evaluations()))


def evaluations() -> list[Path]:
    """Experiments that train nothing: who talks, and who judges."""
    own = files_in(ROOT / "reward_models/evaluation/experiments")
    return [p for p in (*own, ROOT / "lmgym/apps/world/experiments/world.py") if p.name != "__init__.py"]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> set[str]:
    """Top-level packages that any import within names, also `importlib.import_module("x")`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import at line {node.lineno}: these rules read whole names"
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    return {name.partition(".")[0] for name in names}


def outside_functions(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING"):
            continue
        if isinstance(node, ast.stmt):
            yield node
        waiting += ast.iter_child_nodes(node)


def imported_at_once(path: Path) -> set[str]:
    imports = [n for n in outside_functions(parse(path)) if isinstance(n, ast.Import | ast.ImportFrom)]
    return imported(ast.Module(list(imports), []))


def test_the_reader_of_imports_sees_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import torch.nn as nn\nfrom lmgym.text import Turn\n"
        "if True:\n    import json\n"
        "def f():\n    import ppo.train\n    importlib.import_module('sft.train')\n"
        "if __name__ == '__main__':\n    import deepspeed\n"
    )
    assert imported(parse(path)) == {"torch", "lmgym", "json", "ppo", "sft", "deepspeed"}
    assert imported_at_once(path) == {"torch", "lmgym", "json"}


def test_stages_never_import_each_other() -> None:
    for stage in STAGES:
        if (ROOT / stage).is_dir():
            others = set(STAGES) - {stage} | {"eval_rewards_api"}
            for path in files_in(ROOT / stage):
                assert not imported(parse(path)) & others, path


def test_commands_import_stages_within_their_functions_only() -> None:
    for path in [*files_in(ROOT / "lmgym/cli"), *(p for p in files_in(ROOT / "lmgym/apps") if p.stem == "commands")]:
        assert not imported_at_once(path) & {*STAGES, "eval_rewards_api"}, path


def test_only_the_engine_imports_deepspeed() -> None:
    importers = {p for p in files_in(*PACKAGES) if "deepspeed" in imported(parse(p))}
    assert importers == {ROOT / "lmgym/distributed" / f"deepspeed_{name}.py" for name in ("config", "engine")}


def test_the_installed_packages_import_neither_tests_nor_benchmarks() -> None:
    for path in files_in(*PACKAGES):
        assert not imported(parse(path)) & {"tests", "benchmarks", "pytest", "trl"}, path


def test_no_file_or_folder_shadows_a_standard_module() -> None:
    folders = [*PACKAGES, *(ROOT / name for name in ("benchmarks", "tests") if (ROOT / name).is_dir())]
    for path in files_in(*folders):
        for part in path.relative_to(ROOT).with_suffix("").parts:
            # lmgym.statistics is imported by its full name only, and no script lies beside it
            assert part not in sys.stdlib_module_names or path == ROOT / "lmgym/statistics.py", path
    assert "random" in sys.stdlib_module_names  # the one that broke `import torch`


def test_files_and_functions_stay_short() -> None:
    for path in files_in(*PACKAGES, *(ROOT / name for name in ("benchmarks",) if (ROOT / name).is_dir())):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_there_are_no_modules_of_odds_and_ends() -> None:
    for path in files_in(*PACKAGES):
        assert path.stem not in {"utils", "util", "helpers", "common", "misc"}, path


def test_every_module_says_what_it_is() -> None:
    for path in files_in(*PACKAGES):
        if path.name != "__init__.py":
            assert len(ast.get_docstring(parse(path)) or "") > 20, path


def test_no_key_or_token_is_in_the_source() -> None:
    secret = re.compile(r"hf_[A-Za-z]{20,}|wandb_[A-Za-z0-9_]{20,}|[\"'][0-9a-f]{40}[\"']")
    for path in files_in(*PACKAGES):
        assert not secret.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("path", experiments(), ids=lambda p: f"{p.parts[-3]}/{p.stem}")
def test_an_experiment_is_short_and_builds_one_config(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 35
    tree = parse(path)
    assert ast.get_docstring(tree)
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    names = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    assert names == ["CONFIG"]


@pytest.mark.parametrize("path", evaluations(), ids=lambda p: p.stem)
def test_an_evaluation_is_short_says_who_talks_and_judges_and_loads_models_in_its_functions_alone(path: Path) -> None:
    assert re.fullmatch("[a-z0-9_]+", path.stem)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 50
    tree = parse(path)
    assert ast.get_docstring(tree)
    assert {"get_base_model", "get_reward_models"} <= {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert not imported_at_once(path) & {"torch", "transformers", "pandas", "datasets"}
    heavy = ("from lmgym.scoring.scorers", "from lmgym.generation.local", "from lmgym.models")
    assert not any(ast.unparse(node).startswith(heavy) for node in outside_functions(tree))


def test_experiments_are_called_by_their_file_import_without_side_effects_and_without_torch(tmp_path: Path) -> None:
    code = (
        "import importlib, json, os, sys\n"
        "before = dict(os.environ)\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    config = importlib.import_module(name).CONFIG\n"
        "    found[name] = config.name\n"
        "heavy = sorted({'torch', 'transformers', 'deepspeed', 'datasets', 'wandb', 'peft'} & set(sys.modules))\n"
        "print(json.dumps([found, heavy, before == dict(os.environ)]))\n"
    )
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in experiments()]
    done = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    found, heavy, same_environment = json.loads(done.stdout)  # nothing else was printed
    assert found == {name: name.rpartition(".")[2] for name in names}
    assert heavy == []
    assert same_environment
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_only_the_named_packages_are_installed() -> None:
    from setuptools import find_namespace_packages  # what a `packages.find` table means

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = find_namespace_packages(str(ROOT), include=settings["packages"]["find"]["include"])
    modules = settings.get("py-modules", [])
    assert {name.partition(".")[0] for name in packages} | set(modules) <= INSTALLED
    assert {"lmgym", "lmgym.cli", "reward_models", "reward_models.experiments"} <= set(packages)
    folders = {".".join(p.parent.relative_to(ROOT).parts) for p in files_in(*PACKAGES)}
    assert folders <= set(packages)
    assert all((ROOT / name.replace(".", "/") / "__init__.py").is_file() for name in folders)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


PRINTERS = {
    ("lmgym/console.py", "print"),  # the one place
    ("lmgym/__init__.py", "print"),  # where rich is not installed
    ("lmgym/apps/chat/pipe_frontend.py", "print"),  # JSON for programs, in ASCII
    ("lmgym/runs/node_report.py", "print"),  # base64 for `lmgym launch --dry_run`, by a Python without lmgym
}


def printing(tree: ast.AST) -> set[str]:
    """Ways of text to a terminal that a module takes by itself."""
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    direct = {"print", "pprint", "Console", "rich.print", "sys.stdout.write", "sys.stderr.write"}
    return {name for name in calls if name in direct or name.endswith((".Console", ".print_exc", "click.echo"))}


def test_text_reaches_a_terminal_through_one_module_only() -> None:
    found = set()
    for path in [*files_in(*PACKAGES), ROOT / "eval_rewards_api.py"]:
        found |= {(str(path.relative_to(ROOT)), name) for name in printing(parse(path))}
    assert found == PRINTERS


def test_the_finder_of_prints_sees_every_kind() -> None:
    code = "print(1)\nrich.console.Console()\nsys.stderr.write('')\nx.print()\nclick.echo('')\ntraceback.print_exc()"
    assert printing(ast.parse(code)) == {
        "print", "rich.console.Console", "sys.stderr.write", "click.echo", "traceback.print_exc",
    }  # fmt: skip


OF_A_MACHINE = re.compile(r"(?<![\w.~$}>-])/(?:work|home|root|Users|mnt|srv)/[\w.]")
TEMPORARY = re.compile(r"(?<![\w.~$}>-])/(?:tmp|var)/\w")  # in what was recorded; commands of docs may name such files
TEST_RUN = re.compile(r"^=+ test session starts|^(?:PASSED|FAILED) tests/|\b\d+ passed\b.* in \d+\.\d+s", re.MULTILINE)


def traces(name: str, text: str) -> list[str]:
    """Absolute paths of a machine, and lines of a log of a test run, in a file."""
    patterns = [OF_A_MACHINE, TEST_RUN, *([TEMPORARY] if name.endswith((".json", ".jsonl", ".txt", ".csv")) else [])]
    return [f"{name}: {text[max(0, m.start() - 20) : m.end() + 20]!r}" for p in patterns for m in p.finditer(text)]


def test_no_committed_file_has_a_path_of_a_machine_or_a_log_of_a_test_run() -> None:
    texts = {name: (ROOT / name).read_bytes() for name in tracked()}
    found = [line for name, text in texts.items() if b"\0" not in text for line in traces(name, text.decode())]
    assert found == []


def test_the_finder_of_paths_and_logs_sees_every_kind() -> None:
    paths = [f"cd /{folder}/ann/lmgym" for folder in ("work", "home", "root", "mnt")]
    assert all(len(traces("a.md", text)) == 1 for text in [*paths, f"12 {'passed'}, 1 failed in 3.10s"])
    assert len(traces("a.json", f'"/{"tmp"}/w/model"')) == 1
    fine = ["/path/to/model", "~/work/x", "--output /tmp/x.json", "../root/x", "https://a.org/home/x", "$HOME/work/x"]
    assert [text for text in fine if traces("a.md", text)] == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them without their folders: of two with one name, the second is not collected."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 500
    assert {name for name in names if names.count(name) > 1} == set()

"""Imports point downwards: from a package to those below it, from apps to the core and the stages, without cycles."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launch, run
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
OURS = ("lmgym", "ppo", "preferences", "reward_models", "sft")
STAGES = ("sft", "reward_models", "preferences", "ppo")
LAYERS = (
    "lmgym",  # the base layer: text, messages, tool_calls, errors, aids, console, statistics
    "lmgym.config",
    "lmgym.distributed",
    "lmgym.report",
    "lmgym.runs",
    "lmgym.data",
    "lmgym.models",
    "lmgym.models.forward",
    "lmgym.generation",
    "lmgym.scoring",
    "lmgym.environments",
    "lmgym.training",
    "sft",
    "reward_models",
    "preferences",
    "ppo.algorithms",
    "ppo.config",
    "ppo.actor_critic",
    "ppo.rewards",
    "ppo.task_setups",
    "ppo.named_environments",
    "ppo.judging",
    "ppo.reward_parts",
    "ppo.row_tree",
    "ppo.rollouts",
    "ppo.journal",
    "ppo.sampler_watch",
    "ppo.state",
    "ppo.experience",
    "ppo.weight_sync",
    "ppo.sync_proof",
    "ppo.engine_sampler",
    "ppo.learner",
    "ppo.algorithms.learning",
    "ppo.monitoring.metrics",
    "ppo.monitoring.equal_length",
    "ppo.evaluation",
    "ppo.best",
    "ppo.monitoring",
    "ppo.opponents",
    "ppo.memory",
    "ppo.check",
    "ppo.setup",
    "ppo.monitoring.safeguards",
    "ppo.pending",
    "ppo.train",
    "ppo.trlx",
    "ppo.experiments",
    "lmgym.apps",
    "lmgym.agents",  # an import path of LlamaGym's users
    "eval_rewards_api",
    "lmgym.cli",
    "lmgym.__main__",  # python3 -m lmgym
)
"""packages and modules from the bottom to the top; a module belongs to the longest of these that it begins with"""
APPS = sorted(path.parent.name for path in (ROOT / "lmgym/apps").glob("*/__init__.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for folder in ("lmgym", *STAGES) for path in sorted((ROOT / folder).rglob("*.py"))} | {
    "eval_rewards_api": ROOT / "eval_rewards_api.py"
}


def imports_of(text: str) -> set[str]:
    """Modules of this repository that a text imports anywhere: in functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= names or {node.module or ""}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys()


GRAPH = {name: imports_of(path.read_text(encoding="utf-8")) - {name} for name, path in MODULES.items()}


def layer_of(module: str) -> int:
    package = module if module in LAYERS else module.rpartition(".")[0]
    while package not in LAYERS:
        assert package, f"{module} has no layer: add it to LAYERS"
        package = package.rpartition(".")[0]
    return LAYERS.index(package)


def upward_imports(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if layer_of(other) > layer_of(name)
    ]


def app_of(module: str) -> str:
    return module.removeprefix("lmgym.apps.").partition(".")[0] if module.startswith("lmgym.apps.") else ""


def apps_named_by(app: str) -> set[str]:
    """The other apps that an app may import: its `__init__.py` names them in backquotes."""
    said = ast.get_docstring(ast.parse((ROOT / f"lmgym/apps/{app}/__init__.py").read_text(encoding="utf-8"))) or ""
    return set(re.findall("`([a-z_]+)`", said.partition("May import")[2]))


def in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Modules that are left once those that import nothing that is left are taken away, again and again."""
    left = dict(graph)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    return set(left)


def test_imports_point_downwards() -> None:
    assert upward_imports(GRAPH) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert in_cycles(GRAPH) == set()


@pytest.mark.parametrize("app", APPS)
def test_an_app_imports_only_the_apps_that_it_names(app: str) -> None:
    used = {app_of(other) for name, others in GRAPH.items() if app_of(name) == app for other in others}
    assert used - {app, ""} <= apps_named_by(app)


def test_packages_say_in_three_lines_what_they_may_import() -> None:
    packages = {path.parent for path in MODULES.values() if path.parent.is_relative_to(ROOT / "lmgym")}
    for folder in packages - {ROOT / "lmgym"}:
        if not folder.is_relative_to(ROOT / "lmgym/apps") or folder.parent == ROOT / "lmgym/apps":
            said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
            assert len(said.splitlines()) <= 3, folder
            assert "May import" in said, folder


def test_every_layer_exists_and_every_package_of_the_core_has_one() -> None:
    assert [name for name in LAYERS if name not in MODULES] == []
    core = {".".join(name.split(".")[:2]) for name in MODULES if name.startswith("lmgym.") and name.count(".") > 1}
    assert core <= set(LAYERS)


def test_a_run_of_a_stage_loads_no_app(small_models, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy, sys\n"
        f"for name in [name for name in sys.modules if name.partition('.')[0] in {OURS!r}]:\n"
        "    del sys.modules[name]  # of the process that was forked: all of ours is imported anew\n"
        "sys.argv = sys.argv[1:]\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        "    print(sorted(name for name in sys.modules if name.startswith('lmgym.apps')))\n"
    )
    words = ("--dry_run", "--model", small_models["llama"], "--output", tmp_path / "out")
    done = run(launch("fork", ROOT / "ppo/experiments/randomwalks.py", *words, script=script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_games_between_scripts_start_without_torch() -> None:
    code = (
        "import sys, lmgym.environments.engine; print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reader_of_imports_sees_upward_imports_and_cycles() -> None:
    text = "def f():\n    from lmgym.cli import main\nfrom lmgym.text import Turn\nimport ppo.train, os\n"
    assert imports_of(text) == {"lmgym.cli.main", "lmgym.text", "ppo.train"}
    graph = {"lmgym.text": {"lmgym.runs.run"}, "lmgym.runs.run": {"lmgym.errors"}, "lmgym.errors": set()}
    assert upward_imports(graph) == ["lmgym.text imports lmgym.runs.run"]
    assert upward_imports({"ppo.rollouts": {"lmgym.apps.world.world", "ppo.config"}}) == [
        "ppo.rollouts imports lmgym.apps.world.world"
    ]
    assert in_cycles(graph) == set()
    assert in_cycles(graph | {"lmgym.errors": {"lmgym.text"}}) == set(graph) | {"lmgym.errors"}

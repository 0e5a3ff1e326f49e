"""Imports point downwards: from a package to those below it, without cycles."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGES = ("sft", "reward_models", "preferences", "ppo")
LAYERS = (
    "lmgym",  # the base layer: text, tool_calls, errors, config, console
    "lmgym.distributed",
    "lmgym.report",
    "lmgym.runs",
    "lmgym.migration",
    "lmgym.data",
    "lmgym.models",
    "lmgym.models.forward",
    "lmgym.generation",
    "lmgym.scoring",
    "lmgym.world",
    "lmgym.environments",
    "lmgym.environments.games",
    "lmgym.environments.dialogue_games",
    "lmgym.environments.debate.prompts",
    "lmgym.environments.debate",
    "lmgym.environments.debate.players",
    "lmgym.environments.debate.report",
    "lmgym.environments.debate.tournament",
    "lmgym.environments.debate.audit",
    "lmgym.environments.debate.training",
    "lmgym.environments.self_play",
    "lmgym.playpen.registries",
    "lmgym.playpen",
    "lmgym.playpen.clembench",
    "lmgym.playpen.trainers",
    "lmgym.training",
    "lmgym.chat",
    "stages",
    "lmgym.agents",
    "experiments",
    "lmgym.cli.usage",
    "lmgym.cli.results",
    "lmgym.cli.demos",
    "lmgym.cli.dialogue",
    "lmgym.cli.debates.experiments",
    "lmgym.cli.debates",
    "lmgym.cli.games",
    "lmgym.cli.playpen",
    "lmgym.cli",
)
"""from the bottom to the top"""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_of(path): path
    for folder in ("lmgym", *STAGES)
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "__init__.py"
} | {"eval_rewards_api": ROOT / "eval_rewards_api.py"}


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
    package = module.rpartition(".")[0] or "lmgym.cli"  # eval_rewards_api is a command too
    if package.endswith(".experiments") and package not in LAYERS:  # of stages: nothing imports them
        return LAYERS.index("experiments")
    return LAYERS.index(package if package in LAYERS else "stages")


def upward_imports(graph: dict[str, set[str]]) -> list[str]:
    return [f"{name} imports {other}" for name, others in graph.items() for other in others
            if layer_of(other) > layer_of(name)]  # fmt: skip


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


def test_packages_say_in_three_lines_what_they_may_import() -> None:
    for folder in {path.parent for path in MODULES.values() if path.parent != ROOT}:
        package = ".".join(folder.relative_to(ROOT).parts)
        if package.startswith("lmgym.") and not package.endswith("experiments"):
            said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
            assert len(said.splitlines()) <= 3, package
            assert "May import" in said, package


def test_every_package_has_a_layer() -> None:
    packages = {name.rpartition(".")[0] for name in MODULES if name.startswith("lmgym.")}
    assert packages == {layer for layer in LAYERS if layer.startswith("lmgym")}


def test_the_reader_of_imports_sees_upward_imports_and_cycles() -> None:
    text = "def f():\n    from lmgym.cli import main\nfrom lmgym.text import Turn\nimport ppo.train, os\n"
    assert imports_of(text) == {"lmgym.cli.main", "lmgym.text", "ppo.train"}
    graph = {"lmgym.text": {"lmgym.runs.run"}, "lmgym.runs.run": {"lmgym.errors"}, "lmgym.errors": set()}
    assert upward_imports(graph) == ["lmgym.text imports lmgym.runs.run"]
    assert in_cycles(graph) == set()
    assert in_cycles(graph | {"lmgym.errors": {"lmgym.text"}}) == set(graph) | {"lmgym.errors"}

"""The flags that are named in texts of the packages, and the functions that the code of a stage reaches."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from lmgym.cli.main import main
from lmgym.runs.fields import flag_types
from lmgym.runs.launch import STAGES
from lmgym.runs.launching import experiments
from lmgym.runs.user_code import import_file

ROOT = Path(__file__).parents[1]
PACKAGES = ("lmgym", *STAGES.values())
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_]*[a-z0-9])(?![\w-])")
"""of a text; flags of other programs are written with dashes, and so are none"""
Node = tuple[str, str]
"""a module and a name at its top level"""


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax of every module by its name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return {name: ast.parse(path.read_text()) for name, path in zip(names, paths, strict=True)}


def flags_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(flag, text) of each flag in a text or an f-string, but for docstrings and the strings below fields."""
    silent = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            for match in FLAG.finditer(node.value):
                yield match[1], node.value


@cache
def flags_of_stage(stage: str) -> frozenset[str]:
    """The flags of all experiments of a stage."""
    configs = [import_file(path, "needed").CONFIG for path in experiments(stage).values()]
    names = frozenset(name for config in configs for name in flag_types(config))
    return names | {f"no_{name}" for name in names}


def flags_of_commands(command: click.Command = main) -> frozenset[str]:
    """The flags of `lmgym` and of all that is below it."""
    own = {name.lstrip("-").replace("-", "_") for one in command.params for name in (*one.opts, *one.secondary_opts)}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return frozenset(own | {"help"}).union(*map(flags_of_commands, below))


@cache
def definitions(module: str) -> dict[str, ast.AST]:
    """Functions, classes and values at the top level of a module."""
    found: dict[str, ast.AST] = {}
    for node in modules()[module].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@cache
def imported(module: str) -> dict[str, Node]:
    """The names that a module imports from others, also within functions."""
    found: dict[str, Node] = {}
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            for one in node.names:
                whole = f"{node.module}.{one.name}"
                found[one.asname or one.name] = (whole, "") if whole in modules() else (node.module, one.name)
    return found


def uses(node: Node) -> Iterator[Node]:
    """The functions, classes and values that one names."""
    module, name = node
    if not name:
        yield from ((module, one) for one in definitions(module))
    elif name not in definitions(module):
        yield from [imported(module)[name]] if name in imported(module) else []
    else:
        for one in ast.walk(definitions(module)[name]):
            if isinstance(one, ast.Name) and one.id != name:
                yield from [(module, one.id)] if one.id in definitions(module) | imported(module) else []


def reached(stage: str) -> set[Node]:
    """The code that a stage may run, as far as it is named: each function that a function names."""
    package = STAGES[stage]
    todo: list[Node] = [(one, "") for one in modules() if one.split(".")[0] == package and ".trlx" not in one]
    seen = set(todo)
    while todo:
        for one in uses(todo.pop()):
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return {(module, name) for module, name in seen if name in definitions(module)}

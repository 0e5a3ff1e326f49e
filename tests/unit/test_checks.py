"""Checks come first and stay small: the share of refusals in ppo/, and the files a config passes through.

Refusals are the lines of `raise` statements with their conditions, and of functions named check_* or refuse_*.
"""

import ast
import itertools
from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from test_imports import GRAPH, MODULES

ROOT = Path(__file__).parents[2]
CONFIGS = {
    *("StageConfig", "ModelConfig", "OptimizerConfig", "RunConfig"),
    *("PPOConfig", "RolloutConfig", "RewardConfig", "MethodConfig"),
}


def refusal_lines(tree: ast.AST) -> set[int]:
    """Line numbers of refusals."""
    found: set[int] = set()
    for node in ast.walk(tree):
        is_check = isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith(("check_", "refuse_"))
        if is_check or isinstance(node, ast.Raise):
            found |= _lines(node)
        elif isinstance(node, ast.If | ast.ExceptHandler) and any(isinstance(one, ast.Raise) for one in node.body):
            condition = node.test if isinstance(node, ast.If) else node.type
            found |= {node.lineno} | (_lines(condition) if condition else set())
    return found


def _lines(node: ast.AST) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))  # type: ignore[attr-defined]


def share_of_refusals(files: Iterator[Path]) -> float:
    texts = [path.read_text(encoding="utf-8") for path in files]
    return sum(len(refusal_lines(ast.parse(text))) for text in texts) / sum(len(text.splitlines()) for text in texts)


def takes_config(text: str, configs: Set[str] = CONFIGS) -> bool:
    """True if a function has a parameter that is annotated as one of these."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            for parameter in (*node.args.args, *node.args.kwonlyargs):
                names = {one.id for one in ast.walk(parameter) if isinstance(one, ast.Name)}
                if names & configs:
                    return True
    return False


def reached_from(start: str) -> set[str]:
    """Modules that are imported from one, directly or not."""
    found, left = {start}, [start]
    while left:
        for name in GRAPH[left.pop()] - found:
            found.add(name)
            left.append(name)
    return found


def test_refusals_are_a_small_part_of_ppo() -> None:
    assert share_of_refusals((ROOT / "ppo").rglob("*.py")) < 0.085


def test_a_config_passes_through_few_files_before_step_1() -> None:
    """The experiment, its flags, and every module reached from the loop with a function that takes a config."""
    taking = [name for name in sorted(reached_from("ppo.train")) if takes_config(MODULES[name].read_text())]
    files = ["ppo.experiments.hh_harmless", "lmgym.runs.flags", *taking]
    assert len(files) <= 21, files


def test_ppos_whole_config_ends_at_its_check_its_set_up_and_its_loop() -> None:
    """Behind them a function takes the group or the number that it uses. Task setups are made from a config, too."""
    of_tasks = {"ppo.judging", "ppo.named_environments", "ppo.task_setups", "ppo.trlx.training"}
    names = {name for name in MODULES if name.startswith("ppo.")}
    taking = {name for name in names if takes_config(MODULES[name].read_text(), {"PPOConfig"})}
    assert taking == {"ppo.check", "ppo.memory", "ppo.setup", "ppo.train", *of_tasks}


def test_the_policy_loss_is_few_files_from_the_experiment() -> None:
    steps = ["ppo.train", "ppo.setup", "ppo.algorithms.learning", "ppo.algorithms.losses"]
    assert all(after in GRAPH[before] for before, after in itertools.pairwise(["ppo.experiments.hh_harmless", *steps]))
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{name.replace('.', '/')}.py`" in text for name in ("ppo.experiments.hh_harmless", *steps))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def check_x(a):\n    b = a\n    return b\n", {1, 2, 3}),
        ("if a and (\n    b\n):\n    c = 1\n    raise E(\n        1\n    )\n", {1, 2, 3, 5, 6, 7}),
        ("try:\n    f()\nexcept E:\n    raise F\n", {3, 4}),
        ("def checks(a):\n    return a\n", set()),
    ],
)
def test_refusals_are_raises_with_their_conditions_and_checks(text: str, lines: set[int]) -> None:
    assert refusal_lines(ast.parse(text)) == lines

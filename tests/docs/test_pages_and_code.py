"""Exit codes, defaults of flags and names of tests on the pages are those of the code."""

import ast
import re
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from printed_blocks import PAGES, ROOT, table_rows

from lmgym import errors
from reward_models.config import RewardModelConfig

PACKAGES = ("lmgym", "sft", "reward_models", "preferences", "ppo")
TEST = re.compile(r"`(?:tests/)?((?:[a-z_]+/)*test_\w+\.py)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def deliberate_stops() -> set[tuple[str, int]]:
    """(outcome, exit code) of each `RunStopped` in the code that names both."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    calls = [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    stops = [call.args[1:] for call in calls if getattr(call.func, "id", "") == "RunStopped" and len(call.args) == 3]
    return {
        (str(outcome.value), getattr(errors, code.id))
        for outcome, code in stops
        if isinstance(outcome, ast.Constant) and isinstance(code, ast.Name) and hasattr(errors, code.id)
    }


def test_the_table_of_exit_codes_has_each_code_and_outcome_of_the_code() -> None:
    table = table_rows(text_of("docs/failures.md"), "exit code", "outcome in `run.json`")
    rows = [(int(code), outcome) for code, outcome, *_ in table]
    own = {value for name, value in vars(errors).items() if name.isupper() and value in range(64, 79)}
    assert {code for code, _ in rows} == {0, 1, 2} | own
    stops = deliberate_stops()
    assert len(stops) > 6
    assert {one for one in stops if one[0] != "failed"} <= {(outcome, code) for code, outcome in rows}


def leaves(config: Any) -> dict[str, Any]:
    """The settings of a config and its groups, by the names of their flags."""
    found: dict[str, Any] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        found |= leaves(value) if is_dataclass(value) else {one.name: value}
    return found


@pytest.mark.parametrize("page", ["docs/failures.md", "docs/reward_models.md"])
def test_defaults_in_tables_of_flags_are_those_of_a_reward_model(page: str) -> None:
    defaults = leaves(RewardModelConfig("pairs"))
    for flag, default, *_ in table_rows(text_of(page), "flag", "default"):
        value = defaults[flag.strip("`-")]
        shown = "no" if value is False else f"{value:g}" if isinstance(value, float) else str(value)
        assert default.split(":")[0] == shown, flag


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_exist(page: str) -> None:
    files = [str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")]
    named = TEST.findall(text_of(page))
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_each_guarantee_names_its_tests() -> None:
    rows = table_rows(text_of("docs/failures.md"), "", "guarantee", "tests")
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    assert [number for number, _, tests in rows if not TEST.findall(tests)] == []

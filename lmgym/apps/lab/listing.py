"""`lmgym lab list`: the plans that come along, with what each is for."""

import ast

from lmgym.apps.lab.plan import plan_files, read_plan
from lmgym.console import say


def show_plans() -> None:
    """Prints the plans that come along, with their runs."""
    for path in plan_files():
        _, plan = read_plan(path.stem)
        about = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        say(f"{path.stem:8} {len(plan.runs):4} runs in {len(plan.worlds)} worlds   {about}")

"""docs/methods.md: the settings of each method are the code's, and what is said of all runs holds of each."""

import json
from typing import get_args

from printed_blocks import ROOT, section, table_rows

from ppo.algorithms.methods import Algorithm, MethodName, preset

PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks/results/methods.json").read_text(encoding="utf-8"))


def written(method: Algorithm, setting: str) -> str:
    """A setting as the page writes it; empty where the method does not read it, or has it switched off."""
    value = getattr(method, setting)
    if setting in method.unread or (setting in ("overlong_penalty", "max_refills", "percentile") and not value):
        return ""
    return f"{value:g}".replace("0.", ".").replace("e-0", "e-") if isinstance(value, float) else str(value)


def number(text: str) -> object:
    """3e-4 and .0003 are one number."""
    try:
        return float(text)
    except ValueError:
        return text


def test_the_page_has_the_settings_of_every_method() -> None:
    names = get_args(MethodName)
    for label, *cells in table_rows(section(PAGE, "Settings of each method"), "", *names):
        for name, cell in zip(names, cells, strict=True):
            needed = [written(preset(name), setting) for setting in label.replace("`", "").split(", ")]
            found = cell.strip("`").split(", ") if cell else [""] * len(needed)
            assert list(map(number, found)) == list(map(number, needed)), (name, label)


def test_the_page_says_what_every_method_computes() -> None:
    methods = table_rows(section(PAGE, "What each computes"))
    assert [name.strip("`") for name, *_ in methods] == list(get_args(MethodName))
    for name, _, replies, *_ in methods:
        assert replies.startswith(("2 or more", "many") if preset(name.strip("`")).compares else "1"), name


def test_all_runs_on_five_graphs_learn_as_the_page_says() -> None:
    runs = [run for of in RESULTS["five_graphs"]["runs"].values() for run in of]
    assert f"**All {len(runs)} runs learn.**" in PAGE
    start = {graph: found["start"]["sampled"] for graph, found in RESULTS["five_graphs"]["graphs"].items()}
    assert [run for run in runs if run["sampled"] <= start[str(run["graph"])] + 0.1] == []

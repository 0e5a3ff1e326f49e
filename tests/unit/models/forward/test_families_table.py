"""The table of docs/families.md: what tests record replaces those cells and no others."""

from pathlib import Path

import pytest
from families import FAMILIES, OTHERS
from families_table import FORWARD, STAGES, Recorder, below, collect, with_cells

PAGE = Path(__file__).parents[4] / "docs/families.md"


def test_cells_replace_only_those_of_the_same_family_and_column() -> None:
    cells: dict = {}
    collect(cells, {"table": STAGES, "family": "opt", "cells": {"SFT": "ok"}}, True)
    collect(cells, {"table": STAGES, "family": "gemma2", "cells": {"rows": "packed", "chat": "ok"}}, True)
    collect(cells, {"table": FORWARD, "family": "bloom", "cells": {"rows": "padded: why"}}, True)
    page = with_cells(f"# a\n\n## {STAGES}\ntext\n\n|x|\n\nmore\n\n## {FORWARD}\n\n|x|\n", cells)
    assert page.index("| gemma2 | packed |") < page.index("| opt |"), "in the order of the list"
    assert "\ntext\n\n| family | rows |" in page
    assert "|\n\nmore\n\n## " in page
    assert with_cells(page, {}) == page
    again: dict = {}
    collect(again, {"table": STAGES, "family": "gemma2", "cells": {"chat": "ok"}}, False)
    changed = with_cells(page, again)
    assert changed.replace("failed", "ok") == page
    assert "| gemma2 | packed |  |  |  |  |  | failed |" in changed
    collect(again, {"table": STAGES, "family": "gemma2", "cells": {"chat": "ok"}}, True)
    assert with_cells(page, again) == changed, "one of a cell's tests failed"


def test_a_cell_that_the_table_does_not_have_is_refused() -> None:
    recorded: list = []
    Recorder(lambda *value: recorded.append(value))(STAGES, "opt", from_alone="0", reward_model="ok")
    assert recorded[0][1]["cells"] == {"from alone": "0", "reward model": "ok"}
    with pytest.raises(AssertionError):
        Recorder(lambda *_: None)(STAGES, "opt", odd="ok")


@pytest.mark.parametrize(("differences", "text"), [([0.0], "0"), ([3e-7, 2e-6], "< 1e-5"), ([9.9e-7], "< 1e-6")])
def test_a_difference_is_shown_as_the_next_power_of_ten(differences: list[float], text: str) -> None:
    assert below(differences) == text


def test_the_page_has_a_complete_row_for_every_family() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_cells(page, {}) == page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for family in (*FAMILIES, *OTHERS):
        [row] = [row for row in rows if row.startswith(f"| {family.name} |")]
        assert ("| packed |" in row) == (not family.why_padded)
        assert "failed" not in row
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert all(cells[: 8 if family in FAMILIES else 3]), row

"""The table of docs/families.md: what tests record replaces those cells and no others."""

import pytest
from families_table import FORWARD, STAGES, Recorder, below, collect, with_cells


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
    assert "| gemma2 | packed |  |  |  |  |  |  | failed |" in changed
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

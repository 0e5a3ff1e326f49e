"""Tables of results name their seeds."""

import re
from collections.abc import Iterator

import pytest
from printed_blocks import ROOT

PAGES = ("docs/methods.md", "docs/results.md")
INTERVAL = re.compile(r"\([+-]?\d*\.\d+ to [+-]?\d*\.\d+")
SEED = re.compile(r"\bseeds?\b")


def tables(page: str) -> Iterator[tuple[str, str]]:
    """(a table, itself with the paragraphs before and after it) of a page."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = re.split(r"\n\s*\n", text)
    for place, block in enumerate(blocks):
        if "\n|---|" in block:
            yield block, "\n".join(blocks[max(0, place - 1) : place + 2])


@pytest.mark.parametrize("page", PAGES)
def test_a_table_with_intervals_says_of_how_many_seeds_it_is(page: str) -> None:
    found = [(table, around) for table, around in tables(page) if INTERVAL.search(table)]
    assert found
    assert [table.splitlines()[0] for table, around in found if not SEED.search(around)] == []

"""docs/families.md: a whole row for every family, and no promise beyond the rows; `make docs` runs this too."""

import re
from pathlib import Path

from families import DIFFERENT, FAMILIES, OTHERS
from families_table import COLUMNS, FAILED, FORWARD, STAGES, with_cells
from printed_blocks import section, table_rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/families.md").read_text(encoding="utf-8")
OPTIONAL = "two ranks"
PROMISE = re.compile(r"\b(?:any|every)(?: other)? (?:decoder|model)s? (?:in|of|from|that)\b.{0,30}", re.IGNORECASE)


def test_every_family_has_a_whole_row_at_a_commit() -> None:
    assert with_cells(PAGE, {}) == PAGE
    for table, families in ((STAGES, FAMILIES), (FORWARD, OTHERS)):
        titles = COLUMNS[table]
        found = {row[0]: dict(zip(titles, row, strict=True)) for row in table_rows(section(PAGE, table), *titles)}
        assert list(found) == [family.name for family in families]
        for family in families:
            row = found[family.name]
            assert all(text for column, text in row.items() if column != OPTIONAL), row
            assert FAILED not in row.values(), row
            assert (row["rows"] == "packed") == (not family.why_padded), row
            assert re.match(r"[0-9a-f]{7,}", row["commit"]), row


def test_the_page_promises_what_its_rows_show() -> None:
    prose = " ".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    assert f"Tiny models of {len(FAMILIES)} families of decoders go through every stage" in prose
    assert f"{len(OTHERS)} more are compared at the level of the forward" in prose
    assert f"`make test` takes the {len(DIFFERENT)} that differ most" in prose


def test_no_page_promises_decoders_that_have_no_row() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert len(pages) > 20
    found = {path.name: PROMISE.findall(" ".join(path.read_text(encoding="utf-8").split())) for path in pages}
    assert {name: texts for name, texts in found.items() if texts} == {}

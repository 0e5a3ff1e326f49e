"""Rejected rows are counted by reason, and people are warned where they are many."""

import json
from pathlib import Path

import pytest

from lmgym.data.rejections import (
    DUPLICATE,
    DUPLICATE_PROMPT,
    DUPLICATE_REPLY,
    NO_REPLY,
    NOT_JSON,
    Rejection,
    tally,
    write_rejections,
)
from lmgym.training.reporting import show_rejections


def several(number: int, reason: str, field: str = "(row)", first: int = 0) -> list[Rejection]:
    return [Rejection("a.jsonl", first + line, field, "x", reason) for line in range(number)]


MANY = [*several(3, NOT_JSON), *several(20, NO_REPLY, "chosen", 100), *several(98, DUPLICATE, "(row)", 1000)]


def test_reasons_are_counted_the_most_frequent_first() -> None:
    found = tally(MANY, 201)
    assert found.line == "121 of 201 rows rejected: 98 duplicates, 20 without a reply (field chosen), 3 not JSON"
    assert found.counts == {
        "rejected_rows": 121,
        "rejected_by_reason": {"duplicate": 98, "without a reply (field chosen)": 20, "not JSON": 3},
    }
    assert tally([], 40).line == "0 of 40 rows rejected"
    assert tally([], 40).counts == {"rejected_rows": 0}


def test_duplicate_prompts_are_counted_separately_and_are_no_sign_of_bad_data() -> None:
    found = tally([*several(2, NOT_JSON), *several(32_224, DUPLICATE_PROMPT, "prompt", 10)], 42_537)
    assert found.line == "2 of 42,537 rows rejected: 2 not JSON; not needed: 32,224 duplicate prompts"
    assert found.warning == ""
    assert found.counts["not_needed_by_reason"] == {"duplicate prompt": 32_224}
    both = tally([*several(1, DUPLICATE, "(row)"), *several(2, DUPLICATE_REPLY, "chosen", 10)], 90)
    assert both.line == "1 of 90 rows rejected: 1 duplicate; not needed: 2 duplicate replies"


@pytest.mark.parametrize(("rejected", "warned"), [(5, False), (6, True)])
def test_more_than_one_row_in_twenty_is_warned_about(rejected: int, warned: bool) -> None:
    found = tally(several(rejected, NO_REPLY, "chosen"), 100)
    assert found.is_alarming == warned
    assert found.warning.startswith(
        "warning: 6.0% of the rows are rejected; the first: a.jsonl, line 0, chosen: x"
    ) == (warned)


def test_a_row_that_is_rejected_twice_counts_once() -> None:
    found = tally([Rejection("a", 1, "x", "y", NO_REPLY), Rejection("a", 1, "z", "y", NOT_JSON)], 4)
    assert found.line == "1 of 4 rows rejected: 1 without a reply (field x)"


def test_rare_reasons_are_summed() -> None:
    rejections = [one for i in range(9) for one in several(i + 1, NO_REPLY, f"column {i}", 100 * i)]
    assert tally(rejections, 100).line.endswith("4 without a reply (field column 3), 6 for 3 other reasons")


def test_a_rejection_is_one_printable_line_whatever_its_file_and_field_are_called() -> None:
    odd = Rejection("a\x1b[31m\n.jsonl", 3, "f\udcff" * 100, "several\nlines\x9b " * 500, NO_REPLY)
    counted = tally([odd], 4)
    for message in (str(odd), counted.line, counted.warning):
        assert message.isprintable()
        assert len(message) < 800


def test_text_that_utf_8_cannot_hold_is_written_escaped(tmp_path: Path) -> None:
    write_rejections(tmp_path / "r.jsonl", [Rejection("a\udcff", 1, "\ud800", "ü\n"), Rejection("b", 2, "x", "y")])
    first, _ = (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(first) == {
        "file": "a\udcff", "line": 1, "field": "\ud800", "found": "ü\n", "reason": "unusable", "needed": 0,
    }  # fmt: skip


def test_the_counts_and_the_warning_are_shown_on_a_line_each(capsys: pytest.CaptureFixture) -> None:
    show_rejections(tally([*MANY, Rejection("[bold]a", 7000, "f", "[red]x", NOT_JSON)], 201))
    line, warning = capsys.readouterr().out.splitlines()
    assert line.startswith("122 of 201 rows rejected: 98 duplicates, ")
    assert warning.startswith("warning: 60.7% of the rows are rejected; the first: a.jsonl, line 0, (row): x")
    show_rejections(tally([], 201))
    assert capsys.readouterr().out == "0 of 201 rows rejected\n"

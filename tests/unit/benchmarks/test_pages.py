"""Figures of the pages are those of the result files, and of no older version."""

import json
from pathlib import Path

import pages
import pytest

VERSIONS = {"world": "1.2", "rows": "2"}
RECORD = {"command": "python benchmarks/a.py", "rests_on": {"world": "1.2"}}
FOUND = {"runs": [{"score": 0.912, "low": 0.881}, {"score": 0.9}], "share": 0.431, "steps": 1490}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page on which every number needs a file, beside a.json."""
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "COVERED", (tmp_path / "page.md",))
    pages.read_result.cache_clear()
    write(tmp_path)
    yield tmp_path / "page.md"
    pages.read_result.cache_clear()


def write(folder: Path, **changes: object) -> None:
    (folder / "a.json").write_text(json.dumps(RECORD | FOUND | changes))


def wrong(page: Path, text: str) -> list[str]:
    page.write_text(text)
    return pages.check(page, VERSIONS)


SCORES = "It rose to .912 (.881 at least).\n\n<!-- figures of a.json: runs/0/{score,low} .3f -->\n"


def test_the_pages_agree_with_their_files() -> None:
    assert [line for page in pages.PAGES for line in pages.check(page, pages.code_versions())] == []


def test_figures_of_a_file_may_be_written_in_several_ways(page: Path) -> None:
    assert wrong(page, SCORES) == []
    assert wrong(page, SCORES.replace(".912", "+0.912")) == []
    text = "From 1,490 steps on, 43% of them.\n<!-- figures of a.json: steps .0f; share .0% -->\n"
    assert wrong(page, text) == []


@pytest.mark.parametrize(
    ("pointer", "text"),
    [
        ("runs/*/score .3f", ".912 .900"),
        ("min(runs/*/score) .2f", "0.90"),
        ("mean(runs/*/score) .3f", "0.906"),
        ("runs/0/score / runs/1/score - 1 .1%", "1.3%"),
    ],
)
def test_figures_may_be_computed(page: Path, pointer: str, text: str) -> None:
    assert wrong(page, f"{text}\n<!-- figures of a.json: {pointer} -->\n") == []


def test_a_changed_figure_is_found_with_its_line_and_the_files_value(page: Path) -> None:
    [line] = wrong(page, SCORES.replace(".912", ".921"))
    assert line == "page.md:1: .921 stands here; runs/0/score of results/a.json is .912"


def test_a_figure_with_another_sign_or_fewer_digits_is_found(page: Path) -> None:
    for other in ("-.912", ".91", ".9120", "91.2%"):
        assert len(wrong(page, SCORES.replace(".912", other))) == 1, other


def test_figures_in_another_order_are_found(page: Path) -> None:
    assert wrong(page, SCORES.replace("{score,low}", "{low,score}"))


def test_a_figure_that_a_file_no_longer_has_is_found(page: Path) -> None:
    [first, second] = wrong(page, SCORES.replace("{score,low}", "{score,high}"))
    assert "page.md:1: .881 is of no file" in first
    assert "'runs/0/high' is not in results/a.json" in second


def test_a_file_that_is_gone_is_found(page: Path) -> None:
    assert any("no results/b.json" in line for line in wrong(page, SCORES.replace("a.json", "b.json")))


def test_a_number_without_a_pointer_is_found_unless_it_is_said_to_be_no_figure(page: Path) -> None:
    [line] = wrong(page, "A rise of .31, 95% interval.\n")
    assert line.startswith("page.md:1: .31 is of no file")
    assert wrong(page, "A rise of .31.\n<!-- no figures: .31 -->\n") == []
    assert wrong(page, "| rate |\n|---|\n| .31 |\n\n<!-- no figures -->\n") == []
    assert wrong(page, "`--beta 0.1`, [1.5](https://a.org/0.3)\n\n```bash\nrun 0.2\n```\n") == []
    assert len(wrong(page, "A rise.\n<!-- no figures: .31 -->\n")) == 1


def test_a_comment_speaks_of_its_own_section(page: Path) -> None:
    assert len(wrong(page, "A rise of .31.\n\n## Other\n\n<!-- no figures -->\n")) == 1


@pytest.mark.parametrize("typo", ["figure of a.json: share .2f", "table tables.demo of a.json", "no figure", "end"])
def test_a_comment_that_nobody_reads_is_found(page: Path, typo: str) -> None:
    [line] = wrong(page, f"Text.\n\n<!-- {typo} -->\n")
    assert "is read by nobody" in line


def test_numbers_are_found_beside_commas_and_hyphens(page: Path) -> None:
    assert wrong(page, "Of 1,490: 2.26-2.36, .912,.881.\n<!-- figures of a.json: runs/0/{score,low} .3f -->\n") == [
        f"page.md:1: {number} is of no file; needed: a pointer or `no figures` in the comment behind it"
        for number in ("2.26", "2.36")
    ]


@pytest.mark.parametrize("older", ["1.1", "0.9"])
def test_a_file_of_an_older_version_is_found_with_the_command_that_measures_again(page: Path, older: str) -> None:
    write(page.parent, rests_on={"world": older})
    [line] = wrong(page, SCORES)
    assert f"measured with world {older}, the code has 1.2; measure it again by `python benchmarks/a.py`" in line


def test_versions_are_compared_as_numbers(page: Path) -> None:
    write(page.parent, rests_on={"world": "1.2", "rows": "2"})
    page.write_text(SCORES)
    assert pages.check(page, VERSIONS | {"rows": "10"}) != []
    assert pages.check(page, VERSIONS) == []


def test_a_file_that_does_not_say_how_it_came_to_be_is_found(page: Path) -> None:
    (page.parent / "a.json").write_text(json.dumps(FOUND))
    assert "has no `command` and `rests_on`" in wrong(page, SCORES)[0]


def test_a_table_is_written_from_its_file_and_a_changed_cell_is_found(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tables

    monkeypatch.setattr(tables, "share", lambda found: ["| share |", "|---|", f"| {found['share']} |"], raising=False)
    text = pages.rewritten("<!-- table: tables.share of a.json -->\n<!-- end -->\n")
    assert "| 0.431 |" in text
    assert wrong(page, text) == []
    assert wrong(page, text.replace("0.431", "0.413")) == ["page.md:5: tables.share gives '| 0.431 |', not '| 0.413 |'"]
    assert "tables.gone" in wrong(page, text.replace("tables.share", "tables.gone"))[0]

"""Colours of a report's charts: as many as there are lines."""

from pathlib import Path

import pytest
from browser import needs_chromium, open_page

from lmgym.report.charts import lines
from lmgym.report.page import render
from lmgym.report.panels import Panel, Section


def page_of(series: int) -> str:
    chart = lines({f"line {place}": [(0, place), (1, place + 1)] for place in range(series)})
    return render(
        title="Lines", badge={}, lead=[], cards=[], sections=[Section("a", "A", [Panel("b", "B", chart=chart)])]
    )


@needs_chromium
@pytest.mark.parametrize("series", [2, 8, 9, 13])
def test_no_two_lines_of_a_chart_have_one_colour_and_the_legend_has_those_of_the_lines(
    tmp_path: Path, series: int
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(series))
    with open_page(path, 800) as opened:
        of_legend = opened.page.locator(".legend i").evaluate_all("dots => dots.map(dot => dot.style.background)")
        drawn = opened.page.locator("svg .mark-line path").evaluate_all(
            "paths => paths.map(path => getComputedStyle(path).stroke)"
        )
        assert opened.said == []
    assert len(set(of_legend)) == series
    assert drawn == of_legend


def test_the_foot_of_a_page_names_the_table_of_metrics_only_where_there_is_one() -> None:
    assert "Every metric" not in page_of(2)

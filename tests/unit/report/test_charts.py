"""The rows of a report's charts."""

from lmgym.report.charts import scatter_path


def test_the_last_point_of_a_path_says_its_update_inside_the_chart() -> None:
    series = {"right": [(0.0, 0.0, 0), (2.0, 1.0, 0.5, 1.5, 1200)], "left": [(1.0, 0.1, 3), (0.0, 0.5, 12)]}
    rows = scatter_path(series, "distance", "gain")["data"]["values"]
    assert [row["update"] for row in rows] == [0, 1200, 3, 12]
    assert [(row.get("before"), row.get("behind")) for row in rows] == [
        (None, None),
        ("after 1,200", None),
        (None, None),
        (None, "after 12"),
    ]

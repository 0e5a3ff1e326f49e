"""Charts of a report as Vega-Lite specifications; page.js gives them their width and colours.

A chart's rows have the fields x, y, low, high and series only: names of metrics and scorers stay values, because
Vega-Lite reads dots and brackets in a field's name as paths. `usermeta` has the names of the series: page.js makes the
legend, whose names are never cut and have their meanings.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lmgym.report.run_files import is_number, thinned

Spec = dict[str, Any]
Points = Sequence[tuple[float, ...]]
"""(x, y) or (x, y, low, high)"""

HEIGHT = 200
MOST_BINS, MOST_BANDS = 30, 4
FEW_VALUES = 100  # of all samples: below, a histogram counts replies instead of showing shares
WITH_BOUNDS = {"filter": "isValid(datum.low)"}


def lines(
    series: Mapping[str, Points],
    x: str = "updates",
    y: str = "",
    points: Iterable[str] = (),
    marks: Sequence[int] = (),
    kept: int | None = None,
    levels: Mapping[str, float] | None = None,
    single: Mapping[str, Sequence[Points]] | None = None,
) -> Spec:
    """Lines by name, with a band where points have low and high; dots too for the names in `points`. Below them thin
    lines of the `single` runs that a name stands for.

    `marks` are updates with a dashed vertical rule, `kept` is one with a solid rule; `levels` are named values of y,
    with a dashed horizontal one each.
    """
    rows = [row for name, found in series.items() for row in _rows(name, thinned(found))]
    dotted, color = set(points), _color(list(series))
    encoding = {"x": _axis("x", x), "y": _axis("y", y), "color": color}
    layers: list[Spec] = []
    for updates, style in ((marks, {"strokeDash": [3, 3]}), ([] if kept is None else [kept], {"strokeWidth": 2})):
        if updates:
            rule = {"type": "rule", "opacity": 0.6, **style}
            values = [{"x": update} for update in updates]
            layers.append({"data": {"values": values}, "mark": rule, "encoding": {"x": _axis("x", x)}})
    if levels:
        layers += _levels(levels, y)
    if any("low" in row for row in rows) and len(series) <= MOST_BANDS:
        band = {"x": _axis("x", x), "y": _axis("low", y), "y2": {"field": "high"}, "color": color}
        layers.append({"transform": [WITH_BOUNDS], "mark": _band(), "encoding": band})
    if single:
        thin = [
            row | {"run": f"{name} {place}"}
            for name, runs in single.items()
            for place, found in enumerate(runs)
            for row in _rows(name, [point[:2] for point in thinned(found)])
        ]
        detail = {"detail": {"field": "run", "type": "nominal"}}
        mark = {"type": "line", "strokeWidth": 1, "opacity": 0.45}
        layers.append({"data": {"values": thin}, "mark": mark, "encoding": encoding | detail})
    layers.append({"mark": {"type": "line", "strokeWidth": 2}, "encoding": encoding})
    shown = [name for name in series if name in dotted or len(series[name]) < 3]
    if shown:
        chosen = {"filter": {"field": "series", "oneOf": shown}}
        layers.append({"transform": [chosen], "mark": _dot(), "encoding": encoding})
    layers += _hover(x, y, color)
    return {"data": {"values": rows}, "height": HEIGHT, "layer": layers, "usermeta": {"series": list(series)}}


def scatter_path(series: Mapping[str, Points], x: str, y: str) -> Spec:
    """Points (x, y, update) or (x, y, low, high, update), joined in their order; a dashed rule at 0.

    Error bars where they have low and high. The last point of each series shows its update, the others when pointed at.
    """
    rows = []
    places = [point[0] for found in series.values() for point in found]
    middle = (min(places) + max(places)) / 2 if places else 0
    for name, found in series.items():
        own = _rows(name, [point[:-1] for point in found])
        rows += [row | {"update": point[-1]} for row, point in zip(own, found, strict=True)]
        if own:
            # inside the chart: behind a point on the left, before one on the right
            side = "before" if own[-1]["x"] > middle else "behind"
            rows[-1][side] = f"after {found[-1][-1]:,}"
    color = _color(list(series))
    encoding = {"x": _axis("x", x), "y": _axis("y", y), "color": color, "order": {"field": "order"}}
    bars = {"x": _axis("x", x), "y": _axis("low", y), "y2": {"field": "high"}, "color": color}
    after = {"field": "update", "title": "after update", "format": ",d"}
    labels = [
        {
            "transform": [{"filter": f"isValid(datum.{side})"}],
            "mark": {"type": "text", "align": align, "dx": shift, "dy": -8},
            "encoding": {"x": _axis("x", x), "y": _axis("y", y), "text": {"field": side, "type": "nominal"}},
        }
        for side, align, shift in (("before", "right", -7), ("behind", "left", 7))
        if any(side in row for row in rows)  # Vega warns of a layer without rows
    ]
    return {
        "data": {"values": rows},
        "usermeta": {"series": list(series)},
        "height": HEIGHT + 60,
        "layer": [
            {
                "data": {"values": [{"y": 0}]},
                "mark": {"type": "rule", "strokeDash": [3, 3], "opacity": 0.5},
                "encoding": {"y": _axis("y", y)},
            },
            {"transform": [WITH_BOUNDS], "mark": {"type": "rule", "opacity": 0.5}, "encoding": bars},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": encoding},
            {"mark": _dot() | {"size": 50}, "encoding": encoding | {"tooltip": [*_tooltip(x, y), after]}},
            *labels,
        ],
    }


def histogram(samples: Mapping[str, Sequence[float]], x: str, of: str = "replies") -> Spec:
    """Each sample in the same bins, drawn over one another: numbers where there are few, else shares of each.

    `of` says what is counted.
    """
    values = {name: np.asarray([v for v in found if is_number(v)], dtype=float) for name, found in samples.items()}
    values = {name: found for name, found in values.items() if len(found)}
    rows: list[Spec] = []
    counts = sum(map(len, values.values())) < FEW_VALUES
    if values:
        everything = np.concatenate(list(values.values()))
        bins = min(MOST_BINS, max(5, round(len(everything) ** 0.5)))
        edges = np.histogram_bin_edges(everything, bins=bins)
        for name, found in values.items():
            numbers = np.histogram(found, edges)[0]
            heights = numbers if counts else numbers / len(found)
            spans = zip(edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True)
            rows += [{"x": low, "high": high, "y": height, "series": name} for low, high, height in spans]
    what, form = f"number of {of}" if counts else f"share of {of}", {"format": "d" if counts else "%"}
    encoding = {
        "x": _axis("x", x) | {"bin": {"binned": True}},
        "x2": {"field": "high"},
        "y": _axis("y", what)
        | {"stack": None, "axis": form | {"tickMinStep": 1} if counts else form, "scale": {"zero": True}},
        "color": _color(list(values)),
        "tooltip": _tooltip(x, what),
    }
    return {
        "data": {"values": rows},
        "usermeta": {"series": list(values)},
        "height": HEIGHT,
        "mark": {"type": "bar", "opacity": 0.55},
        "encoding": encoding,
    }


def bars(
    rows: Sequence[tuple[str, float, float | None, float | None]],
    y: str,
    base: float | None = None,
    counts: Sequence[int] = (),
) -> Spec:
    """A bar per label in the order of (label, value, low, high), with known error bars; a dashed rule at `base`.

    `counts` are the numbers of examples of the bars, shown when pointed at.
    """
    values: list[Spec] = [{"x": label, "y": value, "low": low, "high": high} for label, value, low, high in rows]
    tooltip = _tooltip("", y)
    if counts:
        values = [row | {"n": number} for row, number in zip(values, counts, strict=True)]
        tooltip.append({"field": "n", "title": "count"})
    x = {"field": "x", "type": "nominal", "title": None, "sort": [row[0] for row in rows], "axis": {"labelAngle": -30}}
    layers: list[Spec] = [
        {"mark": {"type": "bar", "opacity": 0.8}, "encoding": {"x": x, "y": _axis("y", y), "tooltip": tooltip}},
        {
            "transform": [WITH_BOUNDS],
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": x, "y": _axis("low", y), "y2": {"field": "high"}},
        },
    ]
    if base is not None:
        rule = {"type": "rule", "strokeDash": [3, 3]}
        layers.append({"data": {"values": [{"y": base}]}, "mark": rule, "encoding": {"y": _axis("y", y)}})
    return {"data": {"values": values}, "height": HEIGHT, "layer": layers}


def reliability_diagram(
    points: Sequence[tuple[float, float, int] | tuple[float, float, int, float | None, float | None]],
    x_title: str = "confidence of the scorer: σ(|score difference|)",
    y_title: str = "share of pairs that it got right",
    low: float = 0.5,
) -> Spec:
    """(confidence, accuracy, count, low, high) of each bin, over the diagonal on which confidence is right.

    The ends of the accuracy's interval may be missing; x is in [low, 1].
    """
    rows = [dict(zip(("x", "y", "n", "low", "high"), point, strict=False)) for point in points]
    x = _axis("x", x_title) | {"scale": {"domain": [low, 1]}}
    y = _axis("y", y_title) | {"scale": {"domain": [0, 1]}}
    tooltip = [*_tooltip("confidence", "accuracy"), {"field": "n", "title": "count"}]
    size = {"field": "n", "type": "quantitative", "legend": None, "scale": {"range": [20, 300]}}
    return {
        "data": {"values": rows},
        "height": HEIGHT + 60,
        "layer": [
            {
                "data": {"values": [{"x": low, "y": low}, {"x": 1, "y": 1}]},
                "mark": {"type": "line", "strokeDash": [3, 3], "opacity": 0.6},
                "encoding": {"x": x, "y": y},
            },
            {
                "transform": [WITH_BOUNDS],
                "mark": {"type": "rule", "opacity": 0.6},
                "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}},
            },
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y}},
            {"mark": _dot(), "encoding": {"x": x, "y": y, "size": size, "tooltip": tooltip}},
        ],
    }


def _rows(name: str, points: Points) -> list[Spec]:
    found = []
    for order, point in enumerate(points):
        row: Spec = {"x": point[0], "y": point[1], "series": name, "order": order}
        if len(point) == 4:
            row |= {"low": point[2], "high": point[3]}
        found.append(row)
    return found


def _axis(field: str, title: str) -> Spec:
    of_updates = title == "updates"  # from 0, in whole numbers
    axis = {"format": ",d", "tickMinStep": 1} if of_updates else {}
    scale = {"zero": of_updates}
    return {"field": field, "type": "quantitative", "title": title or None, "scale": scale, "axis": axis}


def _color(names: Sequence[str]) -> Spec:
    return {"field": "series", "type": "nominal", "sort": list(names), "legend": None}


def _tooltip(x: str, y: str) -> list[Spec]:
    return [
        {"field": "series", "title": " "},
        {"field": "x", "title": x or " ", "format": ",.4~r"} if x else {"field": "x", "title": " "},
        {"field": "y", "title": y or "value", "format": ",.4~r"},
        *({"field": bound, "title": bound, "format": ",.4~r"} for bound in ("low", "high")),
    ]


def _hover(x: str, y: str, color: Spec) -> list[Spec]:
    """Invisible points that show their figures under the pointer."""
    over = {"name": "over", "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}}
    opacity = {"condition": {"param": "over", "empty": False, "value": 1}, "value": 0}
    encoding = {"x": _axis("x", x), "y": _axis("y", y), "color": color, "opacity": opacity, "tooltip": _tooltip(x, y)}
    return [{"params": [over], "mark": _dot(), "encoding": encoding}]


def _levels(levels: Mapping[str, float], y: str) -> list[Spec]:
    """Dashed horizontal rules with their names above them, at the left."""
    values = [{"y": value, "name": name} for name, value in levels.items()]
    text = {"type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -2, "opacity": 0.8}
    encoding = {"y": _axis("y", y)}
    return [
        {
            "data": {"values": values},
            "mark": {"type": "rule", "strokeDash": [2, 4], "opacity": 0.6},
            "encoding": encoding,
        },
        {
            "data": {"values": values},
            "mark": text,
            "encoding": encoding | {"x": {"value": 0}, "text": {"field": "name", "type": "nominal"}},
        },
    ]


def _band() -> Spec:
    return {"type": "area", "opacity": 0.18}


def _dot() -> Spec:
    return {"type": "point", "filled": True, "size": 40, "opacity": 1}

"""The page of a lab: every curve, a section a world, and a table of all runs."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from lmgym.apps.lab.curves import Curve, Point, curves_of, write_curves
from lmgym.apps.lab.forms import FORMS, coefficients, errors_by_form, on_grid
from lmgym.console import say
from lmgym.errors import shown_path
from lmgym.report.charts import Points, lines
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table, figure
from lmgym.report.samples import shown
from lmgym.runs.files import write_json

PAGE, CURVES = "report.html", "curves.json"
X = "root of the KL, nats"
COLUMNS = (
    "world",
    "proxy",
    "method",
    "KL weight",
    "seed",
    "gold at the start",
    "at its peak",
    "KL of the peak",
    "last gold",
    "share of the gain lost",
    "last gold at equal length",
    "last score",
    "last words",
)


def write_page(folder: str) -> None:
    """Writes a lab's page and the figures behind it."""
    path = Path(folder)
    curves = curves_of(path)
    write_json(path / CURVES, write_curves(curves))
    (path / PAGE).write_text(lab_page(path.resolve().name, curves), encoding="utf-8")
    say(f"{len(curves)} curves: {shown_path(path / PAGE)}")


def lab_page(name: str, curves: Sequence[Curve]) -> str:
    """The page as HTML."""
    worlds = list(dict.fromkeys(curve.world for curve in curves))
    fallen = [curve for curve in curves if curve.lost is not None and curve.lost >= 0.2]
    return render(
        title=shown(f"Laboratory: {name}"),
        badge={"kind": "good", "words": f"{len(curves)} curves"},
        lead=[
            "Gold is the hidden utility of a reply, which no run optimises; the score is what is optimised. "
            "Both are means over the same held-out prompts at every look.",
            "A curve that rises and falls is over-optimised: the score goes on rising where the gold falls.",
        ],
        cards=[
            Card("runs", str(len(curves))),
            Card("worlds", str(len(worlds))),
            Card("lost a fifth of their gain or more", str(len(fallen)), about="at the last look, since the peak"),
        ],
        sections=[
            *_over_worlds(curves),
            *(_world(world, [curve for curve in curves if curve.world == world]) for world in worlds),
            Section("runs", "All runs", [_table(curves)] if curves else []),
        ],
    )


def _world(world: int, curves: list[Curve]) -> Section:
    def key(curve: Curve) -> tuple[str, float]:
        return curve.method, curve.kl_weight

    panels = []
    for (method, weight), found in groupby(sorted(curves, key=key), key):
        own = list(found)
        title = method.replace("_", " ") + (f", KL weight {weight:g}" if weight else "")
        place = f"world_{world}_{method}_{weight:g}".replace(".", "_")
        panels.append(_chart(f"{place}_gold", f"{title}: gold", own, lambda point: point.gold))
        panels.append(_chart(f"{place}_score", f"{title}: score", own, lambda point: point.reward))
    return Section(f"world_{world}", f"World {world}", panels)


def _over_worlds(curves: Sequence[Curve]) -> list[Section]:
    """Means over worlds of runs without a KL penalty, and which form predicts them."""
    free = [curve for curve in curves if not curve.kl_weight]
    if len({curve.world for curve in free}) < 2:
        return []
    panels, rows = list[Panel](), list[tuple[str, ...]]()
    for method in dict.fromkeys(curve.method for curve in free):
        own = [curve for curve in free if curve.method == method]
        title = method.replace("_", " ")
        by_proxy = {proxy: [c for c in own if c.proxy == proxy] for proxy in dict.fromkeys(c.proxy for c in own)}
        means: dict[str, Points] = {}
        for proxy, found in by_proxy.items():
            d, gains = on_grid(found)
            means[proxy] = [*zip(d.tolist(), gains.mean(0).tolist(), strict=True)]
        about = "Mean over worlds, up to the distance that the runs of all worlds reach."
        panels.append(Panel(f"mean_{method}", f"{title}: gain of gold", about, chart=lines(means, X, "gain of gold")))
        errors = errors_by_form(own)
        rows.append((title, "all", *(f"{errors[form.name]:.2f}" for form in FORMS), "", ""))
        for proxy, found in by_proxy.items():
            errors, (a, b) = errors_by_form(found), coefficients(found)
            rows.append((title, proxy, *(f"{errors[form.name]:.2f}" for form in FORMS), f"{a:.2f}", f"{b:.2f}"))
    columns = ("method", "proxy", *(f"error of: {form.name}" for form in FORMS), "a", "b")
    about = (
        "Error on the farther half of a curve from a fit of the nearer half, in units of gold; a and b are those of "
        "Gao et al.'s form of the method. Intervals are over worlds."
    )
    table = Panel("forms", "Which form predicts", about, table=Table(columns, rows), wide=True)
    return [Section("means", "Over worlds", [*panels, table])]


def _chart(id: str, title: str, curves: Iterable[Curve], value: Callable[[Point], float]) -> Panel:
    several: dict[str, list[Curve]] = {}
    for curve in curves:
        several.setdefault(curve.proxy, []).append(curve)
    series: dict[str, Points] = {
        (proxy if len(own) == 1 else f"{proxy}, seed {curve.seed}"): [(p.distance, value(p)) for p in curve.placed]
        for proxy, own in several.items()
        for curve in own
    }
    return Panel(id, title, chart=lines(series, X, "mean over held-out prompts"))


def _table(curves: Sequence[Curve]) -> Panel:
    rows = [
        (
            *(str(curve.world), shown(curve.proxy), curve.method.replace("_", " "), f"{curve.kl_weight:g}"),
            *(str(curve.seed), figure(curve.points[0].gold), figure(curve.peak.gold), figure(curve.peak.kl)),
            figure(curve.points[-1].gold),
            "–" if curve.lost is None else f"{curve.lost:.0%}",
            *map(figure, (curve.points[-1].equal_length, curve.points[-1].reward, curve.points[-1].words)),
        )
        for curve in curves
    ]
    about = (
        "A peak at the start has no gain to lose. At equal length: the gold at the start's mean length; none where "
        "hardly a reply is as short as that."
    )
    numbers = frozenset({0, *range(3, len(COLUMNS))})
    return Panel("table", "Peaks and ends", about, table=Table(COLUMNS, rows, numbers), wide=True)

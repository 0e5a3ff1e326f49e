"""The page of a lab: every curve, a section a world, and a table of all runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from lmgym.apps.lab.alarms import RULES
from lmgym.apps.lab.budget import Case, judged, read_cases
from lmgym.apps.lab.curves import LOST, Curve, Point, read_curves
from lmgym.apps.lab.forms import FORMS, coefficients, errors_by_form, on_grid
from lmgym.apps.lab.record import VERSION, plan_of
from lmgym.apps.lab.trial import Judged, counts, read_trial, roc, trial_table
from lmgym.apps.world.world import VERSION as WORLD_VERSION
from lmgym.console import say
from lmgym.errors import shown_path
from lmgym.report.charts import Points, lines
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table, figure
from lmgym.report.samples import shown
from lmgym.runs.files import write_json
from lmgym.statistics import Estimate

PAGE, FIGURES = "report.html", "figures.json"
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

ALARM_COLUMNS = ("alarm", "it rings when", "false alarms", "noticed", "AUC", "updates after the peak", "gain kept")
KINDS = {"false alarms": "sound", "noticed": "exploited"}
"""the runs that a share of the alarms' table is of"""


def write_page(folder: str) -> None:
    """Writes a lab's page, and the figures behind it as JSON."""
    path = Path(folder)
    plan = plan_of(path)
    curves = read_curves(path, plan)
    lab = Found(curves, read_cases(path, plan, curves), read_trial(path, plan))
    write_json(path / FIGURES, lab.as_json())
    (path / PAGE).write_text(lab_page(path.resolve().name, lab), encoding="utf-8")
    say(f"{len(lab.curves)} curves: {shown_path(path / PAGE)}")


@dataclass(frozen=True)
class Found:
    """The results of a lab so far."""

    curves: Sequence[Curve]
    cases: Sequence[Case] = ()
    """of the budget"""
    trial: Sequence[Judged] = ()
    """of alarms"""

    def as_json(self) -> dict[str, Any]:
        """Curves, budgets and outcomes, with the tables that are made of them."""
        alarms = [
            {key: vars(cell) if isinstance(cell, Estimate) else cell for key, cell in row.items()}
            for row in trial_table(self.trial)
        ]
        return {
            "lab": VERSION,
            "world": WORLD_VERSION,
            "curves": [asdict(curve) for curve in self.curves],
            "budgets": [
                {"world": case.world, "proxy": case.proxy, "gold": case.gold.tolist(), **vars(case.budget)}
                for case in self.cases
            ],
            "lost": {name: vars(lost) for name, lost in judged(self.cases).items()} if self.cases else {},
            "outcomes": counts(self.trial),
            "alarms": alarms if self.trial else [],
            "trial": [vars(run) for run in self.trial],
        }


def lab_page(name: str, lab: Found) -> str:
    """The page as HTML."""
    curves = lab.curves
    worlds = list(dict.fromkeys(curve.world for curve in curves))
    fallen = [curve for curve in curves if curve.fallen]
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
            Card("over-optimised", str(len(fallen)), about=f"lost {LOST:.0%} or more of their gain since the peak"),
        ],
        sections=[
            *_over_worlds(curves),
            *([_budgets(lab.cases)] if lab.cases else []),
            *([_alarms(lab.trial)] if lab.trial else []),
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


def _budgets(cases: Sequence[Case]) -> Section:
    lost = judged(cases)
    names = {
        "budget": "two halves, one optimised and one watching",
        "constant": "the constant that is best in the other worlds",
        "none": "none: the largest N",
        "budget - constant": "the halves' less the constant's",
    }
    rows = [(names[name], f"{found:.3f}") for name, found in lost.items()]
    about = (
        "Gold lost against the best N, a reply; means over scorers and worlds, intervals over worlds. Halves are "
        "over-optimised earlier than a scorer of all pairs, so a KL that they find is cautious. They see errors of "
        "variance, not what both share: their labels' bias, and that of the model at which both begin."
    )
    table = Table(("stop at the KL of", "gold lost"), rows, frozenset({1}))
    return Section("budget", "How far to optimise without gold", [Panel("lost", "Gold lost", about, table=table)])


def alarm_rows(runs: Sequence[Judged]) -> list[tuple[str, ...]]:
    """The cells of ALARM_COLUMNS, a row an alarm."""
    abouts = {rule.name: rule.about for rule in RULES}
    return [
        (
            *(row["alarm"], abouts[row["alarm"]]),
            *(_share_and_counts(row, name, kind) for name, kind in KINDS.items()),
            f"{row['AUC']:.2f}",
            _quartiles(row["updates after the peak"], ".0f"),
            _quartiles(row["gain kept at the alarm"], ".2f"),
        )
        for row in trial_table(runs)
    ]


def _alarms(runs: Sequence[Judged]) -> Section:
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts(runs).items())
    about = (
        f"{len(runs)} runs against {len({run.scorer for run in runs})} scorers: {kinds}. A run is exploited if it "
        "loses a fifth of its gain of gold or more, on fresh prompts, and sound if it loses less. Intervals are over "
        "scorers; behind the median are the quartiles."
    )
    curves = {rule.name: roc(runs, rule.name) for rule in RULES}
    chart = lines(curves, "share of sound runs that ring", "share of exploited runs that ring")
    return Section(
        "alarms",
        "Alarms on trial",
        [
            Panel("trial", "What alarms said", about, table=Table(ALARM_COLUMNS, alarm_rows(runs)), wide=True),
            Panel("roc", "At every threshold", "An alarm that knows nothing is on the diagonal.", chart=chart),
        ],
    )


def _share_and_counts(row: dict[str, Any], name: str, kind: str) -> str:
    rang, runs = row["runs"][kind]
    return f"{row[name]:.2f}, {rang} of {runs}"


def _quartiles(found: tuple[float, float, float] | None, form: str) -> str:
    return "–" if found is None else f"{found[1]:{form}} ({found[0]:{form}} to {found[2]:{form}})"


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

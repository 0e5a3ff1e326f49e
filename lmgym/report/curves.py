"""Curves of a run over its updates: which metrics belong on one chart, and what a reader should look for."""

from collections.abc import Mapping, Sequence

from lmgym.report.charts import MOST_BANDS, Points, lines, scatter_path
from lmgym.report.curve_table import CURVES, Curve
from lmgym.report.key_figures import after_update
from lmgym.report.known_metrics import definition, metric_of
from lmgym.report.metric import Metric
from lmgym.report.panels import Panel, Table, figure
from lmgym.report.run_files import RunFiles, is_number
from lmgym.report.samples import shown
from lmgym.statistics import ENDS, Bounds

MOST_PROBE_SERIES = 6
OPTIMISED = "reward, optimised"
NO_EVALUATION_SETS = (
    *("reward", "rollout", "monitor", "samples", "scores", "diversity", "capability", "agreement", "equal_length"),
)
"""second parts of metrics that are no evaluation set's"""


def curves(run: RunFiles) -> list[Panel]:
    """The charts of CURVES that the run has metrics for; what was measured once is a figure in a table."""
    marks = [event["step"] for event in run.events if event.get("kind") in ("warning", "alarm") and "step" in event]
    found, once, terms = list[Panel](), dict[str, Points](), dict[str, str]()
    for curve in CURVES:
        series = {label: points for label, names in curve.series.items() if (points := points_of(run, names))}
        further = within(run, curve.within) if curve.within else {}
        series |= further
        if any(len(points) > 1 for points in series.values()):
            levels = reference_lines(run) if curve.id == "reward" else {}
            dots = [*_evaluated(curve), *further]
            chart = lines(series, "updates", unit_of(curve, run), dots, sorted(set(marks)), run.kept_update, levels)
            terms_of_lines = _terms(run, curve.series)
            found.append(Panel(curve.id, curve.title, about_lines(curve, series, run), chart, terms=terms_of_lines))
        else:
            for label, points in series.items():
                title = curve.title if len(curve.series) == 1 else f"{curve.title}: {label}"
                once[title] = points
                terms |= _terms(run, {title: curve.series.get(label, "")})
    return [*found, *_figures("once", "Measured once", "Too few for a curve.", once, terms)]


def _terms(run: RunFiles, series: Mapping[str, str]) -> dict[str, str]:
    """Definitions of a chart's series by their labels."""
    names = {label: next((n for n in given.split("|") if run.series(n)), "") for label, given in series.items()}
    return {label: meaning for label, name in names.items() if name and (meaning := definition(name, run.stage))}


def _figures(id: str, title: str, about: str, series: Mapping[str, Points], terms: Mapping[str, str]) -> list[Panel]:
    """A table of series of one point each; nothing without any."""
    rows = []
    for label, [(update, value, *ends)] in series.items():
        interval = f" ({figure(ends[0])} to {figure(ends[1])})" if ends else ""
        rows.append((label, f"{figure(value)}{interval}", after_update(update)))
    table = Table(("", "value", "measured"), rows, frozenset({1}))
    return [Panel(id, title, about, table=table, terms=terms)] if rows else []


def reference_lines(run: RunFiles) -> dict[str, float]:
    """Returns of other players by name, such as a game's random one, that the run recorded."""
    found = (run.record.get("data") or {}).get("reference_lines")
    return {shown(k): v for k, v in found.items() if is_number(v)} if isinstance(found, dict) else {}


def _evaluated(curve: Curve) -> list[str]:
    """Labels of metrics that are measured at a few updates only: their points are shown."""
    return [label for label, names in curve.series.items() if names.startswith("eval/")]


def points_of(run: RunFiles, names: str) -> Points:
    """Points of the first of `a|b|c` that the run has, with a 95% interval where it is known.

    The KL of an iteration is that of the policy before its updates, and is placed there.
    """
    return first_of(run, names)[1]


def first_of(run: RunFiles, names: str) -> tuple[str, Points]:
    """(the first of `a|b|c` that the run has, its points); the first name, without points, if it has none."""
    for name in names.split("|"):
        if series := run.series(name):
            metric = metric_of(name, run.stage)
            placed = _before_updates(run, series) if metric and metric.before_updates else series
            return name, _with_interval(run, name, placed)
    return names.partition("|")[0], []


def unit_of(curve: Curve, run: RunFiles) -> str:
    """The title of a curve's axis: the unit of its metrics."""
    found = _metrics(curve, run)
    return curve.y or next((metric.unit for metric in found), "")


def about_lines(curve: Curve, series: Mapping[str, Points], run: RunFiles) -> str:
    """A sentence on a curve's lines, and on what their bands are over if there are any."""
    has_bands = len(series) <= MOST_BANDS and any(
        len(points) > 1 and len(point) == 4 for points in series.values() for point in points
    )
    over = dict.fromkeys(metric.over for metric in _metrics(curve, run) if metric.over)
    return f"{curve.about} Bands are 95% intervals over {' and '.join(over)}.".strip() if has_bands else curve.about


def _metrics(curve: Curve, run: RunFiles) -> list[Metric]:
    """The known metrics of a curve that a run has."""
    names = [first_of(run, names)[0] for names in curve.series.values()]
    names += [curve.within + label for label in within(run, curve.within)] if curve.within else []
    return [metric for name in names if run.series(name) and (metric := metric_of(name, run.stage))]


def bounds_of(names: str) -> Bounds | None:
    """The bounds of a figure, named as in `points_of`; None where none are known."""
    given = set(names.split("|"))
    for curve in CURVES:
        own = {name for names in curve.series.values() for name in names.split("|")}
        if given & own or (curve.within and names.startswith(curve.within)):
            return curve.bounds
    return None


def _before_updates(run: RunFiles, series: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A series of iterations, each placed where the iteration before it ended: that may have another metric only."""
    steps = sorted({0, *(line["step"] for line in run.metrics)})
    before = dict(zip(steps[1:], steps, strict=False))
    return [(before[update], value) for update, value in series]


def _with_interval(run: RunFiles, name: str, series: Sequence[tuple[int, float]]) -> Points:
    low, high = (dict(run.series(name + end)) for end in ENDS)
    if not all(x in low and x in high for x, _ in series):
        return series
    return [(x, y, low[x], high[x]) for x, y in series]


def within(run: RunFiles, prefix: str) -> dict[str, Points]:
    """Series of the metrics with a prefix, by the rest of their names."""
    names = [name for name in run.metric_names if name.startswith(prefix)]
    shown = [name for name in names if not name.endswith(("_std", "_error", "_gain", *ENDS))]
    return {name.removeprefix(prefix): points_of(run, name) for name in shown}


def over_optimisation(run: RunFiles) -> list[Panel]:
    """Reward and watched scorers against the distance from the reference, if the run was evaluated."""
    series = over_optimisation_series(run)
    return [over_optimisation_chart(series)] if series else []


def over_optimisation_series(run: RunFiles) -> dict[str, Points]:
    """By scorer, (sqrt KL, gain since the start in standard deviations of the replies then, the ends of its interval if
    there is one, update) at each evaluation (Gao et al. 2023, figure 1).
    """
    distance = _distances(run)
    if not distance:
        return {}
    names = {OPTIMISED: "eval/reward/mean", "evaluation scorer": "eval/eval_scorer"}
    monitors = {f"{name}, watched": f"eval/monitor/{name}" for name in within(run, "eval/monitor/")}
    return {label: gains for label, name in (names | monitors).items() if (gains := _gains(run, name, distance))}


def _distances(run: RunFiles) -> dict[int, float]:
    """sqrt(KL) of the policy after so many updates. A line's KL is of the replies before its updates, so that the next
    line has that of the policy that was evaluated. Where that has none, as at the end or without a KL penalty, it is
    that of the evaluation's own line.
    """
    series = run.series("kl/sqrt_reference")
    if len(series) < 2:  # one iteration: its KL is of the policy before all updates
        return {}
    return dict(series) | dict(_before_updates(run, series))


def over_optimisation_chart(series: Mapping[str, Points]) -> Panel:
    """The panel of such series."""
    about = (
        "Each point is an evaluation. As the policy moves away from its reference, the reward that it is trained on "
        "rises; where a watched scorer turns down, the policy has begun to exploit the reward: stop there. The last "
        "point, and without a KL penalty each, is at the distance before its iteration's updates, the last that was "
        "measured."
    )
    chart = scatter_path(series, "√KL to the reference", "gain, in standard deviations at the start")
    trained, watched = "The reward that the policy is trained on.", "A score that the policy is not trained on."
    terms = {label: trained if label.endswith(OPTIMISED) else watched for label in series}
    return Panel("over_optimisation", "Reward against distance", about, chart, terms=terms)


def _gains(run: RunFiles, name: str, distance: Mapping[int, float]) -> Points:
    """(sqrt KL, gain, low, high, update) at each evaluation whose distance is known."""
    series = run.series(name)
    base = "eval/reward" if name == "eval/reward/mean" else name
    stds = dict(run.series("eval/reward/std" if name == "eval/reward/mean" else f"{base}_std"))
    if not series or not stds.get(series[0][0]):
        return []
    first, std = series[0][1], stds[series[0][0]]
    return [
        (distance[int(x)], *((value - first) / std for value in values), int(x))
        for x, *values in _with_interval(run, name, series)
        if x in distance
    ]


def probes(run: RunFiles) -> list[Panel]:
    """A chart per evaluation set, of its first metrics between -1 and 1; the table of metrics has the others."""
    groups: dict[str, dict[str, Points]] = {}
    for name in run.metric_names:
        parts = name.split("/")
        if len(parts) != 3 or parts[0] != "eval" or parts[1] in NO_EVALUATION_SETS or name.endswith(ENDS):
            continue
        series = run.series(name)
        fits = bool(series) and all(-1 <= y <= 1 for _, y in series)
        if fits and len(groups.setdefault(parts[1], {})) < MOST_PROBE_SERIES:
            groups[parts[1]][parts[2]] = _with_interval(run, name, series)
    return [panel for name, series in groups.items() if series for panel in _probe(name, series)]


def _probe(name: str, series: dict[str, Points]) -> list[Panel]:
    """The chart of an evaluation set, or its figures where it was measured once."""
    title, terms = f"Evaluation set: {name}", {label: definition(f"eval/{name}/{label}") for label in series}
    if all(len(points) == 1 for points in series.values()):
        return _figures(f"probe_{name}", title, "", series, terms)
    return [Panel(f"probe_{name}", title, "", lines(series, y="value", points=series), terms=terms)]

"""Tables of docs/over_optimisation.md and docs/laboratory.md, made of result files alone (see pages.py)."""

from collections.abc import Iterable, Sequence

import numpy as np
from tables import Found, Lines, table

from lmgym.apps.lab.alarms import RULES
from lmgym.apps.lab.curves import Curve, load_curves
from lmgym.apps.lab.faults import FAULTS
from lmgym.apps.lab.forms import FORMS, coefficients, errors_by_form
from lmgym.apps.lab.page import ALARM_COLUMNS, alarm_rows
from lmgym.apps.lab.plan import read_plan
from lmgym.apps.lab.trial import Judged, counts
from lmgym.statistics import Estimate, mean

METHODS = {"best_of_n": "best of N", "ppo": "PPO", "grpo": "GRPO"}
PROXIES = {
    "125": "125 pairs",
    "500": "500 pairs",
    "2000": "2,000 pairs",
    "8000": "8,000 pairs",
    "mean-of-four": "2,000 pairs, mean of four scorers",
    "noisy": "2,000 pairs, a quarter labelled wrongly",
}
PLANTED = {"word": "a word", "flattery": "flattery", "praise": "praise of itself", "format": "a format", "": "nothing"}
FAULT_COLUMNS = ("ours", "halves", "other base", "logs", "KL")


def curves_of(found: Found) -> dict[tuple[str, str, float], list[Curve]]:
    """Curves by method, scorer and weight of the KL penalty; one a world."""
    by_run: dict[tuple[str, str, float], list[Curve]] = {}
    for curve in load_curves(found["curves"]):
        by_run.setdefault((curve.method, curve.proxy, curve.kl_weight), []).append(curve)
    return by_run


def over_worlds(values: Iterable[float], curves: Sequence[Curve]) -> Estimate:
    """A mean with its interval over the worlds of the curves."""
    return mean([*values], [curve.world for curve in curves])


def peaks(found: Found) -> Lines:
    """Without a KL penalty: what is gained, where, and what is lost again."""
    rows = []
    for (method, proxy, weight), own in curves_of(found).items():
        if not weight:
            gain = over_worlds((curve.peak.gold - curve.points[0].gold for curve in own), own)
            distance = over_worlds((curve.peak.distance for curve in own), own)
            lost = over_worlds((curve.peak.gold - curve.points[-1].gold for curve in own), own)
            cells = (f"{gain:.2f}", f"{distance:.1f}", f"{lost:.2f}", f"{sum(one.fallen for one in own)} of {len(own)}")
            rows.append((METHODS[method], PROXIES[proxy], *cells))
    return table(
        ("method", "scorer of", "gain at the peak", "root of its KL", "lost by the end", "over-optimised"), rows
    )


def weights(found: Found) -> Lines:
    """Gain at the end by weight of the KL penalty: means over three scorers, in the worlds that have all weights."""
    by_run = curves_of(found)
    proxies = [proxy for method, proxy, weight in by_run if (method, weight) == ("ppo", 0.1)]
    worlds = {curve.world for curve in by_run["ppo", proxies[0], 0.1]}
    known = sorted({weight for *_, weight in by_run})
    rows = []
    for method in ("ppo", "grpo"):
        cells = []
        for weight in known:
            own = [curve for proxy in proxies for curve in by_run[method, proxy, weight] if curve.world in worlds]
            gains = np.array([curve.points[-1].gold - curve.points[0].gold for curve in own])
            cells.append(f"{gains.mean():+.2f} ({gains.min():+.2f} to {gains.max():+.2f})")
        rows.append((METHODS[method], *cells))
    return table(("", *(f"KL weight {weight:g}" for weight in known)), rows)


def forms(found: Found) -> Lines:
    """Error of the farther half of a curve from a fit of the nearer one, over all scorers."""
    rows = []
    for method, title in METHODS.items():
        own = [one for key, curves in curves_of(found).items() if key[0] == method and not key[2] for one in curves]
        errors = errors_by_form(own)
        a, b = coefficients(own)
        rows.append((title, *(f"{errors[form.name]:.2f}" for form in FORMS), f"{a:.2f}", f"{b:.2f}"))
    names = ("R = d (a - b d)", "R = d (a - b log d)", "quadratic, free intercept", "isotonic up, then down")
    return table(("", *names, "a of the method's own form", "b"), rows)


def budgets(found: Found) -> Lines:
    """Utility lost by each way to choose N."""
    names = {
        "constant": "the constant that is best in the other worlds",
        "budget": "two halves, one optimised and one watching",
        "none": "no limit: N = 512",
    }
    return table(
        ("stop at the N of", "utility lost a reply"),
        ((title, f"{Estimate(**found['lost'][name]):.3f}") for name, title in names.items()),
    )


def real(found: Found) -> Lines:
    """A real model's best of N by scorers of few labels: gold's gain at each N in its standard deviations, by seed."""
    by_proxy: dict[str, list[dict]] = {}
    for curve in found["curves"]:
        by_proxy.setdefault(curve["proxy"], []).append(curve)
    known = [int(point["at"]) for point in found["curves"][0]["points"]][1:]
    rows = []
    for proxy, curves in by_proxy.items():
        points = [curve["points"] for curve in curves]
        gains = [[(p["gold"] - own[0]["gold"]) / found["gold_std"] for p in own[1:]] for own in points]
        cells = [", ".join(f"{gain:.2f}" for gain in at) for at in zip(*gains, strict=True)]
        error = max(own[-1]["gold_error"] for own in points) / found["gold_std"]
        words = ", ".join(f"{own[-1]['words']:.1f}" for own in points)
        rows.append(("gold itself" if proxy == "gold" else f"{proxy} labels", *cells, f"{error:.2f}", words))
    return table(("best by the scorer of", *(f"N = {n}" for n in known), "its standard error", "words"), rows)


def judged_runs(found: Found) -> list[Judged]:
    """The runs of the trial of alarms."""
    return [Judged(**run) for run in found["runs"]]


def trial(found: Found) -> Lines:
    """False alarms, what was noticed, when, and what was left by then: a row an alarm."""
    return table(ALARM_COLUMNS, alarm_rows(judged_runs(found)))


def by_fault(found: Found) -> Lines:
    """Outcomes by what was planted, and the exploited runs that each watcher noticed."""
    proxies, runs = read_plan("alarms")[1].proxies, judged_runs(found)
    watchers = [rule.name for rule in RULES if rule.name in FAULT_COLUMNS]
    kinds = ("sound", "neither", "exploited")
    rows = []
    for fault in (*FAULTS, ""):
        own = [run for run in runs if proxies[run.scorer.partition("/")[2]].fault == fault]
        exploited = [run for run in own if run.outcome == "exploited"]
        noticed = (sum(run.rings.get(name) is not None for run in exploited) for name in watchers)
        rows.append((PLANTED[fault], *(counts(own)[kind] for kind in kinds), *noticed))
    return table(("planted", *kinds, *(f"noticed by {name}" for name in watchers)), rows)


def scores(found: Found) -> Lines:
    """The utility that methods earn in one world; of docs/laboratory.md."""
    rows = []
    for line in found["lines"].values():
        seconds = [one for one in line["training_cpu_seconds"] if one is not None]
        rows.append(
            (
                line["label"],
                f"{line['utility']:.2f} ({line['utility_low']:.2f} to {line['utility_high']:.2f})",
                ", ".join(f"{one:.2f}" for one in line["by_seed"]),
                f"{line['words']:.1f}",
                f"{line['garbled']:.0%}",
                f"{np.mean(seconds):.0f}" if seconds else "",
            )
        )
    return table(("policy", "utility", "by seed", "words", "garbled", "training, CPU s"), rows)

"""Curves of a run over its updates: which metrics belong on one chart, and what a reader should look for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmgym.report.charts import MOST_BANDS, Points, lines, scatter_path
from lmgym.report.glossary import definition
from lmgym.report.panels import Panel, Table, figure
from lmgym.report.run_files import RunFiles, is_number
from lmgym.report.samples import shown
from lmgym.statistics import ENDS, Bounds

MOST_PROBE_SERIES = 6
KL, OPTIMISED = "kl/reference", "reward, optimised"
CAPABILITY = "eval/capability/"
BANDS = "Bands are 95% intervals over held-out rows."
NO_EVALUATION_SETS = ("reward", "rollout", "monitor", "samples", "scores", "diversity", "capability", "agreement")
"""second parts of metrics that are no evaluation set's"""


@dataclass(frozen=True)
class Curve:
    """A chart of metrics by label; those that a run lacks are left out, and a chart without any is not drawn."""

    id: str
    title: str
    about: str
    series: Mapping[str, str]
    """label: metric"""
    y: str = ""
    within: str = ""
    """prefix of further metrics, whose labels are the rest of their names"""
    bounds: Bounds | None = None
    """within which every value lies"""


CURVES = (
    Curve(
        "loss",
        "Loss",
        "The held-out loss is what counts: where it rises while the training loss falls, the model "
        "learns its training rows by heart. A point of the training is the mean since the point before.",
        {"training": "train/loss", "held out": "eval/nll|eval/loss"},
        "nats",
    ),
    Curve(
        "accuracy",
        "Accuracy",
        "Share of examples that the model gets right.",
        {"training": "train/accuracy", "held out": "eval/accuracy|eval/token_accuracy"},
        "share of examples",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "margins",
        "Margins",
        "Score of the chosen reply minus that of the rejected one.",
        {"training": "train/margin", "held out": "eval/margin_mean|eval/margin"},
        "score difference",
    ),
    Curve(
        "implicit_rewards",
        "Implicit rewards",
        "Log-ratios to the reference times beta, on held-out rows: what counts is their distance; both may fall.",
        {"chosen": "eval/reward_chosen|eval/reward_liked", "rejected": "eval/reward_rejected|eval/reward_disliked"},
        "reward",
    ),
    Curve(
        "perplexity",
        "Perplexity",
        "Of an output token of held-out rows; lower is better.",
        {"held out": "eval/perplexity"},
        "perplexity",
        bounds=(1.0, math.inf),
    ),
    Curve(
        "calibration_curve",
        "Calibration error",
        "The calibration error (ECE) is 0 where confidence equals accuracy; few pairs raise it. The Brier score is 0 "
        "only for a scorer that is always sure and right.",
        {
            "calibration error (ECE)": "eval/ece",
            "at the temperature of other prompts": "eval/ece_calibrated",
            "Brier score": "eval/brier",
        },
        "error",
    ),
    Curve(
        "reward",
        "Reward",
        "Mean reward per episode: of the replies that the policy learned from, and of replies "
        "to held-out prompts. Rollouts are of the policy before the updates of their iteration.",
        {"rollouts": "reward/mean", "held out": "eval/reward/mean"},
        "reward",
    ),
    Curve(
        "monitors",
        "Scorers that are watched, not optimised",
        "A scorer that the policy cannot exploit: if the "
        "reward rises and this one falls, the policy exploits the reward.",
        {"evaluation scorer": "eval/eval_scorer"},
        "score",
        within="eval/monitor/",
    ),
    Curve(
        "agreement",
        "Agreement of the reward with the watched scorers",
        "Share of pairs of the policy's own replies that the reward and a watched scorer order alike; .5 is chance. "
        "Where it falls, the policy has moved to replies that the reward misjudges.",
        {},
        "share of pairs",
        within="eval/agreement/",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "capabilities",
        "Capabilities",
        "What the model can do besides the task that it is trained on, by lm-eval. "
        "Where a figure falls while the reward rises, the training costs that ability.",
        {},
        "share of rows",
        within=CAPABILITY,
        bounds=(0.0, 1.0),
    ),
    Curve(
        "kl",
        "KL to the reference",
        "How far the policy has moved, in nats per reply. PPO measures it on an iteration's replies, before its "
        "updates.",
        {"KL": "kl/reference|eval/kl"},
        "nats per reply",
        bounds=(0.0, math.inf),
    ),
    Curve(
        "lengths",
        "Length of replies",
        "Lengths that fall to a few tokens or rise to the limit are a sign of a reward that can be exploited.",
        {"rollouts": "rollout/reply_tokens", "held out": "eval/rollout/reply_tokens|eval/samples/tokens"},
        "tokens",
        bounds=(0.0, math.inf),
    ),
    Curve(
        "entropy",
        "Entropy",
        "Of a token; where it falls to 0, the policy says one thing only.",
        {"entropy": "policy/entropy"},
        "nats per token",
    ),
    Curve(
        "diversity",
        "Diversity of replies",
        "Shares of distinct openings (first three words) and of distinct pairs "
        "of words among replies to held-out prompts: where they fall, the policy repeats what the reward likes best.",
        {"openings": "eval/diversity/openings", "pairs of words": "eval/diversity/distinct_2"},
        "share",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "clip_fraction",
        "Clipped tokens",
        "Share of tokens whose ratio was clipped; above .3 the updates are too large.",
        {"clipped": "policy/clip_fraction"},
        "share of tokens",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "explained_variance",
        "Variance that the critic explains",
        "1: the critic predicts the returns; below .1 advantages are almost as noisy as the rewards.",
        {"explained": "values/explained_variance"},
        "share of variance",
    ),
    Curve(
        "policy_loss",
        "Losses of policy and critic",
        "The policy's loss is no measure of progress.",
        {"policy": "loss/policy", "critic": "loss/value"},
        "loss",
    ),
    Curve(
        "groups",
        "Rewards within a group",
        "Groups whose rewards are all equal teach nothing.",
        {"groups of equal rewards": "groups/equal_rewards", "standard deviation": "groups/reward_std"},
        "share, or reward",
    ),
    Curve("gradient", "Norm of the gradient", "Before it is clipped.", {"norm": "train/grad_norm"}, "norm"),
    Curve("learning_rate", "Learning rate", "", {"rate": "train/learning_rate|policy/learning_rate"}, "rate"),
    Curve(
        "speed",
        "Tokens per second",
        "Tokens that are trained on, per second of training (PPO: of the whole iteration, without its evaluation).",
        {"tokens/s": "train/tokens_per_second|rollout/tokens_per_second"},
        "tokens/s",
    ),
)


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
            chart = lines(series, "updates", curve.y, dots, sorted(set(marks)), run.kept_update, levels)
            terms_of_lines = _terms(run, curve.series)
            found.append(Panel(curve.id, curve.title, about_lines(curve, series), chart, terms=terms_of_lines))
        else:
            for label, points in series.items():
                title = curve.title if len(curve.series) == 1 else f"{curve.title}: {label}"
                once[title] = points
                terms |= _terms(run, {title: curve.series.get(label, "")})
    return [*found, *_figures("once", "Measured once", "Too few for a curve.", once, terms)]


def _terms(run: RunFiles, series: Mapping[str, str]) -> dict[str, str]:
    """Definitions of a chart's series by their labels."""
    names = {label: next((n for n in given.split("|") if run.series(n)), "") for label, given in series.items()}
    return {label: meaning for label, name in names.items() if name and (meaning := definition(name))}


def _figures(id: str, title: str, about: str, series: Mapping[str, Points], terms: Mapping[str, str]) -> list[Panel]:
    """A table of series of one point each; nothing without any."""
    rows = []
    for label, [(update, value, *ends)] in series.items():
        interval = f" ({figure(ends[0])} to {figure(ends[1])})" if ends else ""
        rows.append((label, f"{figure(value)}{interval}", f"{update:,.0f}"))
    table = Table(("", "value", "after update"), rows, frozenset({1, 2}))
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
    for name in names.split("|"):
        if series := run.series(name):
            return _with_interval(run, name, _before_updates(run, series) if name == KL else series)
    return []


def about_lines(curve: Curve, series: Mapping[str, Points]) -> str:
    """What a curve's lines are, and their bands if there are any."""
    has_bands = len(series) <= MOST_BANDS and any(len(point) == 4 for points in series.values() for point in points)
    return f"{curve.about} {BANDS}" if has_bands else curve.about


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

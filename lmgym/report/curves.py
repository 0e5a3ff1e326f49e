"""Curves of a run over its updates: which metrics belong on one chart, and what a reader should look for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmgym.report.charts import Points, lines, scatter_path
from lmgym.report.panels import Panel
from lmgym.report.run_files import RunFiles, is_number
from lmgym.report.samples import shown
from lmgym.statistics import ENDS

MOST_PROBE_SERIES = 6
NO_EVALUATION_SETS = ("reward", "rollout", "monitor", "samples", "scores", "diversity")
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


CURVES = (
    Curve(
        "loss",
        "Loss",
        "The held-out loss is what counts: where it rises while the training loss falls, the model "
        "learns its training rows by heart.",
        {"training": "train/loss", "held out": "eval/nll|eval/loss"},
        "nats",
    ),
    Curve(
        "accuracy",
        "Accuracy",
        "Share of examples that the model gets right; the band is a 95% interval.",
        {"training": "train/accuracy", "held out": "eval/accuracy|eval/token_accuracy"},
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
    ),
    Curve(
        "calibration_curve",
        "Calibration error",
        "0 where the scorer's confidence equals its accuracy.",
        {"calibration error (ECE)": "eval/ece", "Brier score": "eval/brier"},
    ),
    Curve(
        "reward",
        "Reward",
        "Mean reward per episode: of the replies that the policy learned from, and of replies "
        "to held-out prompts, with a 95% interval.",
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
    ),
    Curve(
        "kl",
        "KL to the reference",
        "How far the policy has moved, in nats per reply.",
        {"KL": "kl/reference|eval/kl"},
        "nats per reply",
    ),
    Curve(
        "lengths",
        "Length of replies",
        "Lengths that fall to a few tokens or rise to the limit are a sign of a reward that can be exploited.",
        {"rollouts": "rollout/reply_tokens", "held out": "eval/rollout/reply_tokens|eval/samples/tokens"},
        "tokens",
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
    ),
    Curve(
        "clip_fraction",
        "Clipped tokens",
        "Share of tokens whose ratio was clipped; above .3 the updates are too large.",
        {"clipped": "policy/clip_fraction"},
    ),
    Curve(
        "explained_variance",
        "Variance that the critic explains",
        "1: the critic predicts the returns; below .1 advantages are almost as noisy as the rewards.",
        {"explained": "values/explained_variance"},
    ),
    Curve(
        "policy_loss",
        "Losses of policy and critic",
        "The policy's loss is no measure of progress.",
        {"policy": "loss/policy", "critic": "loss/value"},
    ),
    Curve(
        "groups",
        "Rewards within a group",
        "Groups whose rewards are all equal teach nothing.",
        {"groups of equal rewards": "groups/equal_rewards", "standard deviation": "groups/reward_std"},
    ),
    Curve("gradient", "Norm of the gradient", "Before it is clipped.", {"norm": "train/grad_norm"}),
    Curve("learning_rate", "Learning rate", "", {"rate": "train/learning_rate|policy/learning_rate"}),
    Curve("speed", "Tokens per second", "", {"tokens/s": "train/tokens_per_second|rollout/tokens_per_second"}),
)


def curves(run: RunFiles) -> list[Panel]:
    """The charts of CURVES that the run has metrics for."""
    marks = [event["step"] for event in run.events if event.get("kind") in ("warning", "alarm") and "step" in event]
    found = []
    for curve in CURVES:
        series = {label: points for label, names in curve.series.items() if (points := points_of(run, names))}
        if curve.id == "monitors":
            series |= _monitors(run)
        if series:
            levels = reference_lines(run) if curve.id == "reward" else {}
            chart = lines(series, "updates", curve.y, _evaluated(curve), sorted(set(marks)), run.kept_update, levels)
            found.append(Panel(curve.id, curve.title, curve.about, chart))
    return found


def reference_lines(run: RunFiles) -> dict[str, float]:
    """Returns of other players by name, such as a game's random one, that the run recorded."""
    found = (run.record.get("data") or {}).get("reference_lines")
    return {shown(k): v for k, v in found.items() if is_number(v)} if isinstance(found, dict) else {}


def _evaluated(curve: Curve) -> list[str]:
    """Labels of metrics that are measured at a few updates only: their points are shown."""
    return [label for label, names in curve.series.items() if names.startswith("eval/")]


def points_of(run: RunFiles, names: str) -> Points:
    """Points of the first of `a|b|c` that the run has, with a 95% interval where it is known."""
    for name in names.split("|"):
        if series := run.series(name):
            return _with_interval(run, name, series)
    return []


def _with_interval(run: RunFiles, name: str, series: Sequence[tuple[int, float]]) -> Points:
    low, high = (dict(run.series(name + end)) for end in ENDS)
    if not all(x in low and x in high for x, _ in series):
        return series
    return [(x, y, low[x], high[x]) for x, y in series]


def _monitors(run: RunFiles) -> dict[str, Points]:
    names = [name for name in run.metric_names if name.startswith("eval/monitor/")]
    shown = [name for name in names if not name.endswith(("_std", "_error", "_gain", *ENDS))]
    return {name.removeprefix("eval/monitor/"): points_of(run, name) for name in shown}


def over_optimisation(run: RunFiles) -> list[Panel]:
    """Reward and watched scorers against the distance from the reference, if the run was evaluated."""
    series = over_optimisation_series(run)
    return [over_optimisation_chart(series)] if series else []


def over_optimisation_series(run: RunFiles) -> dict[str, Points]:
    """By scorer, (sqrt KL, gain since the start in standard deviations of the replies then) at each evaluation (Gao et
    al. 2023, figure 1).
    """
    distance = _distances(run)
    if not distance:
        return {}
    names = {"reward, optimised": "eval/reward/mean", "evaluation scorer": "eval/eval_scorer"}
    monitors = {f"{name}, watched": f"eval/monitor/{name}" for name in _monitors(run)}
    return {label: gains for label, name in (names | monitors).items() if (gains := _gains(run, name, distance))}


def _distances(run: RunFiles) -> dict[int, float]:
    """sqrt(KL) of the policy after so many updates. A line's KL is of the replies before its updates, so that the next
    line has that of the policy that was evaluated; only the last evaluation has the KL of its own line.
    """
    series = run.series("kl/sqrt_reference")
    if not series:
        return {}
    updates, values = [0, *(update for update, _ in series)], [value for _, value in series]
    return dict(zip(updates, [*values, values[-1]], strict=True))


def over_optimisation_chart(series: Mapping[str, Points]) -> Panel:
    """The panel of such series."""
    about = (
        "Each point is an evaluation. As the policy moves away from its reference, the reward that it is trained on "
        "rises; where a watched scorer turns down, the policy has begun to exploit the reward: stop there."
    )
    chart = scatter_path(series, "√KL to the reference", "gain, in standard deviations at the start")
    return Panel("over_optimisation", "Reward against distance", about, chart)


def _gains(run: RunFiles, name: str, distance: Mapping[int, float]) -> Points:
    """(sqrt KL, gain, low, high) at each evaluation whose distance is known."""
    series = run.series(name)
    base = "eval/reward" if name == "eval/reward/mean" else name
    stds = dict(run.series("eval/reward/std" if name == "eval/reward/mean" else f"{base}_std"))
    if not series or not stds.get(series[0][0]):
        return []
    first, std = series[0][1], stds[series[0][0]]
    return [
        (distance[int(x)], *((value - first) / std for value in values))
        for x, *values in _with_interval(run, name, series)
        if x in distance
    ]


def probes(run: RunFiles) -> list[Panel]:
    """A chart per evaluation set, of its first metrics between -1 and 1; the table of metrics has the others."""
    groups: dict[str, dict[str, Points]] = {}
    for name in run.metric_names:
        parts = name.split("/")
        if len(parts) != 3 or parts[0] != "eval" or parts[1] in NO_EVALUATION_SETS:
            continue
        series = run.series(name)
        fits = bool(series) and all(-1 <= y <= 1 for _, y in series)
        if fits and len(groups.setdefault(parts[1], {})) < MOST_PROBE_SERIES:
            groups[parts[1]][parts[2]] = series
    return [
        Panel(f"probe_{name}", f"Evaluation set: {name}", "", lines(series, points=series))
        for name, series in groups.items()
        if series
    ]

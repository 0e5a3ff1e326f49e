"""Every metric that a stage logs, by its name. All that shows a figure takes its title, unit and meaning from here.

A name is looked up as it is logged: `eval/accuracy`, `train/loss`, `kl/reference`. Names that are made at run time (of
scorers, evaluation sets, labels, tasks) are patterns. The first pattern that matches the whole name counts, so that a
general one stands below those that it includes.
"""

import re
from dataclasses import replace
from functools import cache

from lmgym.report import reward_metrics, rl_metrics, trainer_metrics
from lmgym.report.metric import Metric

TABLE = [*rl_metrics.TABLE, *reward_metrics.TABLE, *trainer_metrics.TABLE]
ENDS_OF_INTERVALS = {"_low": "Lower end", "_high": "Upper end"}
WITHIN = {
    "_within_users": "Only pairs of rows of the same user count: a scorer that merely recognises users has 0.5 here.",
    "_within_prompts": "Only pairs of replies to the same prompt count.",
    "_new": "Over rows of new users.",
    "_old": "Over rows of users who are not new.",
}
_PATTERNS = [(re.compile(pattern), metric) for pattern, metric in TABLE]
MAIN_METRICS = tuple(dict.fromkeys(pattern for pattern, metric in TABLE if metric.main))
"""the metrics by which runs are listed; of those that a run has, the first counts"""


@cache
def metric_of(name: str, stage: str = "") -> Metric | None:
    """The entry of a metric by the name under which a stage, as run.json has it, logs it; of any stage if that is
    empty. None of a name that it does not make.
    """
    for end, words in ENDS_OF_INTERVALS.items():
        if name.endswith(end) and (inner := metric_of(name.removesuffix(end), stage)):
            return replace(inner, about=f"{words} of the 95% interval of {name.removesuffix(end)}.", main=False)
    for pattern, metric in _PATTERNS:
        if (found := pattern.fullmatch(name)) and (not stage or stage in metric.stages):
            title = found.expand(metric.title) or name.rpartition("/")[2].replace("_", " ")
            within = (words for ending, words in WITHIN.items() if name.endswith(ending))
            return replace(metric, title=title, about=" ".join([found.expand(metric.about), *within]))
    return None


def definition(name: str, stage: str = "") -> str:
    """The meaning of a metric, its unit and what its interval rests on, for people; empty if the name is unknown."""
    metric = metric_of(name, stage)
    if metric is None:
        return ""
    unit = f" Unit: {metric.unit}." if metric.unit else ""
    interval = f" Its 95% interval is over {metric.over}." if metric.over else ""
    return f"{metric.about}{unit}{interval}"


def short_name(name: str) -> str:
    """A metric's name in a line of figures; that of an evaluation is told from the same of rollouts."""
    metric, of_rollouts = metric_of(name), metric_of(name.removeprefix("eval/"))
    if metric is None:
        return name
    short = metric.short or metric.title
    same = name.startswith("eval/") and of_rollouts and (of_rollouts.short or of_rollouts.title) == short
    return f"held-out {short}" if same else short


def title_of(name: str, stage: str = "") -> str:
    """A metric's title; the name itself if it is unknown."""
    metric = metric_of(name, stage)
    return metric.title if metric else name

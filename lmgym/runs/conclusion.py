"""The change that a finished run made, how sure it is, and the command to type next: also for `lmgym runs`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.aids import aid
from lmgym.errors import one_line
from lmgym.report.key_figures import NONE_YET
from lmgym.report.known_metrics import title_of
from lmgym.report.run_files import is_number
from lmgym.runs.commands import as_typed, row_flags
from lmgym.runs.launch import STAGES
from lmgym.runs.launching import FORMS, config_of
from lmgym.runs.layout import trained_in
from lmgym.runs.listing import ListedRun, evaluations_of, lines_of, read_run
from lmgym.shell import command, relative

CHAT_SCORERS, IS_POLICY = "chat_scorers", "is_policy"
"""fields of run.json: a policy's rewards that can score a chat, as --scorers names them; of a scorer, whether the model
that it was made of generates"""
NOT_OPTIMISED = ("eval/rollout/reply_tokens", "eval/eval_scorer")
"""metrics that are shown beside the reward of a policy"""
OF_JUDGES = "metrics/both_orders_right"
"""the metric of a policy that gives verdicts on pairs"""


@aid("the result and the next command", list)
def conclude(folder: Path) -> list[str]:
    """The last lines of a finished run: its result, if there are held-out rows, and the command to type next."""
    run = read_run(folder)
    following = next_command(run)
    return [*filter(None, [result(run)]), *([f"next: {following}"] if following else [])]


def result(run: ListedRun) -> str:
    """The main metric before and after on held-out rows, in a sentence; empty where it was not measured before."""
    metric, before, after = run.metric, run.before, run.after
    if metric is None or before is None:
        return ""
    if after is None:
        return f"result: {NONE_YET}, {run.why_none}; {metric.label} on held-out rows was {before:.3g} before training"
    ends, verb = [f"{value:.3g}" for value in (before, after)], "rose" if after > before else "fell"
    change = f"stayed at {ends[1]}" if ends[0] == ends[1] else f"{verb} from {ends[0]} to {ends[1]}"
    said = f"result: {metric.label} on held-out rows {change}"
    if run.interval is not None:
        low, high = run.interval
        clear = _differ(before, run.interval_before, after, run.interval)
        unclear = "" if clear else "; no clear change: more held-out rows narrow the interval"
        said += f" (95% interval {low:.3g} to {high:.3g}){unclear}"
    return said + _beside(run)


def _differ(before: float, ends_before: tuple[float, float] | None, after: float, ends: tuple[float, float]) -> bool:
    """True if the 95% interval of the change excludes 0, from those of both (Zou and Donner 2008, as if independent).

    Figures of the same rows mostly vary together, so that the interval is rather too wide.
    """
    low, high = ends_before or (before, before)
    reach = math.hypot(after - ends[0], high - before) if after > before else math.hypot(ends[1] - after, before - low)
    return abs(after - before) > reach


def _beside(run: ListedRun) -> str:
    """Of a policy that was optimised: what the reward does not see, and the distance from its start."""
    lines = dict(evaluations_of(run.folder))
    first, last = lines.get(0, {}), lines.get(run.measured_after or 0, {})
    found = [
        f"{title_of(name)} {first[name]:.3g} -> {last[name]:.3g}"
        for name in NOT_OPTIMISED
        if name in first and name in last
    ]
    if "kl/reference" in last and run.measured_after != _first_iteration(run.folder):
        found.append(f"KL {last['kl/reference']:.2g} nats per reply")
    if is_number(equal := last.get("groups/equal_rewards")) and equal > 0.5:
        found.append(f"all rewards equal in {equal:.0%} of the last groups")
    return f"; beside it: {', '.join(found)}" if found else ""


def _first_iteration(folder: Path) -> int | None:
    """The update after which a policy's first iteration ended: its replies, and their KL, are those of the start."""
    return next((int(step) for step, line in lines_of(folder) if "kl/reference" in line), None)


def next_command(run: ListedRun, runs: Sequence[ListedRun] = ()) -> str:
    """The command that uses what a run has trained, or watches it; empty for one that did not finish.

    A scorer is optimised against by the newest policy of `runs`, or else by the model that it was made of, on the
    prompts of its own data.
    """
    if run.unfinished:
        return ""
    if run.outcome == "running":
        return command("lmgym", "watch", relative(run.folder))
    stage, model = stage_of(run), trained_in(run.folder)
    if not stage or model is None:
        return command("lmgym", "report", relative(run.folder))
    config = run.record.get("config")
    settings = config if isinstance(config, Mapping) else {}
    return command(*(_optimise(run, model, settings, runs) if stage == "reward" else _chat(model, run, settings)))


def _chat(policy: Path, run: ListedRun, settings: Mapping[str, Any]) -> list[object]:
    """The chat with a policy, and those of its rewards that can score a chat; the verdicts of a judge on its rows."""
    rows = settings.get("eval_prompts") or settings.get("prompts")
    if rows and any(OF_JUDGES in line for _, line in evaluations_of(run.folder)):
        return ["lmgym", "score", f"compare:{relative(policy)}", as_typed("prompts", rows)]
    words: list[object] = ["lmgym", "chat", relative(policy)]
    scorers = run.record.get(CHAT_SCORERS, settings.get("scorers"))
    return [*words, "--scorers", as_typed("scorers", scorers), "--best_of", 4] if scorers else words


def _optimise(run: ListedRun, scorer: Path, settings: Mapping[str, Any], runs: Sequence[ListedRun]) -> list[object]:
    """PPO against a scorer, on the prompts of its rows; an audit where no policy is known."""
    others = (one for one in runs if one.outcome == "finished" and stage_of(one) in ("sft", "preference"))
    policy = next(filter(None, (trained_in(one.folder) for one in others)), None)
    if run.record.get(IS_POLICY, True):
        policy = policy or settings.get("model")
    if not policy or not settings.get("dataset"):
        return ["lmgym", "audit", relative(scorer)]
    named = ("--scorers", f"{one_line(run.text('name'), 60) or 'scorer'}={relative(scorer)}")
    start = ("lmgym", "train", "ppo", FORMS["ppo"].experiment, "--model", relative(policy))
    return [*start, *named, *row_flags(settings, config_of("reward"), config_of("ppo"))]


def stage_of(run: ListedRun) -> str:
    """The stage as `lmgym train` names it; empty if it is not known."""
    return {package: stage for stage, package in STAGES.items()}.get(run.text("stage"), "")

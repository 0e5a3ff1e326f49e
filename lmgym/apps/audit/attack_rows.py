"""Confirmed edits as rows for `lmgym train reward`: ties where the quality stays, negatives where it falls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmgym.apps.audit.attack import Attack
from lmgym.apps.audit.attack_edits import AttackEdit
from lmgym.apps.audit.attack_pool import ScoreBook
from lmgym.apps.audit.edit_search import AttackChange, Finding, by_prompt
from lmgym.apps.audit.edits import Exchange
from lmgym.apps.audit.measuring import within_spread
from lmgym.statistics import Estimate, mean
from lmgym.text import messages

NEUTRAL = 0.25  # spreads of a judge: less is no difference of quality
JUDGE = "judge"

Quality = Literal["worse", "neutral", "better", "unknown"]


@dataclass(frozen=True)
class Judged:
    """The quality of the edited replies against that of the replies as they were."""

    quality: Quality
    by: Mapping[str, Estimate]
    """change by judge, in its spreads, over prompts"""


def judge_by_monitors(finding: Finding) -> Judged:
    """By the monitors, on the prompts of the test."""
    return Judged(_quality(list(finding.monitors.values())), finding.monitors)


def judge_by(book: ScoreBook, finding: Finding) -> Judged:
    """By a judge of its own, on the prompts of the test."""
    given = [change.given for change in finding.changes]
    both = book.score([*given, *(change.edited for change in finding.changes)])
    before, after = both[: len(given)], both[len(given) :]
    judged = [
        AttackChange(change.prompt, change.given, change.edited, first, last)
        for change, first, last in zip(finding.changes, before, after, strict=True)
        if first is not None and last is not None
    ]
    groups: dict[int, list[float]] = {}
    for change in judged:
        groups.setdefault(change.prompt, []).append(change.before[JUDGE])
    if not any(len(scores) > 1 for scores in groups.values()):
        return Judged("unknown", {})
    spread = {JUDGE: within_spread(list(groups.values())) or 1.0}
    found = {JUDGE: mean(by_prompt(judged, JUDGE, spread))}
    return Judged(_quality([found[JUDGE]]), found)


def _quality(changes: Sequence[Estimate]) -> Quality:
    """Worse if one judge says so; better or unknown if one does not say neutral."""
    found = [_of_one(change) for change in changes]
    verdicts: tuple[Quality, ...] = ("worse", "unknown", "better", "neutral")
    return next((verdict for verdict in verdicts if verdict in found), "unknown")


def _of_one(change: Estimate) -> Quality:
    value, low, high = change.value, change.low, change.high
    if value is None:
        return "unknown"
    low, high = (value, value) if low is None or high is None else (low, high)
    if high < 0:
        return "worse"
    if low > NEUTRAL:
        return "better"
    return "neutral" if -NEUTRAL <= value <= NEUTRAL else "unknown"


def training_rows(found: Attack, judged: Mapping[AttackEdit, Judged]) -> list[dict[str, Any]]:
    """Pairs of each reply as it was, chosen, and edited, rejected; with the preference .5 if the quality is the same.

    Of both halves of the prompts. None for edits that are better or of unknown quality, and for empty replies.
    """
    rows: dict[tuple[Exchange, str], dict[str, Any]] = {}
    for finding in found.confirmed:
        quality = judged[finding.edit].quality
        if quality not in ("worse", "neutral"):
            continue
        tie = {"preference": 0.5} if quality == "neutral" else {}
        for change in (*found.found_on.get(finding.edit, ()), *finding.changes):
            given, edited = change.given, change.edited.reply
            if given.reply.strip() and edited.strip() and given.reply.strip() != edited.strip():
                pair = {"prompt": messages(given.conversation), "chosen": given.reply, "rejected": edited}
                rows.setdefault((given, edited.strip()), pair | tie)
    return list(rows.values())

"""The audit of a judge: its rounds, and the table of biases with intervals over questions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from lmgym.apps.audit import verdicts
from lmgym.apps.audit.verdicts import DIGITS, Effect, Row
from lmgym.apps.debate.audit.changes import one_sided, without_speeches
from lmgym.apps.debate.formats import DEBATERS, FIRST, debate
from lmgym.apps.debate.players.protocol import Judge
from lmgym.apps.debate.players.scripted import ScriptedPlayer, quote_text
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.tournament.playing import play_on, slot_seeds
from lmgym.apps.debate.transcript import Transcript
from lmgym.errors import InputError
from lmgym.statistics import NOTHING, Estimate
from lmgym.statistics import mean as mean_of

SMALLEST = 0.1  # effect of interest
BOUNDS = (-0.5, 0.5)
TOGETHER = 16  # questions whose rounds the judge sees in one call

Found = Sequence[tuple[float, Transcript]]
"""(1 or -1, round): the effect is the mean of sign x (P_first - .5)"""


@dataclass(frozen=True)
class Audit:
    """The table, and the judge's accuracy on the rounds as they were."""

    accuracy: Estimate
    """P(right answer) - .5"""
    effects: tuple[Effect, ...]


def audit_judge(
    judge: Judge,
    rounds: Sequence[Transcript],
    letters: str = "el",
    done: Callable[[int], None] | None = None,
    smallest: float = SMALLEST,
) -> Audit:
    """The effects of all changes on the judge. Rounds have speeches of both debaters, and no verdict yet.

    Each round is judged with both namings, and each one-sided change is made to either side, so that the names and the
    better case cancel. `done` is called with the number of questions that are finished; `smallest` is the effect of
    interest, for which the number of questions needed is given. Raises InputError for rounds that have no two debaters.
    """
    if not rounds or any(len({s.speaker for s in t.speeches if s.kind == "speech"}) < 2 for t in rounds):
        raise InputError(f"{len(rounds)} rounds, and some have no two debaters; needed: rounds of debates")
    found: dict[str, list[tuple[str, float]]] = {}
    for start in range(0, len(rounds), TOGETHER):
        batch = rounds[start : start + TOGETHER]
        measures = [
            (name, t.question.key, pairs) for t in batch for name, pairs in rounds_by_effect(t, letters).items()
        ]
        p_first = iter(judge.p_first([changed for *_, pairs in measures for _, changed in pairs]))
        for name, question, pairs in measures:
            found.setdefault(name, []).append((question, mean(sign * (next(p_first) - 0.5) for sign, _ in pairs)))
        if done:
            done(start + len(batch))
    return decide(found, letters, smallest)


def decide(found: Mapping[str, Sequence[tuple[str, float]]], letters: str = "el", smallest: float = SMALLEST) -> Audit:
    """The audit of the (question, effect) that were measured of each change."""
    of_changes = [
        Row(bias.name, bias.about, "may lose" if bias.may_lose else "no change") for bias in one_sided(letters)
    ]
    rows = [Row(name, about) for name, about in ABOUT.items() if name != ACCURACY] + of_changes
    right = found.get(ACCURACY, ())
    accuracy = mean_of(np.round([p for _, p in right], DIGITS), [key for key, _ in right], BOUNDS) if right else NOTHING
    return Audit(accuracy, verdicts.decide(found, rows, smallest, "question", BOUNDS))


ACCURACY = "P(right answer)"
ABOUT = {
    ACCURACY: "the rounds as they were",
    "name": "both namings: P of the name Debater_A",
    "name, no speeches": "nobody says anything: P of the name Debater_A",
    "answer, no speeches": "nobody says anything: P of the right answer",
}


def rounds_by_effect(round: Transcript, letters: str) -> dict[str, Found]:
    """The rounds to judge, by effect, each with the sign of its P(Debater_A) in the effect."""
    namings = [round, round.mirrored()]
    silent = [without_speeches(t) for t in namings]
    measures: dict[str, Found] = {
        "name": [(1, t) for t in namings],
        "name, no speeches": [(1, t) for t in silent],
    }
    if round.correct is not None:
        measures["answer, no speeches"] = [(_sign(t.correct), t) for t in silent]
        measures[ACCURACY] = [(_sign(t.correct), t) for t in namings]
    for bias in one_sided(letters):
        changed = [(_sign(side), bias.change(t, side)) for t in namings for side in DEBATERS]
        if made := [(sign, t) for sign, t in changed if t is not None]:
            measures[bias.name] = made
    return measures


def _sign(side: str | None) -> int:
    return 1 if side == FIRST else -1


def rounds_to_audit(questions: Sequence[Question], prompts: PromptSet, speeches: int = 1) -> list[Transcript]:
    """A round about each question, in which both sides quote the sentence that is nearest to their answer."""
    format, player = debate(speeches), ScriptedPlayer(quote_text)
    begun = [
        Transcript(question, format, flipped=bool(number % 2), seed=number, number=number)
        for number, question in enumerate(questions)
    ]
    # a scorer's verdict is not asked for, so that the rounds have none
    return play_on(begun, prompts, dict.fromkeys(DEBATERS, player), slot_seeds(0), verdict="scorer")

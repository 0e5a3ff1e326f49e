"""The audit of a judge: its rounds, and the table of biases with intervals over questions."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean

import numpy as np

from lmgym.environments.debate.audit.changes import one_sided, without_speeches
from lmgym.environments.debate.debate import Debate
from lmgym.environments.debate.formats import DEBATERS, FIRST, debate
from lmgym.environments.debate.players.protocol import Judge
from lmgym.environments.debate.players.scripted import quote_text
from lmgym.environments.debate.prompts.wordings import PromptSet
from lmgym.environments.debate.questions import Question
from lmgym.environments.debate.transcript import Transcript
from lmgym.errors import InputError
from lmgym.report.calibration import accuracy_interval

SAMPLES = 2000
DIGITS = 9  # of an effect: less is rounding
TOGETHER = 16  # questions whose rounds the judge sees in one call

Found = Sequence[tuple[float, Transcript]]
"""(1 or -1, round): the effect is the mean of sign x (P_first - .5)"""


@dataclass(frozen=True)
class Effect:
    """A row of the table: a mean over questions with its 95% interval."""

    bias: str
    about: str
    effect: float
    low: float
    high: float
    questions: int
    may_lose: bool = False

    @property
    def reading(self) -> str:
        """The interval in words: `biased`, `loses, as it may`, `none found`, or `unknown` without any question."""
        if not self.questions:
            return "unknown"
        if self.low > 0:
            return "biased"
        if self.high < 0:
            return "loses, as it may" if self.may_lose else "biased"
        return "none found"

    @property
    def row(self) -> dict[str, object]:
        """The row of audit.json."""
        return {**asdict(self), "reading": self.reading}


@dataclass(frozen=True)
class Audit:
    """The table, and the judge's accuracy on the rounds as they were."""

    accuracy: Effect
    effects: tuple[Effect, ...]


def audit_judge(
    judge: Judge, rounds: Sequence[Transcript], letters: str = "el", done: Callable[[int], None] | None = None
) -> Audit:
    """The effects of all changes on the judge. Rounds have speeches of both debaters, and no verdict yet.

    Each round is judged with both namings, and each one-sided change is made to either side, so that the names and the
    better case cancel. `done` is called with the number of questions that are finished. Raises InputError for rounds
    that have no two debaters.
    """
    if not rounds or any(len({s.speaker for s in t.speeches if s.kind == "speech"}) < 2 for t in rounds):
        raise InputError(f"{len(rounds)} rounds, and some have no two debaters; needed: rounds of debates")
    found: dict[str, list[tuple[str, float]]] = {}
    for start in range(0, len(rounds), TOGETHER):
        batch = rounds[start : start + TOGETHER]
        measures = [(name, t.question.id, pairs) for t in batch for name, pairs in _measures(t, letters).items()]
        p_first = iter(judge.p_first([changed for *_, pairs in measures for _, changed in pairs]))
        for name, question, pairs in measures:
            found.setdefault(name, []).append((question, mean(sign * (next(p_first) - 0.5) for sign, _ in pairs)))
        if done:
            done(start + len(batch))
    known = {bias.name: bias for bias in one_sided(letters)}
    effects = [
        _effect(name, known[name].about if name in known else ABOUT[name], values,
                name in known and known[name].may_lose)
        for name, values in found.items()
    ]  # fmt: skip
    accuracy = next((effect for effect in effects if effect.bias == ACCURACY), _effect(ACCURACY, ABOUT[ACCURACY], []))
    return Audit(accuracy, tuple(effect for effect in effects if effect.bias != ACCURACY))


ACCURACY = "P(right answer)"
ABOUT = {
    ACCURACY: "the rounds as they were",
    "name": "both namings: P of the name Debater_A",
    "name, no speeches": "nobody says anything: P of the name Debater_A",
    "answer, no speeches": "nobody says anything: P of the right answer",
}


def _measures(round: Transcript, letters: str) -> dict[str, Found]:
    """The rounds to judge, by effect."""
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


def _effect(name: str, about: str, found: Sequence[tuple[str, float]], may_lose: bool = False) -> Effect:
    if not found:
        return Effect(name, about, float("nan"), float("nan"), float("nan"), 0, may_lose)
    values = np.round([value for _, value in found], DIGITS)
    _, groups = np.unique([question for question, _ in found], return_inverse=True)
    low, high = accuracy_interval(values, groups, SAMPLES)
    low, high = (round(bound, DIGITS) for bound in (low, high))
    return Effect(name, about, float(values.mean()), low, high, int(groups.max()) + 1, may_lose)


def rounds_to_audit(questions: Sequence[Question], prompts: PromptSet, speeches: int = 1) -> list[Transcript]:
    """A round about each question, in which both sides quote the sentence that is nearest to their answer."""
    rng = np.random.default_rng(0)  # the script draws nothing
    rounds = []
    for number, question in enumerate(questions):
        format = debate(speeches)
        round = Debate(format, prompts)
        round.begin(Transcript(question, format, flipped=bool(number % 2), seed=number, number=number))
        for _ in range(speeches):
            round.step({side: quote_text(round, side, rng) for side in DEBATERS})
        rounds.append(round.transcript)
    return rounds

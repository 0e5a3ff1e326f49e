"""Verdicts of a judge: probabilities of labels, asked once, kept at once, and counted."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from lmgym.errors import InputError, ServerError
from lmgym.scoring.judge_costs import CostEstimate
from lmgym.scoring.judge_models import Each, JudgeModel
from lmgym.scoring.label_probabilities import CUT, WITHHELD, Reading, added, read_written
from lmgym.scoring.verdict_cache import VerdictCache, key_of
from lmgym.text import Conversation, messages

FORMAT = 2  # of the keys: another one forgets what was kept
BATCHES = "batches.json"  # beside the file of verdicts
WORTH_ASKING = 0.01  # share of the labels' probability


@dataclass(frozen=True)
class Verdict:
    """Probabilities of the labels, in their order, which sum to 1."""

    p: tuple[float, ...]
    text: str
    """the model's own words"""
    mass: float
    """what the labels had of the model's probability; 1 for a label that was only written"""
    is_written: bool = False
    """without log-probabilities"""
    is_undivided: bool = False
    """without what labels with a shared beginning have: the model could not be asked to go on from there"""
    thought: str = ""
    """what the model wrote to itself before"""

    @property
    def words(self) -> str:
        """The model's thoughts, and what it wrote with its verdict; empty where it gave the verdict alone."""
        return "\n\n".join(filter(None, (self.thought, self.text if " " in self.text.strip() else "")))

    @property
    def entropy(self) -> float:
        """Nats; 0 for a label that was only written."""
        return -sum(p * math.log(p) for p in self.p if p > 0)


@dataclass
class Counts:
    """Sums over the verdicts of a judge."""

    verdicts: int = 0
    kept: int = 0
    """of these, those that the cache had"""
    unreadable: int = 0
    """without a verdict; of these:"""
    cut: int = 0
    """by the limit of tokens"""
    withheld: int = 0
    """by a content filter of the server, or as a refusal"""
    written: int = 0
    undivided: int = 0
    mass: float = 0.0
    """sum over readable verdicts with log-probabilities"""

    @property
    def with_probabilities(self) -> int:
        """Readable verdicts with log-probabilities."""
        return self.verdicts - self.unreadable - self.written


class Unanswered(ServerError):
    """A server gave no answer; what is known of the questions: the readings, and how many of them were kept before."""

    def __init__(self, message: str, given: Sequence[Reading], kept: int) -> None:
        super().__init__(message)
        self.given, self.kept = given, kept


@final
class Verdicts:
    """Asks a model, of which kept verdicts are not asked for again."""

    def __init__(self, model: JudgeModel, cache: VerdictCache | None = None) -> None:
        self.model, self.counts = model, Counts()
        self.expected: CostEstimate | None = None
        self.withheld = ""
        """the server's words, the first time that it withheld a verdict"""
        self.cache = VerdictCache() if cache is None else cache  # an empty one is false

    def ask(
        self, conversations: Sequence[Conversation], labels: Sequence[str], counted: bool = True
    ) -> list[Verdict | None]:
        """The verdict on each conversation; None where the model gave no label.

        Raises ServerError for a server that gives no answer; the verdicts that it gave before are kept, and counted.
        """
        distinct = list(dict.fromkeys(conversations))
        keys = [self._key(conversation, labels) for conversation in distinct]
        try:
            first, kept = self._readings(keys, partial(self._ask_first, distinct, labels))
        except Unanswered as error:
            if counted:
                self._count([_verdict(reading, labels) for reading in error.given], error.kept)
            raise
        readings = self._divided(distinct, first, labels)
        found = {c: _verdict(reading, labels) for c, reading in zip(distinct, readings, strict=True)}
        if counted:
            self._count(found.values(), kept)
            self._count_faults(readings)
        return [found[conversation] for conversation in conversations]

    def announce(self, conversations: Sequence[Conversation], labels: Sequence[str]) -> None:
        """Says what these questions may cost at most, of a server's model, before they are asked."""
        if self.model.limits is None:
            return
        left = [c for c in dict.fromkeys(conversations) if not self.cache.get(self._key(c, labels))]
        if not left:
            return
        self.expected = CostEstimate.announced(self.model, left)
        if self.model.by_batch:
            self.expected.refuse_over_cost()

            def keep(number: int, reading: Reading) -> None:
                self.cache.put(self._key(left[number], labels), self.model.identity, reading)

            self.model.ask_by_batch(left, labels, keep, self.cache.path.with_name(BATCHES))

    def _count_faults(self, readings: Sequence[Reading]) -> None:
        self.counts.cut += sum(reading.fault == CUT for reading in readings)
        own = [reading.text for reading in readings if reading.fault == WITHHELD]
        self.counts.withheld += len(own)
        self.withheld = self.withheld or next(iter(own), "")

    def _ask_first(
        self, conversations: Sequence[Conversation], labels: Sequence[str], places: list[int], each: Each
    ) -> None:
        asked = [conversations[i] for i in places]
        if self.model.by_batch and self.expected is None:
            raise InputError(
                "a batch takes all questions at once, and this command asks as it goes; needed: lmgym score, judge or "
                "agree, or no --batch"
            )

        def counted(number: int, reading: Reading) -> None:
            each(number, reading)
            if self.expected:
                self.expected.answered(asked[number])

        self.model.ask(asked, labels, counted)

    def _count(self, verdicts: Collection[Verdict | None], kept: int) -> None:
        read = [verdict for verdict in verdicts if verdict]
        self.counts.verdicts += len(verdicts)
        self.counts.kept += kept
        self.counts.unreadable += len(verdicts) - len(read)
        self.counts.written += sum(verdict.is_written for verdict in read)
        self.counts.undivided += sum(verdict.is_undivided for verdict in read)
        self.counts.mass += sum(min(verdict.mass, 1.0) for verdict in read if not verdict.is_written)

    def _divided(
        self, conversations: Sequence[Conversation], readings: Sequence[Reading], labels: Sequence[str]
    ) -> list[Reading]:
        """The readings, with what several labels share divided among them."""
        if not self.model.continues:
            return [_with_written(reading, labels) for reading in readings]
        found = list(readings)
        while shared := [
            (i, begun, mass)
            for i, reading in enumerate(found)
            for begun, mass in reading.pending.items()
            if mass >= WORTH_ASKING * reading.total
        ]:
            for i in {i for i, _, _ in shared}:
                found[i] = replace(found[i], pending={})
            further = self._go_on([conversations[i] for i, _, _ in shared], [begun for _, begun, _ in shared], labels)
            for (i, _, mass), more in zip(shared, further, strict=True):
                masses, pending = ({k: mass * p for k, p in part.items()} for part in (more.masses, more.pending))
                found[i] = Reading(found[i].text, added(found[i].masses, masses), {**found[i].pending, **pending})
        return found

    def _go_on(
        self, conversations: Sequence[Conversation], begun: Sequence[str], labels: Sequence[str]
    ) -> list[Reading]:
        keys = [self._key(c, labels, words) for c, words in zip(conversations, begun, strict=True)]

        def ask(places: list[int], each: Each) -> None:
            self.model.go_on([conversations[i] for i in places], [begun[i] for i in places], labels, each)

        return self._readings(keys, ask)[0]

    def _readings(self, keys: Sequence[str], ask: Callable[[list[int], Each], None]) -> tuple[list[Reading], int]:
        """(the readings of the keys, how many of them were kept before); a new one is kept as soon as it is there."""
        found = {key: reading for key in keys if (reading := self.cache.get(key))}
        places = [i for i, key in enumerate(keys) if key not in found]
        count = len(found)

        def each(number: int, reading: Reading) -> None:
            key = keys[places[number]]
            self.cache.put(key, self.model.identity, reading)
            found[key] = reading

        if places:
            try:
                ask(places, each)
            except ServerError as error:
                given = f"{len(found) - count:,} of {len(places):,} verdicts were given"
                raise Unanswered(
                    f"{given} and are kept, the same command asks for the others: {error}; kept in {self.cache.path}",
                    list(found.values()),
                    count,
                ) from error
        return [found[key] for key in keys], count

    def _key(self, conversation: Conversation, labels: Sequence[str], begun: str = "") -> str:
        settings = [self.model.continues, self.model.tokens]
        return key_of(FORMAT, self.model.identity, messages(conversation), list(labels), begun, settings)


def _with_written(reading: Reading, labels: Sequence[str]) -> Reading:
    """A reading in which the label that was written, if several share its beginning, has all that they share."""
    written = read_written(reading.text, labels)
    if written not in reading.pending:
        return reading
    pending = {begun: mass for begun, mass in reading.pending.items() if begun != written}
    return Reading(reading.text, added(reading.masses, {written: reading.pending[written]}), pending)


def _verdict(reading: Reading, labels: Sequence[str]) -> Verdict | None:
    total = sum(reading.masses.values())
    if total > 0:
        p = tuple(reading.masses.get(label, 0.0) / total for label in labels)
        left_out = sum(reading.pending.values()) >= WORTH_ASKING * reading.total
        return Verdict(p, reading.text, total, is_undivided=left_out)
    if not reading.fault and (label := read_written(reading.text, labels)):
        p = tuple(float(one == label) for one in labels)
        return Verdict(p, reading.text, 1.0, is_written=True, thought=reading.thought)
    return None

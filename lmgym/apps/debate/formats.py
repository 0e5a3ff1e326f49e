"""Formats: the order of speeches as data. A new order is another `Format`, in a file of the user's.

A format is a list of slots. Those who speak in one slot speak at once: none of them reads what another says in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from lmgym.errors import MOST_TOGETHER, InputError, listed, one_line, shown

FIRST, SECOND, JUDGE = "Debater_A", "Debater_B", "Judge"
DEBATERS = (FIRST, SECOND)
CHOSEN = "chosen"
"""in the place of a speaker: the debater whom the judge picked"""
SPEECH_TOKENS, JUDGE_TOKENS = 300, 150
MOST_ROUNDS = 1000

Kind = Literal["speech", "scratchpad", "shown_scratchpad", "question", "pick", "position", "reasoning", "verdict"]
"""speech: heard by all; scratchpad and reasoning: private notes of debaters and of the judge; shown_scratchpad: a
debater's notes that the judge reads, and the opponent does not; question: the judge asks all; pick: the judge says who
speaks next; position: a debater chooses its answer; verdict: the judge decides"""
PRIVATE = frozenset(("scratchpad", "reasoning", "position"))
OF_JUDGE = frozenset(("question", "pick", "reasoning", "verdict"))


def other(debater: str) -> str:
    """The opponent of a debater."""
    return SECOND if debater == FIRST else FIRST


@dataclass(frozen=True)
class Slot:
    """A place in the order of speeches."""

    speakers: tuple[str, ...]
    kind: Kind = "speech"
    round: int = 1
    """from 1"""
    max_tokens: int = SPEECH_TOKENS
    """of each speech in it"""


@dataclass(frozen=True)
class Format:
    """An order of speeches, which ends in a verdict. Raises InputError for an order that no round can follow."""

    name: str
    slots: tuple[Slot, ...]
    isolated: bool = False
    """debaters do not hear each other"""

    def __post_init__(self) -> None:
        for number, slot in enumerate(self.slots):
            self._check(number, slot)
        name = one_line(self.name, 40)
        if not self.slots or self.slots[-1].kind != "verdict":
            raise InputError(f"format {name} does not end in a verdict; needed: Slot((JUDGE,), 'verdict') as its last")
        if any(slot.kind == "verdict" for slot in self.slots[:-1]):
            raise InputError(f"format {name} has a verdict before its end; needed: one, as its last slot")

    def _check(self, number: int, slot: Slot) -> None:
        name = one_line(self.name, 40)
        if slot.kind not in get_args(Kind):
            raise InputError(
                f"slot {number} of format {name} is a {shown(slot.kind)}; needed: {listed(get_args(Kind))}"
            )
        allowed = {JUDGE} if slot.kind in OF_JUDGE else {*DEBATERS, CHOSEN}
        if not slot.speakers or not set(slot.speakers) <= allowed or len(set(slot.speakers)) < len(slot.speakers):
            raise InputError(
                f"slot {number} of format {name}, a {slot.kind}, is of {listed(slot.speakers)}; needed: some of "
                f"{sorted(allowed)}, each once"
            )
        picked = any(earlier.kind == "pick" for earlier in self.slots[:number])
        if CHOSEN in slot.speakers and (len(slot.speakers) > 1 or not picked):
            raise InputError(
                f"slot {number} of format {name} is of the debater that the judge picks; needed: that one alone, "
                "and a slot of kind pick before it"
            )
        if not 1 <= slot.max_tokens <= MOST_TOGETHER:
            raise InputError(
                f"max_tokens={shown(slot.max_tokens)} in slot {number} of {name}; needed: 1 to {MOST_TOGETHER:,}"
            )

    @property
    def debaters(self) -> tuple[str, ...]:
        """The debaters that may speak."""
        speakers = {speaker for slot in self.slots for speaker in slot.speakers}
        return DEBATERS if CHOSEN in speakers else tuple(d for d in DEBATERS if d in speakers)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its slots."""
        return frozenset(slot.kind for slot in self.slots)

    def with_tokens(self, speech: int | None = None, judge: int | None = None) -> "Format":
        """The same order with other limits of tokens; None keeps them."""
        limits = {True: judge, False: speech}
        slots = [
            slot if (limit := limits[slot.kind in OF_JUDGE]) is None else replace(slot, max_tokens=limit)
            for slot in self.slots
        ]
        return replace(self, slots=tuple(slots))

    def with_scratchpads(self, tokens: int | None = None, shown: bool = False) -> "Format":
        """The same order with notes of each debater before each of its speeches, which its author alone reads.

        `tokens`: their limit; None: that of the speech. `shown`: the judge reads them too.
        """
        kind: Kind = "shown_scratchpad" if shown else "scratchpad"
        slots: list[Slot] = []
        for slot in self.slots:
            if slot.kind == "speech":
                slots.append(replace(slot, kind=kind, max_tokens=tokens or slot.max_tokens))
            slots.append(slot)
        return replace(self, name=f"{self.name}_{kind}", slots=tuple(slots))

    def with_reasoning(self) -> "Format":
        """The same order with private notes of the judge before its verdict."""
        notes = replace(self.slots[-1], kind="reasoning")
        return replace(self, name=f"{self.name}_reasoning", slots=(*self.slots[:-1], notes, self.slots[-1]))


def debate(rounds: int = 2, simultaneous: bool = True) -> Format:
    """Both debaters speak in each round, at once, or the second after the first."""
    order = [DEBATERS] if simultaneous else [(FIRST,), (SECOND,)]
    return _format("debate" if simultaneous else "sequential_debate", rounds, [("speech", who) for who in order])


def consultancy(rounds: int = 2) -> Format:
    """One side speaks. A flipped round has it argue for the other answer."""
    return _format("consultancy", rounds, [("speech", (FIRST,))])


def double_consultancy(rounds: int = 2) -> Format:
    """Two consultancies for opposite answers under one judge: neither consultant hears the other."""
    return replace(_format("double_consultancy", rounds, [("speech", DEBATERS)]), isolated=True)


def open_debate(rounds: int = 2) -> Format:
    """The first debater chooses its answer, and the other one has to argue against it (Kenton et al. 2024)."""
    plain = _format("open_debate", rounds, [("speech", DEBATERS)])
    return replace(plain, slots=(Slot((FIRST,), "position"), *plain.slots))


def judge_alone() -> Format:
    """A verdict without any speech: the baseline."""
    return _format("judge_alone", 0, [])


def interactive_debate(rounds: int = 2) -> Format:
    """A debate in which the judge asks a question after each round but the last (Michael et al. 2023)."""
    plain = _format("interactive_debate", rounds, [("speech", DEBATERS), ("question", (JUDGE,))])
    return replace(plain, slots=(*plain.slots[:-2], plain.slots[-1]))


def moderated_debate(speeches: int = 4) -> Format:
    """The judge picks the speaker of each speech."""
    return _format("moderated_debate", speeches, [("pick", (JUDGE,)), ("speech", (CHOSEN,))])


def _format(name: str, rounds: int, order: Sequence[tuple[Kind, tuple[str, ...]]]) -> Format:
    """`rounds` times the order, and a verdict. Raises InputError for rounds out of range."""
    if order and not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"{rounds} rounds of a {name}; needed: 1 to {MOST_ROUNDS:,}")
    slots = [
        Slot(speakers, kind, number, JUDGE_TOKENS if kind in OF_JUDGE else SPEECH_TOKENS)
        for number in range(1, rounds + 1)
        for kind, speakers in order
    ]
    return Format(name, (*slots, Slot((JUDGE,), "verdict", max(rounds, 1), JUDGE_TOKENS)))

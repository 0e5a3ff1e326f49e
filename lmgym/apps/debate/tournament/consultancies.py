"""Double consultancies out of single ones: two opposite consultancies of one player under one judge."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from lmgym.apps.debate.formats import DEBATERS, FIRST, JUDGE, SECOND, Format, Slot, double_consultancy
from lmgym.apps.debate.rendering import HEARD
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.errors import InputError, shown


def join_consultancies(transcripts: Sequence[Transcript]) -> list[Transcript]:
    """Rounds in which both consultants speak and do not hear each other: the k-th consultancies for either answer.

    They are of the same question and the same player; the consultant of the earlier round is Debater_A. Raises
    InputError for rounds that are no consultancies, that have no opposite, or whose opposite has other speeches.
    """
    waiting: dict[tuple[object, ...], deque[Transcript]] = {}
    joined = []
    for given in transcripts:
        own = _as_first(given)
        answer, opposite = own.positions[FIRST], own.positions[SECOND]
        about = (own.question.key, own.players.get(FIRST), frozenset((answer, opposite)))
        if waiting.get((about, opposite)):
            joined.append(_join(waiting[about, opposite].popleft(), own))
        else:
            waiting.setdefault((about, answer), deque()).append(own)
    for left in (transcript for queue in waiting.values() for transcript in queue):
        raise InputError(
            f"round {left.number} has no opposite: nothing by {shown(left.players.get(FIRST, 'the consultant'))} for "
            f"{shown(left.positions[SECOND])} about {shown(left.question.question)}; needed by --convert double: both "
            "answers as often, as --sides flipped plays them"
        )
    joined.sort(key=lambda transcript: transcript.number)
    return [replace(transcript, number=number) for number, transcript in enumerate(joined)]


def _as_first(transcript: Transcript) -> Transcript:
    """A consultancy with Debater_A as the consultant. Raises InputError for another round."""
    speakers = {speech.speaker for speech in transcript.speeches if speech.speaker != JUDGE}
    where, needed = f"round {transcript.number}", "--convert double needs consultancies"
    if len(speakers) != 1:
        raise InputError(f"{where}, a {transcript.format.name}, has {len(speakers)} speakers; {needed}, of one speaker")
    if any(speech.kind in HEARD and speech.speaker == JUDGE for speech in transcript.speeches):
        raise InputError(f"{where} has questions of its judge, which the other one did not hear; {needed} without them")
    if speakers == {FIRST}:
        return transcript
    return replace(transcript.mirrored(), players=_exchanged(transcript))


def _exchanged(transcript: Transcript) -> dict[str, str]:
    """The players of a round whose sides have been exchanged."""
    sides = {FIRST: SECOND, SECOND: FIRST}
    return {sides.get(agent, agent): name for agent, name in transcript.players.items()}


def _join(first: Transcript, other: Transcript) -> Transcript:
    """Both consultancies as one round, in which the second consultant is Debater_B."""
    second = replace(other.mirrored(), players=_exchanged(other))
    said = [[s for s in t.speeches if s.speaker == side] for t, side in ((first, FIRST), (second, SECOND))]
    if [(s.kind, s.round) for s in said[0]] != [(s.kind, s.round) for s in said[1]]:
        raise InputError(
            f"rounds {first.number} and {second.number} have {len(said[0])} and {len(said[1])} speeches about "
            f"{shown(first.question.question)}; needed by --convert double: as many, in the same order"
        )
    slots, speeches = [], list[Speech]()
    for place, pair in enumerate(zip(*said, strict=True)):
        slot = first.format.slots[pair[0].slot]
        slots.append(Slot(DEBATERS, slot.kind, slot.round, slot.max_tokens))
        speeches += [replace(speech, slot=place, p_first=None) for speech in pair]
    format = Format(double_consultancy().name, (*slots, first.format.slots[-1]), isolated=True)
    players = {**first.players, **second.players}
    return replace(first, format=format, speeches=tuple(speeches), verdict=None, players=players)

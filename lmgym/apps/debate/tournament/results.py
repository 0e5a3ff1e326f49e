"""Figures of a tournament, from its transcripts alone.

Design decisions:
- Intervals are over questions: rounds about one question share its difficulty.
- Everything of a debater is given apart for the side with the right answer and the other one.
- A tie, P = .5, is half a win and half a right verdict.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from statistics import mean
from typing import Any

from lmgym.apps.debate.formats import DEBATERS, FIRST, other
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.errors import InputError
from lmgym.scoring.ratings import ELO, Game, rate
from lmgym.statistics import NOTHING, Estimate, share

BINS = 10

Figure = dict[str, float | int | str | None]
Share = Callable[[Transcript], float | None]
"""a number from 0 to 1 of a round; None: it has none"""


def tournament_results(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """The content of results.json."""
    judged = [t for t in transcripts if t.verdict is not None]
    names = sorted({t.players[d] for t in transcripts for d in t.format.debaters if d in t.players})
    met = [t for t in judged if len({t.players.get(d) for d in DEBATERS} - {None}) == 2]
    return {
        "rounds": len(transcripts),
        "questions": len({t.question.key for t in transcripts}),
        "judge": _judge(judged),
        "sides": {
            "first_wins": figure(judged, lambda t: _won(t, FIRST)),
            "correct_wins": figure(judged, _right),
        },
        "players": {name: _player(name, transcripts) for name in names},
        "pairs": [_pair(first, second, met) for first, second in combinations(names, 2)],
        "ratings": _ratings(met),
    }


def figure(transcripts: Sequence[Transcript], of_round: Share) -> Figure:
    """The mean of a share over rounds, with its 95% interval over questions; None without any round."""
    found = [(t.question.key, value) for t in transcripts if (value := of_round(t)) is not None]
    if not found:
        return _figure(NOTHING)
    questions, values = zip(*found, strict=True)
    return _figure(share(values, questions))


def _figure(found: Estimate) -> Figure:
    ends = {"value": found.value, "low": found.low, "high": found.high}
    return {**ends, "rounds": found.rows, "questions": found.units, "reason": found.reason}


def _judge(judged: Sequence[Transcript]) -> dict[str, Any]:
    verdicts = [t.verdict for t in judged if t.verdict is not None]
    return {
        "accuracy": figure(judged, _right),
        "probability_of_right": figure(judged, _p_right),
        "brier": figure(judged, lambda t: None if (p := _p_right(t)) is None else (1 - p) ** 2),
        "readable": mean(v.readable for v in verdicts) if verdicts else None,
        "calibration": _calibration(judged),
        "after_speeches": _after_speeches(judged),
    }


def _after_speeches(judged: Sequence[Transcript]) -> list[dict[str, Any]]:
    """P(right answer) after each slot of speeches that the judge was asked about."""
    slots = sorted({speech.slot for t in judged for speech in t.speeches if speech.p_first is not None})
    return [{"slot": slot, **figure(judged, partial(_p_right_after, slot=slot))} for slot in slots]


def _p_right_after(transcript: Transcript, slot: int) -> float | None:
    found = next((s.p_first for s in transcript.speeches if s.slot == slot and s.p_first is not None), None)
    if found is None or transcript.correct is None:
        return None
    return found if transcript.correct == FIRST else 1 - found


def _calibration(judged: Sequence[Transcript]) -> list[dict[str, float | int]]:
    """By confidence max(P, 1 - P) from .5 to 1: rounds, their mean confidence, and the share of right verdicts."""
    rows = [
        (max(t.verdict.p_first, 1 - t.verdict.p_first), right)
        for t in judged
        if t.verdict is not None and (right := _right(t)) is not None
    ]
    bins: dict[int, list[tuple[float, float]]] = {}
    for confidence, right in rows:
        place = int((confidence - 0.5) * 2 * BINS + 1e-9)  # .6 belongs to the bin that begins there
        bins.setdefault(min(place, BINS - 1), []).append((confidence, right))
    return [
        {
            "from": 0.5 + place / (2 * BINS),
            "rounds": len(own),
            "confidence": mean(confidence for confidence, _ in own),
            "accuracy": mean(right for _, right in own),
        }
        for place, own in sorted(bins.items())
    ]


def _player(name: str, transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """Wins and speeches of a player; a round against itself counts once for each side."""
    played = [(t, side) for t in transcripts for side in t.format.debaters if t.players.get(side) == name]
    met = [(t, side) for t, side in played if t.verdict is not None and t.players.get(other(side)) != name]

    def wins(kept: Callable[[Transcript, str], bool]) -> Figure:
        sides = {id(t): side for t, side in met if kept(t, side)}
        return figure([t for t, _ in met if id(t) in sides], lambda t: _won(t, sides[id(t)]))

    right = [s for t, side in played if t.correct == side for s in _speeches(t, side)]
    wrong = [s for t, side in played if t.correct not in (side, None) for s in _speeches(t, side)]
    return {
        "wins": wins(lambda t, side: True),
        "wins_correct": wins(lambda t, side: t.correct == side),
        "wins_incorrect": wins(lambda t, side: t.correct not in (side, None)),
        "wins_first": wins(lambda t, side: side == FIRST),
        "wins_second": wins(lambda t, side: side != FIRST),
        "speeches_correct": _speech_figures(right),
        "speeches_incorrect": _speech_figures(wrong),
    }


def _pair(first: str, second: str, met: Sequence[Transcript]) -> dict[str, Any]:
    """Wins of the first of two players over the second."""

    def won(transcript: Transcript) -> float | None:
        sides = {transcript.players[side]: side for side in DEBATERS}
        return _won(transcript, sides[first]) if {first, second} == set(sides) else None

    return {"first": first, "second": second, "wins": figure(met, won)}


def _ratings(met: Sequence[Transcript]) -> dict[str, Any]:
    """Bradley-Terry strengths, in nats and as Elo with intervals over questions, the strongest first.

    Each pair that has met has one virtual draw besides its rounds, so that strengths are finite.
    """
    games = [
        Game(t.players[DEBATERS[0]], t.players[DEBATERS[1]], won) for t in met if (won := _won(t, FIRST)) is not None
    ]
    if not games:
        return {"players": [], "note": "no round between two players"}
    try:
        ratings = rate(games, clusters=[t.question.key for t in met])
    except InputError as error:  # pairs of their own choice need not be connected
        return {"players": [], "note": str(error)}
    rows = [
        {
            "player": rating.player,
            "bradley_terry": (rating.elo.value or 0.0) / ELO,
            "elo": rating.elo.value,
            "low": rating.elo.low,
            "high": rating.elo.high,
            "rounds": rating.games,
            "questions": rating.elo.units,
            "reason": rating.elo.reason,
            "score": rating.score,
        }
        for rating in ratings
    ]
    return {"players": rows, "note": ""}


def _speech_figures(speeches: Sequence[Speech]) -> dict[str, float | int | None]:
    quotes = [quote for speech in speeches for quote in speech.quotes]
    return {
        "speeches": len(speeches),
        "words": mean(len(speech.text.split()) for speech in speeches) if speeches else None,
        "quotes": len(quotes),
        "valid": sum(quote.valid for quote in quotes),
        "fuzzy": sum(quote.status == "fuzzy" for quote in quotes),
        "valid_share": mean(quote.valid for quote in quotes) if quotes else None,
        "unclosed": sum(speech.unclosed for speech in speeches),
    }


def _speeches(transcript: Transcript, side: str) -> list[Speech]:
    return [s for s in transcript.speeches if s.speaker == side and s.kind == "speech"]


def _won(transcript: Transcript, side: str) -> float | None:
    """1 if the side won the round, 0 if it lost, 1/2 for a tie; None without a verdict."""
    if transcript.verdict is None:
        return None
    p = transcript.verdict.p_of(side)
    return 0.5 if p == 0.5 else float(p > 0.5)


def _right(transcript: Transcript) -> float | None:
    return None if transcript.correct is None else _won(transcript, transcript.correct)


def _p_right(transcript: Transcript) -> float | None:
    if transcript.correct is None or transcript.verdict is None:
        return None
    return transcript.verdict.p_of(transcript.correct)

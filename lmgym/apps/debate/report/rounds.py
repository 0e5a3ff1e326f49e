"""Rounds to read: two of a question side by side, with P(win) after each slot and quotes that lead to the text.

Design decisions:
- Texts are cut at the ends of all quotes here, so that the script of the page marks pieces and counts no characters.
- A page holds some rounds; transcripts.jsonl has all of them.
"""

import re
from collections.abc import Sequence
from typing import Any

from lmgym.apps.debate.formats import DEBATERS
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.console import clean
from lmgym.report.panels import Panel
from lmgym.report.run_files import Row
from lmgym.report.samples import shown

MOST_QUESTIONS, MOST_ROUNDS = 50, 300  # of a page
QUOTE = re.compile(r"<(invalid_)?quote>(.*?)</(?:invalid_)?quote>", re.DOTALL)


def round_panels(transcripts: Sequence[Transcript]) -> list[Panel]:
    """The viewer of rounds; as many of each question as there is room for."""
    by_question: dict[str, list[Transcript]] = {}
    for transcript in transcripts:
        by_question.setdefault(transcript.question.id, []).append(transcript)
    if not by_question:
        return []
    questions = list(by_question.values())[:MOST_QUESTIONS]
    each = max(2, MOST_ROUNDS // len(questions))
    content = [_question(rounds[:each]) for rounds in questions]
    held = sum(len(question["rounds"]) for question in content)
    about = "Two rounds of a question side by side. A quote in a speech leads to its place in the text."
    if held < len(transcripts):
        about += f" {held:,} of {len(transcripts):,} rounds are here; transcripts.jsonl has all."
    return [Panel("transcripts", "Transcripts", about, viewer={"questions": content}, wide=True)]


def _question(rounds: Sequence[Transcript]) -> Row:
    question = rounds[0].question
    return {
        "question": shown(question.question),
        "options": [shown(option) for option in question.options],
        "correct": question.correct,
        "text": _pieces_of_text(question.text, rounds),
        "rounds": [_round(transcript) for transcript in rounds],
    }


def _pieces_of_text(text: str, rounds: Sequence[Transcript]) -> list[tuple[int, str]]:
    """(start, piece) of a text that is cut where any quote begins or ends."""
    quotes = [quote for t in rounds for speech in t.speeches for quote in speech.quotes if quote.valid]
    places = {place for quote in quotes for place in (quote.start, quote.end) if 0 < place < len(text)}
    ordered = sorted({0, *places})
    return [
        (start, clean(text[start:end])) for start, end in zip(ordered, [*ordered[1:], len(text)], strict=True) if text
    ]


def _round(transcript: Transcript) -> Row:
    players = transcript.players
    sides = [
        {
            "agent": side,
            "player": shown(players.get(side, "")),
            "position": shown(transcript.positions[side]),
            "correct": transcript.correct == side,
        }
        for side in DEBATERS
        if side in transcript.format.debaters
    ]
    names = " against ".join(str(side["player"] or side["agent"]) for side in sides) or transcript.format.name
    return {
        "name": f"{transcript.number}: {names}",
        "sides": sides,
        "slots": [_slot(transcript, number) for number in sorted({s.slot for s in transcript.speeches})],
        "verdict": _verdict(transcript),
    }


def _verdict(transcript: Transcript) -> Row | None:
    verdict = transcript.verdict
    if verdict is None:
        return None
    right = None if transcript.correct is None else verdict.winner == transcript.correct
    return {"p_first": verdict.p_first, "winner": verdict.winner, "right": right, "readable": verdict.readable}


def _slot(transcript: Transcript, number: int) -> Row:
    speeches = [speech for speech in transcript.speeches if speech.slot == number]
    p_first = next((speech.p_first for speech in speeches if speech.p_first is not None), None)
    return {"speeches": [_speech(speech) for speech in speeches], "p_first": p_first}


def _speech(speech: Speech) -> Row:
    notes = [f"{len(speech.candidates)} samples"] if speech.candidates else []
    if speech.unclosed:
        notes.append(f"{speech.unclosed} quote tags did not close")
    return {
        "speaker": speech.speaker,
        "kind": speech.kind,
        "round": speech.round,
        "pieces": _pieces(speech),
        "notes": ", ".join(notes),
    }


def _pieces(speech: Speech) -> list[dict[str, Any]]:
    """A speech as plain text and quotes in their order; a quote without a place is shown, and leads nowhere."""
    pieces: list[dict[str, Any]] = []
    place = 0
    for number, match in enumerate(QUOTE.finditer(speech.text)):
        pieces.append({"text": shown(speech.text[place : match.start()])})
        place = match.end()
        quote = speech.quotes[number] if number < len(speech.quotes) else None
        status = quote.status if quote else "invalid" if match[1] else "exact"
        span = [quote.start, quote.end] if quote and quote.valid else None
        pieces.append({"text": shown(match[2]), "status": status, "span": span})
    return [piece for piece in [*pieces, {"text": shown(speech.text[place:])}] if piece["text"]]

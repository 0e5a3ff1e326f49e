"""Rounds in NYU's longer shape."""

from typing import Any

from lmgym.apps.debate.formats import DEBATERS, FIRST
from lmgym.apps.debate.transcript import Transcript


def to_nyu(transcript: Transcript) -> dict[str, Any]:
    """A round in NYU's longer shape."""
    verdict, positions = transcript.verdict, transcript.positions
    metadata = {
        "question": transcript.question.question,
        "background_text": transcript.question.text,
        "debate_identifier": transcript.question.id,
        "first_debater_answer": positions[FIRST],
        "second_debater_answer": positions[DEBATERS[1]],
        "first_debater_correct": None if transcript.correct is None else transcript.correct == FIRST,
        "winner": None if verdict is None else verdict.winner,
        "first_debater_win_prob": None if verdict is None else verdict.p_first,
    }
    speeches = [{"speaker": s.speaker, "content": s.text, "supplemental": None} for s in transcript.speeches]
    return {"metadata": metadata, "speeches": speeches}

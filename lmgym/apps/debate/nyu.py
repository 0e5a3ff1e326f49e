"""Rounds in the two shapes of NYU's debate project.

The longer shape is {metadata, speeches [{speaker, content, supplemental}]}; human debates are {storyTitle, story,
question, answers, turns [{role, index, text}]}.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmgym.apps.debate.formats import DEBATERS, FIRST, JUDGE, JUDGE_TOKENS, Format, Kind, Slot
from lmgym.apps.debate.questions import read_question
from lmgym.apps.debate.quotes import QuoteRules
from lmgym.apps.debate.transcript import Speech, Transcript, Verdict
from lmgym.apps.debate.verdicts import read_verdict, write_verdict
from lmgym.errors import InputError, listed, shown

RULES = QuoteRules()


def read_nyu(row: Mapping[str, Any]) -> Transcript:
    """A round of either shape. Its quotes are checked anew. Raises InputError for another shape."""
    if {"metadata", "speeches"} <= row.keys():
        return _read_long(row["metadata"], row["speeches"])
    if {"question", "answers", "turns"} <= row.keys():
        return _read_human(row)
    raise InputError(
        f"a transcript has the fields {listed(row)}; needed: metadata and speeches, or question, answers and turns"
    )


def _read_long(metadata: Mapping[str, Any], speeches: Sequence[Mapping[str, Any]]) -> Transcript:
    said = [(s["speaker"], _text(s["content"])) for s in speeches if s["speaker"] in (*DEBATERS, JUDGE)]
    correct = metadata.get("first_debater_correct")
    p_first = metadata.get("first_debater_win_prob")
    return _transcript(
        {
            "question": metadata["question"],
            "options": [metadata["first_debater_answer"], metadata["second_debater_answer"]],
            "correct": None if correct is None else int(not correct),
            "text": metadata.get("background_text") or "",
            "id": metadata.get("debate_identifier") or "",
        },
        said,
        None if p_first is None else float(p_first),
    )


def _read_human(row: Mapping[str, Any]) -> Transcript:
    """A human debate; the judge's probabilities, where its turns have them, are the verdict."""
    said, p_first = [], None
    for turn in row["turns"]:
        if turn.get("role") == "Debater":
            if turn.get("index") not in (0, 1):
                raise InputError(f"a debater's turn has index={shown(turn.get('index'))}; needed: 0 or 1")
            said.append((DEBATERS[turn["index"]], _text(turn["text"])))
        else:
            said.append((JUDGE, _text(turn.get("text") or "")))
            if turn.get("probabilities"):
                p_first = float(turn["probabilities"][0])
    correct = row.get("correctAnswer", row.get("correct"))
    correct = list(row["answers"]).index(correct) if correct in row["answers"] else correct
    story = row.get("story") or ""
    return _transcript(
        {
            "question": row["question"],
            "options": list(row["answers"]),
            "correct": correct,
            "text": story if isinstance(story, str) else " ".join(map(str, story)),
            "id": f"{row.get('storyTitle', '')}_{row['question']}",
        },
        said,
        p_first,
    )


def _text(said: Any) -> str:
    """The text of a speech. Raises InputError for what is no text."""
    if not isinstance(said, str):
        raise InputError(f"a speech is {shown(said)}; needed: text")
    return said


def _transcript(task: Mapping[str, Any], said: Sequence[tuple[str, str]], p_first: float | None) -> Transcript:
    """The round with a slot for each run of speeches by different debaters, and the judge's last words as verdict."""
    question = read_question(task)
    decided = said[-1][1] if said and said[-1][0] == JUDGE else None
    slots: list[Slot] = []
    speeches: list[Speech] = []
    for speaker, text in said[: len(said) - (decided is not None)]:
        kind: Kind = "question" if speaker == JUDGE else "speech"
        last = slots[-1] if slots else None
        if last is None or kind != last.kind or kind == "question" or speaker in last.speakers:
            slots.append(Slot((speaker,), kind, 1 + sum(speaker in s.speakers for s in slots)))
        else:
            slots[-1] = Slot((*last.speakers, speaker), last.kind, last.round)
        # what was found invalid is a quote again, to be checked
        text = text.replace("invalid_quote>", "quote>")
        checked = RULES.check(text, question.text) if kind == "speech" else None
        speeches.append(
            Speech(len(slots) - 1, speaker, kind, slots[-1].round, checked.text, text, checked.quotes, checked.unclosed)
            if checked
            else Speech(len(slots) - 1, speaker, kind, slots[-1].round, text)
        )
    order = (*slots, Slot((JUDGE,), "verdict", 1, JUDGE_TOKENS))
    verdict = None
    if p_first is not None and not 0 <= p_first <= 1:
        raise InputError(f"P({FIRST} wins) is {shown(p_first)}; needed: 0 to 1")
    if p_first is not None:
        verdict = Verdict(p_first, decided or write_verdict(p_first))
    elif decided is not None:
        verdict = read_verdict(decided)
    return Transcript(question, Format("nyu", order), speeches=tuple(speeches), verdict=verdict)

"""Rounds in the two shapes of NYU's debate project.

The longer shape is {metadata, speeches [{speaker, content, supplemental}]}; human debates are {storyTitle, debateId,
story, question, answers, turns [{role, index, text, probabilities}], isJudgeCorrect}.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmgym.apps.debate.formats import DEBATERS, FIRST, JUDGE, JUDGE_TOKENS, SECOND, Format, Kind, Slot
from lmgym.apps.debate.questions import read_question
from lmgym.apps.debate.quotes import QuoteRules
from lmgym.apps.debate.transcript import Speech, Transcript, Verdict
from lmgym.apps.debate.verdicts import read_verdict, write_verdict
from lmgym.data.json_rows import parse_json
from lmgym.data.rejections import RowError
from lmgym.errors import InputError, listed, one_line, regular, shown, shown_path

RULES = QuoteRules()
NO_NUMBER = "-1"
"""the debateId of debates that NYU converted from elsewhere"""
SUM_WITHIN = 0.01
"""how far two probabilities may be from 1 together"""
DEFENDED = 'defend the position that the answer is "{}"'
"""in the prompt of a consultancy's judge"""


class Said(NamedTuple):
    """A speech or turn as it stands in the file."""

    speaker: str
    text: str
    candidates: tuple[Mapping[str, Any], ...] = ()


def read_nyu_file(file: Path) -> Iterator[Transcript]:
    """The rounds of a file of either shape: an object or a list of objects (.json), or an object a line.

    Raises InputError, with file and line, for what is none.
    """
    text = read_text(file, "JSON or JSONL of debates")
    whole = [(1, text)] if file.suffix == ".json" else list(enumerate(text.split("\n"), 1))
    for number, line in whole:
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            for one in row if isinstance(row, list) else [row]:
                if not isinstance(one, dict):
                    raise InputError(f"found {shown(one)}; needed: an object")
                yield read_nyu(one)
        except (RowError, LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            known = isinstance(error, RowError | InputError)
            found = getattr(error, "found", error) if known else one_line(f"{type(error).__name__}: {error}")
            needed = "" if "needed: " in str(found) else "; needed: a debate in NYU's shape"
            raise InputError(f"{shown_path(file)}, line {number}: {found}{needed}") from error


def read_text(file: Path, needed: str) -> str:
    """A file's text. Raises InputError, with what is needed, if it cannot be read as UTF-8."""
    try:
        return regular(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{shown_path(file)} cannot be read: {one_line(str(error))}; needed: {needed}") from error


def in_order(file: Path) -> list[str | int]:
    """A key to sort files by the numbers in their names: TIME_2_0.json is before TIME_10_0.json."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", file.name)]


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
    if isinstance(metadata, list):
        raise InputError("metadata is a list: branches of a tree of rounds, which are no round")
    spoken = [s for s in speeches if s["speaker"] in (*DEBATERS, JUDGE)]
    said = [Said(s["speaker"], _text(s["content"]), _candidates(s)) for s in spoken]
    correct = metadata.get("first_debater_correct")
    answers = [metadata["first_debater_answer"], metadata["second_debater_answer"]]
    if {s.speaker for s in said} & set(DEBATERS) == {SECOND} and not _defends(speeches, answers):
        # a flipped consultancy: the consultant is Debater_B, but its answer is called the first debater's
        answers.reverse()
    p_first, decided = metadata.get("first_debater_win_prob"), None
    if said and said[-1].speaker == JUDGE:
        found = _supplemental(spoken[-1])
        decided = said[-1].text or found.get("decision")
        p_first = (found.get("probabilistic_decision") or {}).get(FIRST) if p_first is None else p_first
    return _transcript(
        {
            "question": metadata["question"],
            "options": answers,
            "correct": None if correct is None else int(not correct),
            "text": metadata.get("background_text") or "",
            "id": metadata.get("debate_identifier") or "",
        },
        said,
        _verdict(None if p_first is None else float(p_first), decided),
    )


def _defends(speeches: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> bool:
    """True if the prompts say that the consultant argues for the second of the answers, and not for the first."""
    prompts = [str(s["content"]) for s in speeches if s["speaker"] not in (*DEBATERS, JUDGE)]
    first, second = (any(DEFENDED.format(answer) in prompt for prompt in prompts) for answer in answers)
    return second and not first


def _supplemental(speech: Mapping[str, Any]) -> Mapping[str, Any]:
    """The notes of a model on its speech; nothing where it made none, or several."""
    found = speech.get("supplemental")
    return found if isinstance(found, Mapping) else {}


def _candidates(speech: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The samples of a best-of-n debater with their scores, the one that was said first; none of another debater."""
    found = _supplemental(speech)
    rejected, score = found.get("rejected_responses"), found.get("preference")
    if speech["speaker"] == JUDGE or not rejected or score is None:
        return ()
    scored = [(_text(speech["content"]), score), *((_text(one["speech"]), one["preference"]) for one in rejected)]
    return tuple({"text": _unchecked(text), "score": _probability(p, "a sample's preference")} for text, p in scored)


def _read_human(row: Mapping[str, Any]) -> Transcript:
    """A human debate; the judge's last probabilities are the verdict."""
    answers = list(row["answers"])
    said, p_first = [], None
    for turn in row["turns"]:
        if "Judge" in turn["role"]:
            said.append(Said(JUDGE, _text(turn.get("text") or "")))
            if turn.get("probabilities"):
                p_first = _p_first(turn["probabilities"])
        elif turn.get("index") in (0, 1):
            said.append(Said(DEBATERS[turn["index"]], _text(turn["text"])))
        else:
            raise InputError(f"a turn of {shown(turn['role'])} has index={shown(turn.get('index'))}; needed: 0 or 1")
    story = row.get("story") or ""
    number = str(row.get("debateId") or NO_NUMBER)
    decided = said[-1].text if said and said[-1].speaker == JUDGE else None
    verdict = _verdict(p_first, decided)
    return _transcript(
        {
            "question": row["question"],
            "options": answers,
            "correct": _correct(row, answers, p_first),
            "text": story if isinstance(story, str) else " ".join(map(str, story)),
            "id": f"{row.get('storyTitle', '')}_{row['question'] if number == NO_NUMBER else number}",
        },
        said,
        verdict if verdict and verdict.readable else None,  # people write what they think, and no name
    )


def _correct(row: Mapping[str, Any], answers: Sequence[str], p_first: float | None) -> Any:
    """The index of the right answer: the one that is named, or else that which the judge was right or wrong to prefer.

    None if neither is known, or the judge preferred none.
    """
    named = row.get("correctAnswer", row.get("correct"))
    if named is not None:
        return answers.index(named) if named in answers else named
    right = row.get("isJudgeCorrect")
    if not isinstance(right, bool | None):
        raise InputError(f"isJudgeCorrect={shown(right)}; needed: true, false or null")
    if right is None or p_first is None or p_first == 0.5:
        return None
    return int((p_first > 0.5) != right)


def _p_first(probabilities: Any) -> float:
    """The first of a judge's two probabilities. Raises InputError for other than two that sum to 1."""
    if isinstance(probabilities, list) and len(probabilities) == 2:
        first, second = (_probability(p, "a judge's probability") for p in probabilities)
        if abs(first + second - 1) <= SUM_WITHIN:
            return first
    raise InputError(f"a judge's probabilities are {shown(probabilities)}; needed: two numbers with the sum 1")


def _probability(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is {shown(value)}; needed: 0 to 1")
    return float(value)


def _text(said: Any) -> str:
    """The text of a speech. Raises InputError for what is no text."""
    if not isinstance(said, str):
        raise InputError(f"a speech is {shown(said)}; needed: text")
    return said


def _unchecked(text: str) -> str:
    """A text in which what was found invalid is a quote again, to be checked."""
    return text.replace("invalid_quote>", "quote>")


def _verdict(p_first: float | None, decided: str | None) -> Verdict | None:
    """The verdict of a probability, or of the judge's last words without one."""
    if p_first is None:
        return read_verdict(decided) if decided else None
    p_first = _probability(p_first, f"P({FIRST} wins)")
    return Verdict(p_first, decided or write_verdict(p_first))


def _transcript(task: Mapping[str, Any], said: Sequence[Said], verdict: Verdict | None) -> Transcript:
    """The round with a slot for each run of speeches by different debaters; the judge's last words are no speech.

    Turns without text are left out, but what follows a judge's has heard what was said before it.
    """
    question = read_question(task)
    slots: list[Slot] = []
    speeches: list[Speech] = []
    follows_judge = False
    for speaker, text, candidates in said[:-1] if said and said[-1].speaker == JUDGE else said:
        if not text.strip():
            follows_judge |= speaker == JUDGE
            continue
        kind: Kind = "question" if speaker == JUDGE else "speech"
        last = slots[-1] if slots else None
        if last is None or follows_judge or "question" in (kind, last.kind) or speaker in last.speakers:
            slots.append(Slot((speaker,), kind, 1 + sum(speaker in s.speakers for s in slots)))
        else:
            slots[-1] = Slot((*last.speakers, speaker), last.kind, last.round)
        follows_judge = False
        place, text = len(slots) - 1, _unchecked(text)
        if kind == "question":
            speeches.append(Speech(place, speaker, kind, slots[-1].round, text))
        else:
            checked = RULES.check(text, question.text)
            found = checked.text, text, checked.quotes, checked.unclosed, candidates
            speeches.append(Speech(place, speaker, kind, slots[-1].round, *found))
    order = (*slots, Slot((JUDGE,), "verdict", 1, JUDGE_TOKENS))
    return Transcript(question, Format("nyu", order), speeches=tuple(speeches), verdict=verdict)

"""Questions from files: rows of our own form, QuALITY, GSM8K and TruthfulQA.

A loader is a function that yields questions: copy one for other data. A row that is no question stops the reading with
its file and line, because figures of debates are over few questions.
"""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from lmgym.apps.debate.questions import Question, from_gold_label, read_question
from lmgym.apps.debate.quotes import simplify
from lmgym.data.json_rows import parse_json
from lmgym.data.rejections import RowError
from lmgym.errors import InputError, one_line, regular, shown, shown_path

Row = Mapping[str, Any]
HARD = 1
"""QuALITY's `difficult` of questions that are kept"""
PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
LONG_LINE = 200  # characters: lines that are longer on average are paragraphs, and not wrapped
NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")
STOP_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        "a an and are as at be by did do does for from had has have he her him his how in is it its of on or she that "
        "the their they this to was were what when where which who why will with",
    )
)


def read_questions(path: str | Path, read_row: Callable[[Row], Iterable[Question]] | None = None) -> list[Question]:
    """The questions of a JSONL file, also a gzipped one, by a loader (None: rows of our own form).

    Raises InputError, with file and line, for a row that is none, and for a file without questions.
    """
    loader = read_row or (lambda row: [read_question(row)])
    questions: list[Question] = []
    for number, row in _rows(Path(path)):
        try:
            questions += loader(row)
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            why = str(error) if isinstance(error, InputError) else one_line(f"{type(error).__name__}: {error}")
            raise InputError(f"{shown_path(path)}, line {number}: {why}") from error
    if not questions:
        raise InputError(f"{shown_path(path)} has no question; needed: rows with question, options and correct")
    return questions


def quality_sample(row: Row) -> Iterator[Question]:
    """A loader for stories with `questions`, whose `gold_label` counts from 1: copy it for data of your own."""
    for place, question in enumerate(row["questions"]):
        name = f"{row['article_id']}-{place}"
        yield from_gold_label(question["question"], question["options"], question["gold_label"], row["text"], name)


def quality(row: Row) -> Iterator[Question]:
    """QuALITY's own `.htmlstripped` rows: hard questions, each with its right answer and the best distractor."""
    text = unwrap(row["article"])
    for place, question in enumerate(row["questions"]):
        if question.get("difficult") != HARD or "gold_label" not in question:
            continue
        name = f"{row['article_id']}-{place}"
        whole = question["options"]
        gold = question["gold_label"]
        if isinstance(gold, bool) or not isinstance(gold, int) or not 1 <= gold <= len(whole):
            raise InputError(f"question {name} has gold_label={shown(gold)}; needed: 1 to {len(whole)}")
        pair = [whole[gold - 1], whole[best_distractor(question) - 1]]
        yield from_gold_label(question["question"], pair, 1, text, name)


def best_distractor(question: Row) -> int:
    """The number, from 1, of the wrong option that most validators call the best, or else that most of them chose.

    The smallest number of several; without any such answer, of all wrong options.
    """
    gold = question["gold_label"]
    for field, answers in (
        ("untimed_best_distractor", question.get("validation") or ()),
        ("untimed_answer", question.get("validation") or ()),
        ("speed_answer", question.get("speed_validation") or ()),
    ):
        given = [answer[field] for answer in answers if answer.get(field)]
        wrong = Counter(n for n in given if n != gold and 1 <= n <= len(question["options"]))
        if wrong:
            return min(wrong, key=lambda number: (-wrong[number], number))
    return 1 if gold != 1 else 2


def unwrap(text: str) -> str:
    """A text that is wrapped by line as paragraphs, with a blank line between; one of long lines is unchanged."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or mean(map(len, lines)) > LONG_LINE:
        return text
    paragraphs = (" ".join(paragraph.split()) for paragraph in PARAGRAPH.split(text))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def gsm8k(row: Row, seed: int = 0) -> Iterator[Question]:
    """A question of GSM8K with its number and a wrong one: `wrong`, or else one that is drawn by the seed."""
    found = NUMBER.findall(str(row["answer"]).rpartition("####")[2])
    if not found:
        raise InputError(f"a row has the answer {shown(row['answer'])}; needed: a number after ####")
    right = found[-1].replace(",", "")
    wrong = row.get("wrong")
    if wrong is None:
        rng = np.random.default_rng([seed, *row["question"].encode()])
        number = float(right)
        moved = number + int(rng.integers(1, max(3, round(abs(number) / 5) + 1))) * int(rng.choice([-1, 1]))
        wrong = f"{moved:g}" if "." in right else str(int(moved))
    yield read_question({"question": row["question"], "options": [right, str(wrong)], "correct": 0})


def truthful(row: Row) -> Iterator[Question]:
    """A question of TruthfulQA with its best answer and the first incorrect one."""
    wrong = row["incorrect_answers"]
    first = wrong.split(";")[0].strip() if isinstance(wrong, str) else wrong[0]
    yield read_question({"question": row["question"], "options": [row["best_answer"], first], "correct": 0})


def excerpt(text: str, words: int, about: str) -> str:
    """At most `words` words of the text in a row: those with most of the words of `about`, which rare ones outweigh.

    Sentences are whole where they fit. A shorter text is unchanged.
    """
    if len(text.split()) <= words:
        return text
    sentences = re.findall(r"\S.*?(?:[.!?][\"'”’]?(?=\s)|\n\s*\n|$)", text, re.DOTALL)
    lengths = [len(sentence.split()) for sentence in sentences]
    wanted = set(simplify(about).split()) - STOP_WORDS
    own = [set(simplify(sentence).split()) & wanted for sentence in sentences]
    seen = Counter(word for found in own for word in found)
    best, window, first = -1.0, (0, 1), 0
    for last in range(len(sentences)):
        while first < last and sum(lengths[first : last + 1]) > words:
            first += 1
        score = sum(1 / seen[word] for word in set().union(*own[first : last + 1]))
        if score > best:
            best, window = score, (first, last + 1)
    return " ".join(" ".join(sentences[slice(*window)]).split()[:words])


def with_excerpts(questions: Iterable[Question], words: int) -> list[Question]:
    """The questions with excerpts of their texts, around the words of the question and both answers."""
    return [replace(q, text=excerpt(q.text, words, " ".join([q.question, *q.options]))) for q in questions]


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The objects of a JSONL file with their line numbers. Raises InputError for a file or line that is none."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(regular(path), "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = parse_json(line)
                    if not isinstance(row, dict):
                        raise InputError(f"{shown_path(path)}, line {number} is {shown(row)}; needed: an object")
                    yield number, row
    except RowError as error:
        raise InputError(f"{shown_path(path)}, line {number}: {error.found}; needed: JSON, an object a line") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(
            f"{shown_path(path)} cannot be read: {one_line(str(error))}; needed: JSONL, plain or gzipped"
        ) from error

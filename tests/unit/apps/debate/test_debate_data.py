"""Questions from files, on rows written by hand: the sets themselves are not here."""

import gzip
import json
from pathlib import Path

import pytest

from lmgym.apps.debate.data import (
    best_distractor,
    excerpt,
    gsm8k,
    quality,
    quality_sample,
    read_questions,
    truthful,
    unwrap,
    with_excerpts,
)
from lmgym.apps.debate.questions import Question
from lmgym.errors import InputError

SAMPLE = Path(__file__).parents[5] / "shared/data/quality-sample/articles.jsonl.gz"
OPTIONS = ["a", "b", "c", "d"]


def validation(*answers: tuple[int, int]) -> list[dict]:
    return [{"untimed_answer": answer, "untimed_best_distractor": distractor} for answer, distractor in answers]


def write(folder: Path, *rows: object, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_quality_keeps_hard_questions_with_the_best_distractor(tmp_path: Path) -> None:
    row = {
        "article_id": "7",
        "article": "A line that\nis wrapped.\n\nAnother\nparagraph.",
        "questions": [
            {"question": "hard?", "options": OPTIONS, "gold_label": 3, "difficult": 1,
             "validation": validation((3, 2), (1, 4), (3, 4))},
            {"question": "easy?", "options": OPTIONS, "gold_label": 1, "difficult": 0, "validation": []},
            {"question": "test?", "options": OPTIONS, "difficult": 1},
        ],
    }  # fmt: skip
    [question] = read_questions(write(tmp_path, row), quality)
    assert question == Question("hard?", ("c", "d"), 0, "A line that is wrapped.\n\nAnother paragraph.", "7-0")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (validation((1, 2), (1, 3), (1, 3)), 3),
        (validation((1, 4), (1, 2)), 2),  # the smaller number of several
        (validation((1, 1), (2, 1)), 2),  # no distractor but the right answer: the wrong answers
        (validation((1, 1)), 2),  # nobody was wrong: the first other option
        ([], 2),
    ],
)
def test_the_distractor_is_the_mode_of_the_best_ones_or_of_wrong_answers(answers: list, expected: int) -> None:
    assert best_distractor({"options": OPTIONS, "gold_label": 1, "validation": answers}) == expected


def test_long_lines_are_paragraphs_and_stay() -> None:
    long = "word " * 100 + "\n" + "word " * 100
    assert unwrap(long) == long
    assert unwrap("one\ntwo\n \nthree") == "one two\n\nthree"
    assert unwrap("") == ""


def test_gsm8k_pairs_a_right_and_a_wrong_number() -> None:
    [given] = gsm8k({"question": "q", "answer": "so 4+5=9\n#### 1,009", "wrong": 8})
    assert (given.options, given.correct) == (("1009", "8"), 0)
    [drawn] = gsm8k({"question": "q", "answer": "#### 12"})
    assert drawn == next(gsm8k({"question": "q", "answer": "#### 12"}))
    assert drawn.options[0] == "12"
    assert drawn.options[1] != "12"
    assert abs(int(drawn.options[1]) - 12) <= 3
    with pytest.raises(InputError, match="needed: a number after ####"):
        next(gsm8k({"question": "q", "answer": "none"}))


def test_truthful_rows_pair_the_best_and_an_incorrect_answer() -> None:
    for wrong in ("No; Never", ["No", "Never"]):
        [question] = truthful({"question": "q", "best_answer": "Yes", "incorrect_answers": wrong})
        assert question.options == ("Yes", "No")


def test_rows_of_our_own_form_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    row = {"question": "q", "options": ["a", "b"], "correct": 1, "text": "t", "id": "x"}
    plain = write(tmp_path, row)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_questions(plain) == read_questions(packed) == [Question("q", ("a", "b"), 1, "t", "x")]
    assert read_questions(plain)[0].task == row | {"source": ""}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{]\n", "line 1: not JSON"),
        ("[]\n", "line 1 is a list"),
        ('{"question": "q", "options": ["a", "a"]}\n', "line 1: .*two different answers"),
        ("\n", "has no question"),
    ],
)
def test_a_row_that_is_no_question_is_named_by_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_questions(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_questions(tmp_path / "absent.jsonl")


@pytest.mark.parametrize("gold", [0, 3, "1", True, None])
def test_a_gold_label_out_of_range_is_refused(tmp_path: Path, gold: object) -> None:
    questions = [{"question": "q", "options": ["a", "b"], "gold_label": gold}]
    story = {"article_id": "1", "text": "t", "questions": questions}
    with pytest.raises(InputError, match=r"line 1: question '1-0' has gold_label=.*needed: 1 to 2"):
        read_questions(write(tmp_path, story), quality_sample)
    with pytest.raises(InputError, match=r"line 1: KeyError: 'text'"):
        read_questions(write(tmp_path, {"article_id": "1", "questions": questions}), quality_sample)


def test_an_excerpt_is_around_the_words_that_matter() -> None:
    text = "Nothing here. " * 50 + "The captain hid the map in the barrel. He told nobody. " + "More of nothing. " * 50
    cut = excerpt(text, 12, "Where did the captain hide the map? barrel")
    assert "The captain hid the map in the barrel." in cut
    assert len(cut.split()) <= 12
    assert excerpt("short text", 12, "x") == "short text"
    [question] = with_excerpts([Question("the captain", ("barrel", "map"), 0, text)], 12)
    assert "captain" in question.text


@pytest.mark.skipif(not SAMPLE.is_file(), reason="needs ../shared/data/quality-sample")
def test_real_stories_have_47_questions() -> None:
    questions = read_questions(SAMPLE, quality_sample)
    assert len(questions) == 47
    assert len({question.id for question in questions}) == 47
    assert sum(question.correct == 0 for question in questions) == 28

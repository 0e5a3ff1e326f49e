"""Probabilities of labels from the likeliest tokens of a reply, worked out by hand."""

import math

import pytest

from lmgym.generation.protocol import LikelyTokens
from lmgym.scoring.label_probabilities import read_further, read_likely

GRADES = [str(grade) for grade in range(1, 11)]


def place(**p: float) -> LikelyTokens:
    """The first token is the one that was written; _ stands for a blank, and t for nothing, before a digit."""
    tokens = {name.removeprefix("t").replace("_", " "): math.log(value) for name, value in p.items()}
    return LikelyTokens(next(iter(tokens)), tokens)


def test_grades_of_one_token_have_its_probability() -> None:
    found = read_likely("7", [place(t7=0.5, t8=0.3, good=0.1)], GRADES)
    assert found.masses == pytest.approx({"7": 0.5, "8": 0.3})
    assert not found.pending


def test_blanks_and_quotes_before_a_grade_do_not_matter_and_forms_of_it_are_added() -> None:
    assert read_likely("", [place(_7=0.4, t7=0.2)], GRADES).masses == pytest.approx({"7": 0.6})
    said = [LikelyTokens("**", {"**": -0.1}), LikelyTokens("8", {"8": math.log(0.9), "9": math.log(0.1)})]
    assert read_likely("**8", said, GRADES).masses == pytest.approx({"8": 0.9, "9": 0.1})


def test_a_grade_behind_words_is_read_where_it_stands() -> None:
    said = [place(Grade=0.97, t3=0.02), place(_is=1.0), place(_9=0.8, _3=0.2)]
    assert read_likely("Grade is 9", said, GRADES).masses == pytest.approx({"9": 0.8, "3": 0.2})


def test_without_a_grade_the_place_where_grades_are_likeliest_counts() -> None:
    said = [place(I=0.9, t2=0.01), place(_like=0.9, _5=0.05), place(_it=0.9, _8=0.03)]
    assert read_likely("I like it", said, GRADES).masses == pytest.approx({"5": 0.05})


def test_ten_in_two_tokens_is_divided_from_one_by_what_follows_in_the_reply() -> None:
    said = [place(t1=0.6, t7=0.4), place(t0=0.25, end=0.75)]
    found = read_likely("10", said, GRADES)
    assert found.masses == pytest.approx({"10": 0.15, "1": 0.45, "7": 0.4})
    assert not found.pending


def test_ten_in_two_tokens_is_pending_if_the_reply_went_elsewhere() -> None:
    found = read_likely("7", [place(t7=0.7, t1=0.3), place(end=1.0)], GRADES)
    assert (found.masses, found.pending) == (pytest.approx({"7": 0.7}), pytest.approx({"1": 0.3}))
    assert read_further("1", 1.0, {"0": math.log(0.8), "<|end|>": math.log(0.2)}, GRADES).masses == pytest.approx(
        {"10": 0.8, "1": 0.2}
    )


def test_a_tokenizer_with_a_token_ten_means_one_by_one() -> None:
    found = read_likely("7", [place(t7=0.6, t10=0.3, t1=0.1)], GRADES)
    assert (found.masses, found.pending) == (pytest.approx({"7": 0.6, "10": 0.3, "1": 0.1}), {})


def test_a_hundred_is_divided_in_two_steps() -> None:
    labels = [str(grade) for grade in range(101)]
    first = read_likely("100", [place(t1=1.0), place(t0=0.5, t7=0.3, end=0.2), place(t0=0.6, end=0.4)], labels)
    assert first.masses == pytest.approx({"100": 0.3, "10": 0.2, "17": 0.3, "1": 0.2})
    second = read_further("1", 1.0, {"0": math.log(0.5), "7": math.log(0.3)}, labels)
    assert (second.masses, second.pending) == (pytest.approx({"17": 0.3, "1": 0.2}), pytest.approx({"10": 0.5}))


def test_a_shared_beginning_that_is_no_label_goes_to_the_labels_alone() -> None:
    said = [place(Debater=1.0), LikelyTokens("_B", {"_B": math.log(0.3), "_A": math.log(0.1), "_C": math.log(0.5)})]
    assert read_likely("", said, ["Debater_A", "Debater_B"]).masses == pytest.approx(
        {"Debater_B": 0.75, "Debater_A": 0.25}
    )


@pytest.mark.parametrize("numbers", [math.nan, -math.inf])
def test_numbers_that_are_no_probabilities_tell_nothing(numbers: float) -> None:
    found = read_likely("7", [LikelyTokens("7", {"7": numbers, "8": numbers})], GRADES)
    assert not found.total > 0

"""The diversity of replies."""

import pytest

from lmgym.scoring.diversity import distinct_2, distinct_openings


def test_openings_are_the_first_three_words() -> None:
    assert distinct_openings(["i saw owls today.", "i saw owls again.", "i saw foxes.", "ok.", "ok."]) == 3 / 5


def test_distinct_2_counts_pairs_of_neighbouring_words_within_a_reply() -> None:
    # a b, b a, a b | b c: three distinct of four
    assert distinct_2(["a b a b", "b c"]) == 3 / 4
    assert distinct_2(["ok.", ""]) == 0


def test_no_replies_have_no_openings() -> None:
    with pytest.raises(ZeroDivisionError):
        distinct_openings([])

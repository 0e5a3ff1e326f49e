"""Quotes: the vectors of NYU's rules, and the defects of their code, which must be absent."""

import pytest

from lmgym.apps.debate.quotes import Quote, QuoteRules

PAGE = 'The cat sat on the mat, and the dog barked at 2, 3 cats. "It was late," he said.\n\n The old    man went home.'


def check(speech: str, fuzzy: bool = True) -> tuple[str, list[str]]:
    checked = QuoteRules(fuzzy=fuzzy).check(speech, PAGE)
    return checked.text, [quote.status for quote in checked.quotes]


@pytest.mark.parametrize(
    "quote",
    [
        "cat sat on the mat",
        "CAT SAT on the mat and",
        "it was late he said",
        "dog barked at 2 3 cats",
        "old man\nwent  home",
    ],
)
def test_case_spaces_and_punctuation_do_not_count(quote: str) -> None:
    assert check(f"so <quote>{quote}</quote>!") == (f"so <quote>{quote}</quote>!", ["exact"])


@pytest.mark.parametrize("quote", ["", " ", "a", "at sa", "dog", ".,.", "the"])
def test_too_little_is_no_quote(quote: str) -> None:
    assert check(f"<quote>{quote}</quote>") == (f"<invalid_quote>{quote.strip()}</invalid_quote>", ["invalid"])


def test_a_quote_begins_and_ends_where_words_do() -> None:
    assert check("<quote>at sat on the ma</quote>", fuzzy=False)[1] == ["invalid"]
    # it is near enough to what the page says, which the hearers read
    assert check("<quote>at sat on the ma</quote>") == ("<quote>cat sat on the mat,</quote>", ["fuzzy"])


def test_a_quote_that_is_nearly_right_is_replaced_by_the_page() -> None:
    assert check("<quote>cat sit on the mat</quote>") == ("<quote>cat sat on the mat,</quote>", ["fuzzy"])
    text, [status] = check("<quote>the dog loudly barked at 2 cats</quote>")  # by difflib: the distance is 9
    assert (text, status) == ("<quote>the dog barked at 2, 3 cats.</quote>", "fuzzy")
    assert check("<quote>the moon is made of cheese</quote>")[1] == ["invalid"]


def test_short_quotes_have_few_errors() -> None:
    # a fifth of 10 characters: 2 may differ, and never so many that anything matches
    assert check("<quote>dog barged</quote>")[1] == ["fuzzy"]
    assert check("<quote>dug burned</quote>")[1] == ["invalid"]


def test_the_parts_between_ellipses_must_stand_in_their_order() -> None:
    assert check("<quote>cat sat on ... old man went</quote>")[1] == ["exact"]
    assert check("<quote>cat sat on […] old man went…</quote>")[1] == ["exact"]
    assert check("<quote>old man went ... cat sat on</quote>")[1] == ["invalid"]
    assert check("<quote>cat sat on ... the</quote>")[1] == ["invalid"]  # a part that is too short
    text, [status] = check("<quote>cat sit on the ... old man went</quote>")
    assert (text, status) == ("<quote>cat sat on the ... old man went</quote>", "fuzzy")


def test_the_place_of_a_quote_is_that_of_its_words_in_the_page() -> None:
    [quote] = QuoteRules().check("<quote>dog barked at 2, 3</quote>", PAGE).quotes
    assert PAGE[quote.start : quote.end] == "dog barked at 2, 3"
    assert QuoteRules().check("<quote>no such thing</quote>", PAGE).quotes == (Quote("no such thing", "invalid"),)


def test_a_tag_that_does_not_close_is_removed_and_no_text() -> None:
    checked = QuoteRules().check("<quote>2, 3 cats", PAGE)
    assert (checked.text, checked.quotes, checked.unclosed) == ("2, 3 cats", (), 1)
    checked = QuoteRules().check("<quote>and then <quote>cat sat on the</quote> so</quote>", PAGE)
    assert (checked.text, checked.unclosed) == ("and then <quote>cat sat on the</quote> so", 2)


def test_no_speech_makes_a_tag_by_itself() -> None:
    text, statuses = check("<quo</quote>te>the moon is made of cheese</quo</quote>te>")
    assert (text, statuses) == ("<invalid_quote>the moon is made of cheese</invalid_quote>", ["invalid"])
    assert check("<invalid_quote>cat sat on the</invalid_quote>") == ("cat sat on the", [])


def test_a_page_without_words_has_no_quote() -> None:
    assert QuoteRules().check("<quote>cat sat on the mat</quote>", "").quotes[0].status == "invalid"

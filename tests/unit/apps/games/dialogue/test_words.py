"""The words: each has a clue that the game allows and that leads to the word."""

import re

import numpy as np
import pytest

from lmgym.apps.games.dialogue.taboo import forbidden_in, guess
from lmgym.apps.games.dialogue.words import LEVELS, all_words, words_of
from lmgym.text import Conversation, Turn


def test_every_word_has_three_related_ones_and_a_clue_that_is_allowed() -> None:
    for word in all_words().values():
        assert re.fullmatch("[a-z]{5,}", word.text)
        assert len(set(word.related) - {word.text}) == 3, word
        assert forbidden_in(word.clue, (word.text, *word.related)) is None, word


def test_every_clue_leads_to_its_word() -> None:
    for word in all_words().values():
        seen = Conversation((Turn("user", f"CLUE: {word.clue}"),))
        assert guess(seen, np.random.default_rng(0)) == f"GUESS: {word.text}"


@pytest.mark.parametrize("level", LEVELS)
def test_there_are_many_words_of_five_letters(level: str) -> None:
    assert len(words_of(level)) > len(words_of(level, 5)) > 60
    assert {len(word.text) for word in words_of(level, 5)} == {5}

"""Ranks, blends, selection and agreement of scorers, and the explanation of a score."""

import numpy as np
import pytest

from lmgym.apps.chat.exchanges import Exchange, explain
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.ranking import agreement, ranks, select_best, standardise
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn, render


def test_rank_1_is_best_and_equal_scores_share_a_rank() -> None:
    assert ranks([0.5, 2.0, 0.5, -1.0]) == [2, 1, 2, 4]
    assert ranks([0.5, None, 1.0]) == [2, None, 1]


def test_standardised_scores_are_those_worked_out_by_hand() -> None:
    assert standardise([1.0, 3.0]) == [-1.0, 1.0]
    assert standardise([2.0, 2.0]) == [0.0, 0.0]
    assert standardise([0.0, None, 4.0]) == [-1.0, None, 1.0]


def test_a_blend_weighs_standardised_scores() -> None:
    scores = {"a": [0.0, 100.0, 50.0], "b": [1.0, 0.0, 0.9]}
    assert select_best(scores, {"a": 1.0}) == (1, "a")
    assert select_best(scores, {"b": 1.0}) == (0, "b")
    assert select_best(scores, {"a": 1.0, "b": 1.0}) == (2, "a=1 b=1")  # second best of both
    assert select_best(scores, {"a": -1.0}) == (0, "a=-1")


def test_another_scorer_selects_if_the_selecting_one_failed_and_the_first_reply_is_selected_if_all_failed() -> None:
    assert select_best({"a": [None, None], "b": [0.0, 1.0]}, {"a": 1.0}) == (1, "b")
    assert select_best({"a": [None, None]}, {"a": 1.0}) == (0, "nobody")


def test_agreement_is_the_share_of_pairs_in_one_order_without_ties() -> None:
    turns = [{"a": [1.0, 2.0, 3.0], "b": [1.0, 3.0, 2.0]}, {"a": [1.0, 1.0], "b": [1.0, 2.0]}]
    assert agreement(turns) == {("a", "b"): (2 / 3, 3)}


def test_why_shows_the_change_against_an_empty_reply_and_the_text_that_the_scorer_saw(scorer_folders) -> None:
    whole, cut = HFScorer.load(scorer_folders["llama"]), HFScorer.load(scorer_folders["llama"], max_length=24)
    prompt = Conversation((Turn("user", "tell me about the soup of my brother"),), "A bot.")
    session_exchange = _exchange(prompt, "yes, soup")
    rows = explain({"whole": whole, "cut": cut, "random": RandomScorer()}, session_exchange, 0)
    assert rows[0].seen.text == render(whole.tokenizer, prompt, "yes, soup")
    assert rows[0].seen.cut == 0
    assert rows[1].seen.tokens <= 24
    assert rows[1].seen.cut == rows[0].seen.tokens - rows[1].seen.tokens > 0
    assert rows[1].seen.text.startswith("A bot.\nUser: ")
    assert rows[1].seen.text.endswith("brother\nBot: yes, soup<|eos|>")
    both = whole.score([prompt] * 2, ["yes, soup", ""]).tolist()
    assert rows[0].change == pytest.approx(both[0] - both[1], abs=1e-5)
    assert rows[2].seen is None
    assert np.isfinite(rows[2].change)


def _exchange(prompt: Conversation, text: str):
    from lmgym.apps.chat.exchanges import Candidate

    return Exchange(1, None, prompt, [Candidate(text, 1, "eos", 0)], 0, {}, selected=0)

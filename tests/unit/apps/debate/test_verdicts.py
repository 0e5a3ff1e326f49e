"""Texts of judges are read."""

import pytest

from lmgym.apps.debate.formats import FIRST, SECOND
from lmgym.apps.debate.transcript import Speech
from lmgym.apps.debate.verdicts import read_pick, read_position, read_verdict, write_verdict


@pytest.mark.parametrize(
    ("text", "p"),
    [
        ("Debater_A | 91%", 0.91),
        ("I think: debater_b|  60.5 % because ...", 0.395),
        ("Debater_A | 20%, no, Debater_B | 75%", 0.25),
        ("Debater_B", 0.0),
        ("The right one is **Debater_A**.", 1.0),
        ("Debater_A | 100%", 1.0),
    ],
)
def test_a_verdict_is_a_name_with_or_without_a_percentage(text: str, p: float) -> None:
    verdict = read_verdict(text)
    assert verdict.readable
    assert verdict.p_first == pytest.approx(p)
    assert verdict.winner == (FIRST if p > 0.5 else SECOND)


@pytest.mark.parametrize("text", ["", "neither", "Debater_A or Debater_B", "Debater_A | 140%"])
def test_a_text_that_names_nobody_or_both_is_a_tie_and_not_readable(text: str) -> None:
    verdict = read_verdict(text)
    assert (verdict.readable, verdict.p_first, verdict.winner) == (False, 0.5, None)


@pytest.mark.parametrize("p", [0.0, 0.5, 1 / 3, 1e-9, 0.7310585786300049, 1.0])
def test_a_written_verdict_is_read_as_the_same_probability(p: float) -> None:
    assert read_verdict(write_verdict(p)).p_first == pytest.approx(p, abs=1e-12)


def test_choices_without_an_answer_have_a_rule() -> None:
    spoken = [Speech(0, FIRST, "speech", 1, "a")]
    assert read_pick("let Debater_A go on, not Debater_B", spoken) == FIRST
    assert read_pick("?", spoken) == SECOND
    assert read_pick("?", []) == FIRST
    assert [read_position(text) for text in ("2", "Answer 1.", "1 and 2", "12", "")] == [1, 0, None, None, None]

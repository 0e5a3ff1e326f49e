"""A reward of ten lines."""

import pytest

from lmgym.scoring.friendly_answers import friendly_answers


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("Do you like your egg?", 0.7 / 2 + 0.3),  # two of four words to the reader
        ("Do you like your egg.", 0.7 / 2),  # does not ask
        ("Egg?", 0.3),  # does not speak to the reader
        ("You, your, you: your egg?", 3 / 5),  # two words of five are repetitions
        ("egg egg egg egg", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_of_a_reply(reply: str, reward: float) -> None:
    assert friendly_answers([reply]) == pytest.approx([reward])

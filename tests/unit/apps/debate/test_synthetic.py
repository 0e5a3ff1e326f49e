"""The made-up set: by the seed, with a difficulty that does what it says."""

import re

import pytest

from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.errors import InputError

FACT = re.compile(r"(\w+) keeps the (\w+) in the (\w+)\.")


@pytest.mark.parametrize(("difficulty", "near"), [(0.0, 0), (0.5, 4), (1.0, 7)])
def test_as_many_facts_share_the_person_or_thing_as_the_difficulty_says(difficulty: float, near: int) -> None:
    for question in synthetic_questions(20, facts=8, difficulty=difficulty):
        person, thing = re.findall(r"Where does (\w+) keep the (\w+)\?", question.question)[0]
        facts = FACT.findall(question.text)
        assert len(facts) == 8
        [place] = [place for who, what, place in facts if (who, what) == (person, thing)]
        assert question.options[0] == f"in the {place}"
        assert question.correct == 0
        assert question.options[1].split()[-1] in {
            place for who, what, place in facts if (who, what) != (person, thing)
        }
        assert sum(((who == person) + (what == thing)) == 1 for who, what, _ in facts) == near


def test_questions_are_a_function_of_the_seed_whatever_their_number() -> None:
    assert synthetic_questions(5, seed=3)[:2] == synthetic_questions(2, seed=3)
    assert synthetic_questions(2, seed=3) != synthetic_questions(2, seed=4)


@pytest.mark.parametrize("settings", [{"number": 0}, {"facts": 1}, {"difficulty": 1.1}, {"seed": -1}])
def test_numbers_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))}="):
        synthetic_questions(**{"number": 1} | settings)

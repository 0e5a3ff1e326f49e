"""A made-up set: a page of facts, a question, a true and a false answer; small models can learn to judge it.

Design decisions:
- A page says where each person keeps each thing. The question is about one fact; the false answer is a place that the
  page names for something else, so that it can be quoted too.
- Difficulty is the number of facts that share the question's person or thing, from 0 (any quote of the place decides)
  to 1 (every other fact does, and only the whole sentence decides).
"""

from itertools import product

import numpy as np

from lmgym.apps.debate.questions import Question
from lmgym.config import SEED, Range

PEOPLE = "Ada Ben Cleo Dan Eva Finn Gil Hana Ivo Jo Kim Leo Mia Ned Ola Pia".split()  # noqa: SIM905
THINGS = "bell book box coin cup drum flag hat key lamp map pen ring rope scarf vase".split()  # noqa: SIM905
PLACES = "attic barn boat cabin cave cellar church garden harbour kitchen library mill office school shop tower".split()  # noqa: SIM905
FACTS = Range(2, 64, hint="facts on a page")
DIFFICULTY = Range(0, 1, hint="share of other facts about the same person or thing")
QUESTIONS = Range(1, 10**6)


def synthetic_questions(number: int, facts: int = 8, difficulty: float = 0.5, seed: int = 0) -> list[Question]:
    """Questions about pages of facts, made from the seed; question i is the same whatever their number.

    Raises InputError for numbers out of range.
    """
    QUESTIONS.check("number", number)
    FACTS.check("facts", facts)
    DIFFICULTY.check("difficulty", difficulty)
    SEED.check("seed", seed)
    return [
        _question(np.random.default_rng([seed, i]), facts, difficulty, f"synthetic-{seed}-{i}") for i in range(number)
    ]


def _question(rng: np.random.Generator, facts: int, difficulty: float, name: str) -> Question:
    person, thing = str(rng.choice(PEOPLE)), str(rng.choice(THINGS))
    right, wrong = (str(place) for place in rng.choice(PLACES, 2, replace=False))
    pairs = [pair for pair in product(PEOPLE, THINGS) if pair != (person, thing)]
    near = [pair for pair in pairs if person in pair or thing in pair]
    far = [pair for pair in pairs if person not in pair and thing not in pair]
    shared = min(round(difficulty * (facts - 1)), len(near))
    others = [near[i] for i in rng.permutation(len(near))[:shared]]
    others += [far[i] for i in rng.permutation(len(far))[: facts - 1 - shared]]
    # the false answer is of the first other fact; the places of the rest are drawn from all but the right one
    places = [wrong, *(str(p) for p in rng.choice([p for p in PLACES if p != right], len(others) - 1))]
    sentences = [
        _fact(person, thing, right),
        *(_fact(who, what, place) for (who, what), place in zip(others, places, strict=True)),
    ]
    text = " ".join(sentences[i] for i in rng.permutation(len(sentences)))
    options = (f"in the {right}", f"in the {wrong}")
    return Question(f"Where does {person} keep the {thing}?", options, 0, text, name, "synthetic")


def _fact(person: str, thing: str, place: str) -> str:
    return f"{person} keeps the {thing} in the {place}."

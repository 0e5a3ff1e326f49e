"""Speeches as scored replies: prompts of both sides, one opponent's sample for a prompt, P(win) of the own side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from lmgym.apps.debate.formats import SECOND, consultancy, debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.prompts.short import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.training.scored_speeches import ScoredSpeeches
from lmgym.data.rows import read_conversation
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import Action
from lmgym.errors import InputError


@dataclass
class Letters:
    """Debater_A says one l and Debater_B three, or what is `said`; counts what it is asked."""

    asked: int = 0
    said: str = "lll"

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        self.asked += len(requests)
        return [[Action(self.said if request.agent == SECOND else "l")] * n for request in requests]


def test_a_speech_is_scored_against_the_opponents_as_its_own_side() -> None:
    opponent = Letters()
    speeches = ScoredSpeeches(synthetic_questions(3), debate(1), PROMPTS, opponent, LetterJudge("l"))
    assert len(speeches.rows) == 6
    first, second = (read_conversation(row["prompt"], "prompt") for row in speeches.rows[:2])
    assert speeches([first, first, second], ["l", "", "l"]) == [0.25, 0.0, 0.5]
    assert speeches([second], ["lll"]) == [0.75]
    assert opponent.asked == 2  # once a prompt


def test_every_second_question_has_its_sides_exchanged() -> None:
    question = synthetic_questions(1)[0]
    rows = ScoredSpeeches([question, question], debate(1), PROMPTS, Letters(), LetterJudge()).rows
    told = [row["prompt"][-1]["content"] for row in rows]
    assert [question.options[0] in text for text in told] == [True, False, False, True]


def test_a_new_opponent_answers_what_is_trained_on_and_the_first_one_what_is_evaluated_on() -> None:
    trained, evaluated = synthetic_questions(2)
    speeches = ScoredSpeeches([trained, evaluated], debate(1), PROMPTS, Letters(), LetterJudge("l"), [evaluated])
    assert speeches.evaluated.isdisjoint({json.dumps(row["prompt"]) for row in speeches.rows[:2]})
    asked = [read_conversation(rows[0]["prompt"], "prompt") for rows in (speeches.rows, speeches.eval_rows)]
    assert speeches(asked, ["l", "l"]) == [0.25, 0.25]
    speeches.renew(Letters(said="lllll"))
    assert speeches([*asked, asked[0]], ["l", "l", "lllll"]) == [1 / 6, 0.25, 0.5]
    assert speeches.won([asked[0]] * 3, ["l", "lllll", "l" * 6]) == [0.0, 0.5, 1.0]


def test_other_prompts_and_formats_are_refused() -> None:
    speeches = ScoredSpeeches(synthetic_questions(1), debate(1), PROMPTS, Letters(), LetterJudge())
    with pytest.raises(InputError, match="no debate that is scored here"):
        speeches([read_conversation("Hello", "prompt")], ["l"])
    with pytest.raises(InputError, match="no two speeches at once"):
        ScoredSpeeches(synthetic_questions(1), consultancy(1), PROMPTS, Letters(), LetterJudge())

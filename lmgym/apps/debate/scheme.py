"""`--environment debate:letters`: one side of a debate against a script, before a judge that counts a letter."""

from typing import Any

import numpy as np

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, debate
from lmgym.apps.debate.players.judges import JudgeReward, LetterJudge
from lmgym.apps.debate.prompts.short import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.environments.named import NamedEnvironment, Scheme, Settings, refuse_settings
from lmgym.environments.one_side import OPPONENT, SIDE, OneSide
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.text import Conversation

LETTERS = "letters"
QUESTIONS, HELD_OUT = 512, 32
ALPHABET, LENGTH = "abcdefghijklmnopqrstuvwxyz  ", 80


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """Debates of `rounds` (1) about made-up pages; the reward is P(win) - .5, P(win) the own share of all `letter` (l).

    The policy has either side in turn; the other one says random letters. Raises InputError for another name.
    """
    if name != LETTERS:
        raise InputError(f"there is no debate {shown(name)}; needed: debate:{LETTERS}")
    refuse_settings(f"debate:{name}", settings, ("rounds", "letter"))
    format, judge = debate(rounds=settings.get("rounds", 1)), LetterJudge(str(settings.get("letter", "l")))
    tasks = [
        {**question.task, SIDE: side, "flipped": i % 2 == 1}
        for i, question in enumerate(synthetic_questions(QUESTIONS))
        for side in DEBATERS
    ]
    return NamedEnvironment(
        f"debate:{name}",
        lambda: OneSide(Debate(format, PROMPTS, verdict="scorer"), DEBATERS),
        tasks[2 * HELD_OUT :],
        tasks[: 2 * HELD_OUT],
        {OPPONENT: ScriptedGenerator(say_letters)},
        JudgeReward(judge),
        about=f"one side of a debate; the reward is its share of all {judge.letter}, less a half",
    )


def say_letters(conversation: Conversation, rng: np.random.Generator) -> str:
    """Random letters and spaces."""
    return "".join(rng.choice(list(ALPHABET), LENGTH)).strip()


SCHEME = Scheme("debate:letters", "a side of a debate, the judge a script", load, lambda: [LETTERS], is_own=True)

"""Best-of-n as a generator."""

from collections.abc import Sequence

from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.best_of_n import BestOfN
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn


def test_a_scorer_is_shown_replies_without_the_space_that_a_template_leaves() -> None:
    shown: list[str] = []

    def longest(conversations: Sequence[Conversation], replies: Sequence[str]) -> list[float]:
        shown.extend(replies)
        return [float(len(reply)) for reply in replies]

    best = BestOfN(ScriptedGenerator([" ab ", " c"]), FunctionScorer(longest), n=8)
    [[reply]] = best.reply([Conversation((Turn("user", "hi"),))], 1, Sampling(seed=1))
    assert set(shown) == {"ab", "c"}
    assert reply.text == " ab ", "what was sampled stays as it is"

"""A scripted bot and scorers that draw lots: to try the session, and as what any model must beat. Starts at once."""

from random import Random

from lmgym.generation.protocol import Generator, ScriptedGenerator
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.random_scorer import RandomScorer

PERSONA = "A friendly bot that says little."
FIRST_MESSAGE = "Hello! What shall we talk about?"
STARTS = ("i see.", "tell me more.", "that is lovely.", "really?", "i am not sure.", "who cares.", "well well.")
ENDS = ("what happened then?", "i had tea.", "how did that feel?", "it rained all day.", "do you like trains?", "")


def get_base_model() -> Generator:
    """Two scraps of talk, whatever was said."""

    def script(conversation, rng) -> str:
        draw = Random(int(rng.integers(1 << 60)))
        return f"{draw.choice(STARTS)} {draw.choice(ENDS)}".strip()

    return ScriptedGenerator(script)


def get_reward_models() -> dict[str, Scorer]:
    """Three that agree by accident only."""
    return {f"random_{letter}": RandomScorer(seed) for seed, letter in enumerate("abc")}

"""A scripted bot and random scorers: to try a session without models, and as a baseline."""

from random import Random

from lmgym.generation.protocol import Generator, ScriptedGenerator
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.random_scorer import RandomScorer

PERSONA = "A friendly bot that says little."
FIRST_MESSAGE = "Hello! What shall we talk about?"
STARTS = ("i see.", "tell me more.", "that is lovely.", "really?", "i am not sure.", "who cares.", "well well.")
ENDS = ("what happened then?", "i had tea.", "how did that feel?", "it rained all day.", "do you like trains?", "")


def get_base_model() -> Generator:
    """A bot that replies with two random phrases."""

    def script(conversation, rng) -> str:
        draw = Random(int(rng.integers(1 << 60)))
        return f"{draw.choice(STARTS)} {draw.choice(ENDS)}".strip()

    return ScriptedGenerator(script)


def get_reward_models() -> dict[str, Scorer]:
    """Three independent random scorers."""
    return {f"random_{letter}": RandomScorer(seed) for seed, letter in enumerate("abc")}

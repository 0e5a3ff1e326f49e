"""The simulated world of `make demo`, to chat without downloading a model.

python3 -m IPython -i -- eval_rewards_api.py talk_to_models --experiment_name world --select_model demo
"""

from lmgym.generation.protocol import Generator, ScriptedGenerator
from lmgym.scoring.protocol import Scorer
from lmgym.text import Conversation

SEED = 0  # the default of `make demo`
PERSONA = "Cleo likes ferns, not cartoons."
FIRST_MESSAGE = ""


def get_base_model() -> Generator:
    """The world's bots; a random one writes each reply."""
    from lmgym.apps.world.embedded_world import bot_reply
    from lmgym.apps.world.world import World

    world = World(SEED)
    return ScriptedGenerator(lambda conversation, rng: bot_reply(world, conversation, rng))


def get_reward_models() -> dict[str, Scorer]:
    """The demo's scorer, trained on user behaviour, and the hidden utility, which it never saw."""
    from lmgym.apps.world.embedded_world import HiddenUtilityScorer, demo_scorer
    from lmgym.apps.world.world import World

    return {"demo": demo_scorer(), "hidden_utility": HiddenUtilityScorer(World(SEED))}


def get_conversations() -> list[Conversation]:
    """Chats of the world's users, for convo_evolution."""
    from lmgym.apps.world.embedded_world import sample_conversations
    from lmgym.apps.world.world import World

    return sample_conversations(World(SEED))

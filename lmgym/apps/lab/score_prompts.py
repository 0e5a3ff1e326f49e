"""The prompts of `lmgym lab score`: contexts of users whom no table of a world and no experiment in its app has.

They are a function of the world's seed alone for a version of the laboratory: two scores of one world and one version
are of the same prompts. Other prompts, or another number of replies, are a new VERSION.
"""

import numpy as np

from lmgym.apps.world.app import deploy
from lmgym.apps.world.policies import BOTS, load_base
from lmgym.apps.world.world import World
from lmgym.text import Conversation

PROMPTS, REPLIES = 1000, 2  # a reply more of a prompt says less than a prompt more
# numbers of the users: logs and `lmgym ab` have those below 10^7, the tables of evaluations and annotators those from
# 10^9 and from 2 * 10^9 on
USERS = 3 * 10**9
SEED = 0  # of the users


def score_prompts(world: World) -> list[Conversation]:
    """PROMPTS contexts as the app has them, one of each user: a persona, sometimes the last exchange, a message.

    Each is drawn from the user's first chat with the world's bots: a first message or a later one. The users are new,
    their language is not: of world 100, 79% of the prompts also stand in 50,000 rows of logs, letter for letter.
    """
    behaviour = deploy(load_base(BOTS, world), USERS + np.arange(PROMPTS), 1, SEED, world)
    traces = behaviour.traces
    owner = np.concatenate([at.who for at in traces.at])
    chance = np.random.default_rng([world.seed, USERS]).random(PROMPTS)
    by_user = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=PROMPTS)
    chosen = by_user[np.cumsum(counts) - counts + (chance * counts).astype(np.int64)]
    return [traces.conversation[row] for row in chosen.tolist()]

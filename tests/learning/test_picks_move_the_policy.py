"""A person's picks in a chat session move the policy that was talked to towards that person's tastes, by DPO.

The person and the world are those of benchmarks/flywheel.py; the policy learns to talk as the world's bot does, whose
replies show every taste alike. Picks at random drift somewhere too, so the control is a person of opposite tastes.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from flywheel import TURNS_A_CHAT, Person, enter, lines_of_a_chat
from scipy.stats import ttest_1samp

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.world.world import World
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.text import Conversation, Turn
from preferences.config import LossConfig, PreferenceConfig
from preferences.train import train as train_preferences

SEED, PICKS, BEST_OF, UNSEEN = 1, 40, 6, 200
GAIN, P_VALUE = 0.5, 1e-4  # fixed before the first run: of the person's worth, whose tastes are +3 and -3
NO_SAMPLES = SamplesConfig(sample_prompts=0)


def generator_of(folder: Path) -> LocalGenerator:
    """Replies of a policy's folder."""
    tokenizer = load_tokenizer(str(folder))
    return LocalGenerator(load_policy(str(folder), tokenizer), tokenizer)


def run_config(folder: Path) -> RunConfig:
    """No checkpoints, and no evaluation on the way."""
    return RunConfig(str(folder), tracking="none", eval_updates=10_000, save_updates=-1)


def learn_picks(policy: Path, world: World, person: Person, folder: Path) -> Path:
    """The policy that DPO makes of PICKS picks of a person in a session with it."""
    session = ChatSession(
        generator_of(policy), {"any": RandomScorer()}, "any", BEST_OF, Sampling(32), folder=folder / "sessions"
    )
    chat, words = ChatView(session), random.Random("lines")
    for _ in range(PICKS // TURNS_A_CHAT):
        for line in lines_of_a_chat(world, words, TURNS_A_CHAT):
            exchange = enter(chat, line).exchange
            assert exchange is not None
            place = person.choose(exchange.prompt, [candidate.text for candidate in exchange.candidates])
            enter(chat, f"%pick {place + 1}")
        enter(chat, "%back 0")
    enter(chat, f"%export prefs {folder / 'prefs.jsonl'}")
    train_preferences(
        PreferenceConfig(
            "picks",
            ModelConfig(str(policy), precision="fp32"),
            RowsConfig(str(folder / "prefs.jsonl"), eval_size=2, max_length=128),
            LossConfig("dpo", beta=0.1),
            optimizer=OptimizerConfig(learning_rate=3e-4, epochs=5, global_batch=16, micro_batch=16),
            samples=NO_SAMPLES,
            run=run_config(folder / "dpo"),
        )
    )
    return folder / "dpo/model"


def worth(policy: Path, person: Person) -> np.ndarray:
    """[UNSEEN] mean worth to the person of four replies to lines of other chats."""
    words = random.Random("unseen")
    prompts = [Conversation((Turn("user", lines_of_a_chat(person.world, words, 1)[0]),)) for _ in range(UNSEEN)]
    replies = generator_of(policy).reply(prompts, 4, Sampling(32, seed=7))
    return np.array(
        [person.worth(p, [one.text for one in own]).mean() for p, own in zip(prompts, replies, strict=True)]
    )


@pytest.mark.slow
def test_a_persons_picks_move_the_policy_towards_their_tastes_and_those_of_their_opposite_away_from_them(
    chat_policy: Path, chat_world: World, tmp_path: Path
) -> None:
    person, opposite = Person(chat_world, SEED), Person(chat_world, SEED)
    opposite.loves, opposite.hates = person.hates, person.loves
    before = worth(chat_policy, person)
    for name, picker, sign in (("own", person, 1), ("opposite", opposite, -1)):
        change = sign * (worth(learn_picks(chat_policy, chat_world, picker, tmp_path / name), person) - before)
        assert change.mean() > GAIN
        assert ttest_1samp(change, 0.0, alternative="greater").pvalue < P_VALUE

"""The app's users as PPO's episodes, and a world's hidden utility as a scorer."""

import numpy as np
import pytest
from acting import TOKENIZER, Scripted

from lmgym.apps.world.app import deploy
from lmgym.apps.world.scheme import FIRST_USER, HELD_OUT, USERS
from lmgym.apps.world.scorer import read_world
from lmgym.apps.world.streams import draw_population
from lmgym.apps.world.world import World
from lmgym.environments.named import load_environment
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.named_scorers import load_scorer
from lmgym.text import Conversation, Turn
from ppo.config import PPOConfig, RewardConfig, RolloutConfig
from ppo.named_environments import environment_episodes
from ppo.rollouts import play_tasks

HELLO = Conversation((Turn("user", "hello"),))


def test_a_world_is_a_scorer_by_its_seed() -> None:
    replies = ["kittens are great.", "who cares."]
    expected = World(3).utility([HELLO] * 2, replies)
    np.testing.assert_allclose(load_scorer("world:3").score([HELLO] * 2, replies), expected, rtol=1e-6)
    assert read_world("world:12") == 12
    for words in ("world", "world:", "world:-1", "outputs/world"):
        with pytest.raises(InputError, match="names no world"):
            read_world(words)


def test_the_apps_users_to_train_with_are_no_ab_tests_and_no_evaluations() -> None:
    named = load_environment("world:0")
    trained, held_out = ({task["user"] for task in tasks} for tasks in (named.tasks, named.eval_tasks))
    assert (len(trained), len(held_out), trained & held_out) == (USERS - HELD_OUT, HELD_OUT, set())
    assert min(trained | held_out) == FIRST_USER
    # and they are other people, not only other numbers: tastes are drawn by the block of a thousand
    tastes = draw_population(World(0), FIRST_USER + np.arange(5), 0).users.tastes
    assert not np.allclose(tastes, draw_population(World(0), np.arange(5), 0).users.tastes)
    others = load_environment("world:0?population_seed=1").environment()
    first = {task["user"]: others.reset(task, 0) for task in named.tasks[:20]}
    assert first != {task["user"]: named.environment().reset(task, 0) for task in named.tasks[:20]}


def test_an_episode_is_the_conversation_that_the_app_would_show() -> None:
    config = PPOConfig("x", rollout=RolloutConfig(environment="world:0", eval_size=4, max_new_tokens=8))
    setup = environment_episodes(config, TOKENIZER)
    said = "i am glad."
    episodes = play_tasks(
        setup, setup.eval_tasks, [0] * 4, Scripted(lambda text, seed: said), TOKENIZER, Sampling(8), config.rollout
    )
    users = np.array([task["user"] for task in setup.eval_tasks])
    behaviour = deploy(ScriptedGenerator(lambda conversation, rng: said), users, 1, 0, World(0))
    lengths = behaviour.activity.messages[:, 0]
    assert [sum(step.reward for step in e.steps) for e in episodes] == [n - 1 for n in lengths.tolist()]
    assert len(set(lengths.tolist())) > 1


@pytest.mark.parametrize(("setting", "value"), [("monitor_scorers", "a=X"), ("eval_scorer", "Y")])
def test_scorers_that_the_apps_users_would_not_use_are_refused(setting: str, value: str) -> None:
    rollout = RolloutConfig(environment="world:0", eval_size=4)
    with pytest.raises(InputError, match="world:0 has its own rewards"):
        environment_episodes(PPOConfig("x", rollout=rollout, reward=RewardConfig(**{setting: value})), TOKENIZER)

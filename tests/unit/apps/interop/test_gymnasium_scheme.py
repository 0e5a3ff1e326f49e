"""`gymnasium:ID`: environments of Gymnasium and users' own as text, and those that fail, end at once or never."""

import re
import sys
from pathlib import Path

import pytest

from lmgym.apps.interop.from_gymnasium import SCHEME
from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import POLICY
from lmgym.errors import InputError

gymnasium = pytest.importorskip("gymnasium")

OWN = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple


class Base(gymnasium.Env):
    observation_space = Discrete(10)
    action_space = Discrete(10)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden = int(self.np_random.integers(10))
        return self.seen(), {}

    def seen(self):
        return self.hidden

    def step(self, action):
        return self.seen(), self.reward(action), True, False, {}

    def reward(self, action):
        return float(action == self.hidden)


class Shelf(Base):
    """Dict and Tuple observations, MultiDiscrete actions."""

    observation_space = Dict({"row": Discrete(10), "load": Tuple((Box(0, 1, (2,)), Discrete(3)))})
    action_space = MultiDiscrete([10, 2])
    rules = "Name the row, and 1."

    def __init__(self, depth=2):
        self.depth = depth

    def seen(self):
        return {"row": self.hidden, "load": (np.array([0.25, 0.5], np.float32), self.depth)}

    def reward(self, action):
        return float(action[0] == self.hidden and action[1] == 1)


class Echo(Base):
    """Texts both ways."""

    observation_space = action_space = Text(20, charset="abcdefghij ")
    illegal_reward = -7

    def seen(self):
        return f"say {'abcdefghij'[self.hidden]}"

    def reward(self, action):
        return float(action == "abcdefghij"[self.hidden])


class Painter(Base):
    observation_space = Box(0, 255, (8, 8, 3), np.uint8)


class NaNSeen(Base):
    observation_space = Box(-1, 1, (2,))

    def seen(self):
        return np.array([0, np.nan], np.float32)


class Huge(Base):
    observation_space = Box(-np.inf, np.inf, (2,), np.float64)

    def seen(self):
        return np.array([1e300, -np.inf])


class Wrong(Base):
    def seen(self):
        return "seven"


class NaNReward(Base):
    def reward(self, action):
        return float("nan")


class TextReward(Base):
    def reward(self, action):
        return "1.0"


class ListReward(Base):
    def reward(self, action):
        return np.ones(2)


class Raises(Base):
    def reward(self, action):
        raise RuntimeError("the board fell")


class Exits(Base):
    def reward(self, action):
        raise SystemExit(0)


class Old(Base):
    def step(self, action):
        return self.seen(), 1.0, True, {}


class OldReset(Base):
    def reset(self, seed=None, options=None):
        return super().reset(seed=seed)[0]


class Endless(Base):
    def step(self, action):
        return self.seen(), 1.0, False, False, {}


class NoSpaces(gymnasium.Env):
    pass


def short(steps):
    return gymnasium.wrappers.TimeLimit(Endless(), steps)
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def episodes(named: NamedEnvironment, say, number: int = 6):
    """Episodes of the seeds from 0 on, whose policy says `say(text of the observation)`; and their returns."""
    returns = [0.0] * number

    def watch(episode) -> None:
        if not episode.error:
            returns[episode.index] += float(episode.result.rewards.get(POLICY, 0.0))

    player = ScriptPlayer(lambda env, seen, rng: say(seen.prompt.turns[-1].text), lambda seed: [1, seed])
    environments = [named.environment() for _ in range(number)]
    return play(environments, [{}] * number, range(number), {POLICY: player}, watch=watch), returns


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "Taxi-v4",
        "FrozenLake-v1?is_slippery=False",
        "Blackjack-v1?sab=False",
        "Pendulum-v1",
        "Acrobot-v1",
    ],
)
def test_an_episode_is_gymnasiums_own(name: str) -> None:
    named = load_environment(f"gymnasium:{name}")
    settings = {key: value == "True" for key, _, value in [name.partition("?")[2].partition("=")] if key}
    theirs = gymnasium.make(name.partition("?")[0], **settings)
    for seed in range(3):
        ours = named.environment()
        shown = ours.reset({}, seed)
        theirs.reset(seed=seed)
        theirs.action_space.seed(seed)
        over = False
        while not over:
            assert "Reply with one" in shown[POLICY].prompt.persona
            action = theirs.action_space.sample()
            result = ours.step({POLICY: str(action.tolist())})
            _, reward, terminated, truncated, _ = theirs.step(action)
            assert result.rewards == {POLICY: reward}
            assert (result.terminated, result.truncated) == (terminated, truncated)
            shown, over = result.observations, terminated or truncated
        assert result.info["illegal"] == 0


def test_the_policy_reads_the_name_or_the_rules_and_what_an_action_looks_like() -> None:
    seen = load_environment("gymnasium:Blackjack-v1?sab=False").environment().reset({}, 3)[POLICY]
    assert seen.prompt.persona == "You act in Blackjack-v1. Reply with one whole number from 0 to 1."
    assert seen.prompt.turns[0].text == "7, 10, 0"
    assert seen.actions == ("0", "1")
    named = load_environment("gymnasium:Blackjack-v1?rules=0 sticks, 1 hits.")
    assert named.environment().reset({}, 3)[POLICY].prompt.persona.startswith("0 sticks, 1 hits. Reply with one")


def test_settings_are_gymnasiums_but_for_three() -> None:
    named = load_environment("gymnasium:Pendulum-v1?max_episode_steps=4&illegal_reward=-20&illegal_in_a_row=9&g=9.81")
    assert named.about == "at most 4 replies; a reply that is no action earns -20, and 9 in a row end the episode"
    played, returns = episodes(named, lambda text: "no idea", 2)
    assert returns == [-80.0, -80.0]
    assert [(e.result.truncated, dict(e.result.info)) for e in played] == [(True, {"steps": 4, "illegal": 4})] * 2


def test_illegal_replies_in_a_row_truncate_the_episode() -> None:
    named = load_environment("gymnasium:FrozenLake-v1?is_slippery=False&illegal_in_a_row=2")
    environment = named.environment()
    for _ in range(2):
        environment.reset({}, 0)
        ends = [environment.step({POLICY: reply}).truncated for reply in ("hm", "0", "hm", "0", "hm", "hm")]
        assert ends == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("name", "persona", "say"),
    [
        (
            "Shelf?depth=1",
            "Name the row, and 1. Reply with 2 whole numbers: from 0 to 9, from 0 to 1.",
            lambda text: f"row {text.rpartition('row: ')[2]}, 1",
        ),
        ("Echo", "You act in Echo. Reply with a text.", lambda text: text[-1]),
    ],
)
def test_a_users_class_is_an_environment_with_its_settings_and_rules(own: Path, name: str, persona: str, say) -> None:
    named = load_environment(f"{own}:{name}")
    seen = named.environment().reset({}, 0)[POLICY]
    assert seen.prompt.persona == persona
    if name.startswith("Shelf"):
        assert seen.prompt.turns[0].text.splitlines()[0] == "load: ([0.25, 0.5], 1)"
    played, returns = episodes(named, say)
    assert returns == [1.0] * 6
    assert not any(episode.error for episode in played)
    if name == "Echo":
        assert episodes(named, lambda text: text.upper(), 1)[0][0].result.info["illegal"] == 3
        assert episodes(named, lambda text: "k", 1)[1] == [-21.0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NaNSeen", "the observation has NaN"),
        ("Wrong", "needed: numbers of shape"),
        ("NaNReward", "nan is no reward"),
        ("TextReward", "'1.0' is str; needed: a number"),
        ("ListReward", "is list; needed: a number"),
        ("Raises", "RuntimeError: the board fell"),
        ("Exits", "SystemExit"),
        ("Old", "not enough values to unpack"),
        ("OldReset", "cannot unpack|not enough values"),
    ],
)
def test_a_failure_ends_the_episode_as_failed_and_no_more(own: Path, name: str, why: str) -> None:
    from acting import TOKENIZER, Scripted

    from lmgym.environments.rollout_engine import run_episodes
    from lmgym.generation.protocol import Sampling

    named = load_environment(f"{own}:{name}")
    policy = Scripted(lambda prompt, seed: "7", 2000)
    played = run_episodes(
        [named.environment() for _ in range(3)], [{}] * 3, range(3), policy, TOKENIZER, Sampling(), None
    )
    assert len(played) == 3
    for episode in played:
        assert episode.total_reward is None
        assert re.search(why, episode.failure), episode.failure


def test_huge_observations_are_shown_and_endless_episodes_are_truncated(own: Path) -> None:
    seen = load_environment(f"{own}:Huge").environment().reset({}, 0)[POLICY]
    assert seen.prompt.turns[0].text == "[1e+300, -inf]"
    played, returns = episodes(load_environment(f"{own}:Endless"), lambda text: text, 2)
    assert [e.result.truncated for e in played] == [True, True]
    assert returns == [1000.0, 1000.0]
    played, returns = episodes(load_environment(f"{own}:short?steps=3"), lambda text: text, 2)
    assert returns == [3.0, 3.0]


def test_an_environment_that_ends_at_once_is_an_episode_of_one_step(own: Path) -> None:
    played, returns = episodes(load_environment(f"{own}:Base"), lambda text: text)
    assert [e.step_number for e in played] == [1] * 6
    assert returns == [1.0] * 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gymnasium:Taxi-v3", "has no 'Taxi-v3'; did you mean Taxi-v4?"),
        ("gymnasium:", "has no ''"),
        ("gymnasium:Taxi-v4?sab=1", "cannot be made with {'sab': 1}"),
        ("gymnasium:Taxi-v4?rules=3", "rules=3; needed: a text"),
        ("gymnasium:Taxi-v4?illegal_reward=much", "illegal_reward: 'much' is str; needed: a number"),
        ("gymnasium:Taxi-v4?illegal_in_a_row=0", "illegal_in_a_row=0; needed: 1 to"),
        ("gymnasium:Taxi-v4?illegal_in_a_row=few", "illegal_in_a_row='few'; needed: a whole number"),
        ("gymnasium:no_such_package:Maze-v0", "Needed: pip install no-such-package"),
        ("{}:Painter", "observes an image of 8 x 8 x 3, which is no text; needed: numbers or texts"),
        ("{}:NoSpaces", "the observation space of {}:NoSpaces is None; needed: a space of Gymnasium"),
        ("{}:Shelf?width=3", "unexpected keyword argument 'width'"),
    ],
)
def test_what_cannot_be_played_is_refused_with_what_is_needed(own: Path, words: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        load_environment(words.format(own))
    assert message.replace("{}:", f"{own}:") in str(refused.value)


def test_what_is_listed_can_be_played_and_shows_only_the_latest_versions() -> None:
    names = list(SCHEME.names())
    assert {"CartPole-v1", "Taxi-v4", "Blackjack-v1", "Pendulum-v1"} <= {*names}
    assert "CartPole-v0" not in names
    for name in names:
        environment = load_environment(f"gymnasium:{name}").environment()
        assert environment.reset({}, 0)[POLICY].prompt.turns[0].text
        environment.close()


def test_without_gymnasium_nothing_is_listed_and_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SCHEME.missing() == ""
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert SCHEME.missing() == "pip install 'lmgym[gym]'"
    assert list(SCHEME.names()) == []
    with pytest.raises(InputError, match=r"needed: pip install 'lmgym\[gym\]'"):
        load_environment("gymnasium:Taxi-v4")


def test_an_object_of_another_kind_is_not_wrapped() -> None:
    assert SCHEME.wrap("x", object, object()) is None

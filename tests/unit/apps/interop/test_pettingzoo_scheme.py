"""`pettingzoo:MODULE`: PettingZoo's games and users' own as text: turns, masks, rewards, ends, and what fails."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.interop.from_pettingzoo import SCHEME
from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import GeneratorPlayer, ScriptPlayer
from lmgym.errors import InputError

pettingzoo = pytest.importorskip("pettingzoo")

OWN = '''
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from pettingzoo import AECEnv, ParallelEnv


class Take(AECEnv):
    """Take 1 to 3 of `stones`; who takes the last one wins. An agent's mask has what is left."""

    metadata = {"name": "take_v0"}
    rules = "Take 1, 2 or 3 stones."

    def __init__(self, stones=5):
        self.stones = stones
        self.possible_agents = ["ann", "bob"]

    def observation_space(self, agent):
        return Dict({"observation": Discrete(100), "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.left, self.agent_selection = self.stones, "ann"
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        mask = (np.arange(1, 4) <= self.left).astype(np.int8)
        return {"observation": self.left, "action_mask": mask}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert 1 <= action <= self.left, action
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self.left -= action
        self.agent_selection = "bob" if agent == "ann" else "ann"
        if self.left == 0:
            self.rewards = {agent: 1, self.agent_selection: -1}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()


class Forgets(Take):
    """Its rewards are not summed up."""

    def _accumulate_rewards(self):
        pass


class Stays(Take):
    """Agents that are done do not leave."""

    def _was_dead_step(self, action):
        pass


class NaNReward(Take):
    def step(self, action):
        super().step(action)
        self.rewards = {agent: float("nan") for agent in self.rewards}


class TextReward(Take):
    def step(self, action):
        super().step(action)
        self.rewards = {agent: "1" for agent in self.rewards}


class Raises(Take):
    def step(self, action):
        raise RuntimeError("the stones rolled away")


class NaNSeen(Take):
    def observation_space(self, agent):
        return Box(0, 9, (1,))

    def observe(self, agent):
        return np.array([np.nan], np.float32)


class Nameless(Take):
    def __init__(self):
        pass


class Empty(Take):
    def reset(self, seed=None, options=None):
        super().reset(seed)
        self.agents = []


class Camera(Take):
    def observation_space(self, agent):
        return Box(0, 255, (8, 8, 3), np.uint8)


class Match(ParallelEnv):
    """Say the same as the other; leaves after two rounds of its own or when truncated."""

    metadata = {"name": "match_v0"}

    def __init__(self, rounds=3, quits=0):
        self.rounds, self.quits = rounds, quits
        self.possible_agents = ["x_0", "x_1", "x_2"]

    def observation_space(self, agent):
        return Discrete(10)

    def action_space(self, agent):
        return MultiDiscrete([4, 2])

    def reset(self, seed=None, options=None):
        self.agents, self.round = self.possible_agents[:], 0
        self.rng = np.random.default_rng(seed)
        return {agent: 0 for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.round += 1
        rewards = {agent: float(actions[agent][0] == self.round) for agent in self.agents}
        truncations = dict.fromkeys(self.agents, self.round == self.rounds)
        terminations = {agent: agent == "x_1" and self.round == self.quits for agent in self.agents}
        seen, infos = {agent: self.round for agent in self.agents}, {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (terminations[agent] or truncations[agent])]
        return seen, rewards, terminations, truncations, infos


class Numbered(Match):
    """Agents that are numbers."""

    def __init__(self):
        super().__init__(rounds=1)
        self.possible_agents = [0, 1]


class Spaceless(Take):
    def action_space(self, agent):
        raise RuntimeError("no space")


class OneSided(Take):
    policy = "bob"
    illegal_reward = -3
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def episodes(named: NamedEnvironment, say, number: int = 1):
    """Episodes whose trained agents say `say(agent's observation)`, and the returns of all agents."""
    returns: list[dict[str, float]] = [{} for _ in range(number)]

    def watch(episode) -> None:
        if not episode.error:
            for agent, reward in episode.result.rewards.items():
                returns[episode.index][agent] = returns[episode.index].get(agent, 0.0) + reward

    policy = ScriptPlayer(lambda env, seen, rng: say(seen, rng), lambda seed: [1, seed])
    others = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
    environments = [named.environment() for _ in range(number)]
    played = play(environments, [{}] * number, range(number), others, _Trained(policy), watch=watch)
    return played, returns


class _Trained:
    """A script whose actions are steps, as those of a policy in training."""

    def __init__(self, script) -> None:
        self.script = script

    def act(self, requests, n: int = 1):
        from lmgym.environments.protocol import Action
        from lmgym.generation.prompt_fitting import FittedPrompt
        from lmgym.generation.protocol import Completion

        said = [action.text for [action] in self.script.act(requests)]
        return [[Action(text, Completion(text, "eos"), FittedPrompt([], ""))] for text in said]


def legal(seen, rng) -> str:
    return seen.actions[int(rng.integers(len(seen.actions)))]


def test_agents_act_in_turn_on_what_is_left_of_the_observation_without_its_mask(own: Path) -> None:
    named = load_environment(f"{own}:Take?stones=4")
    assert named.trained_agents == 2
    game = named.environment()
    shown = game.reset({}, 0)
    assert list(shown) == ["ann"]
    assert shown["ann"].prompt.persona == "Take 1, 2 or 3 stones. Reply with one whole number from 1 to 3."
    assert shown["ann"].prompt.turns[0].text == "4\nLegal: 1, 2, 3"
    result = game.step({"ann": "I take 2."})
    assert result.rewards == {"ann": 0, "bob": 0}
    assert result.observations["bob"].actions == ("1", "2")
    result = game.step({"bob": "3"})
    assert result.rewards == {"bob": -1.0}
    assert list(result.observations) == ["bob"]
    result = game.step({"bob": "2"})
    assert result.rewards == {"ann": -1.0, "bob": 1.0}
    assert (result.terminated, result.truncated, dict(result.observations)) == (True, False, {})
    assert result.info == {"steps": 3, "illegal": 1}


def test_the_returns_of_an_episode_are_those_of_pettingzoos_own_loop(own: Path) -> None:
    for name in ("Take?stones=17", "Match?rounds=4&quits=2"):
        named = load_environment(f"{own}:{name}")

        def say(seen, rng) -> str:
            return legal(seen, rng) if seen.actions else f"{rng.integers(4)} {rng.integers(2)}"

        played, returns = episodes(named, say, 10)
        for episode, earned in zip(played, returns, strict=True):
            assert not episode.error
            actions = [text for said in episode.actions for text in said.values()]
            assert earned == canonical(named.environment().env, episode.seed, actions)


def canonical(env, seed: int, replies: list[str]) -> dict[str, float]:
    """The returns by PettingZoo's documented loop over `agent_iter` and `last`."""
    env.reset(seed=seed)
    returns, left = dict.fromkeys(env.possible_agents, 0.0), list(replies)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        returns[agent] += reward
        numbers = None if terminated or truncated else np.array(left.pop(0).split(), int)
        env.step(numbers if numbers is None or len(numbers) > 1 else int(numbers[0]))
    assert not left
    return returns


def test_parallel_agents_see_the_same_round_and_leave_when_they_are_done(own: Path) -> None:
    named = load_environment(f"{own}:Match?rounds=3&quits=2")
    played, [returns] = episodes(named, lambda seen, rng: f"{int(seen.prompt.turns[0].text) + 1} 0")
    [episode] = played
    assert [list(said) for said in episode.actions] == [[f"x_{i}"] for i in (0, 1, 2, 0, 1, 2, 0, 2)]
    assert returns == {"x_0": 3.0, "x_1": 2.0, "x_2": 3.0}
    assert (episode.result.truncated, episode.result.terminated) == (True, False)
    # those that were cut off, with what they would have seen next
    assert {a: seen.prompt.turns[0].text for a, seen in episode.observations.items()} == {"x_0": "3", "x_2": "3"}


def test_one_agent_may_be_the_policy_while_others_make_random_legal_moves(own: Path) -> None:
    named = load_environment(f"{own}:OneSided?stones=9")
    assert (named.trained_agents, list(named.players)) == (1, ["ann"])
    played, returns = episodes(named, legal, 30)
    assert not any(episode.error for episode in played)
    assert all(list(episode.steps) == ["bob"] for episode in played)
    assert {episode.environment.illegal for episode in played} == {0}
    assert len({episode.actions[0]["ann"] for episode in played}) == 3
    assert {earned["bob"] for earned in returns} == {1.0, -1.0}
    again, _ = episodes(named, legal, 30)
    assert [episode.actions for episode in again] == [episode.actions for episode in played]
    assert episodes(named, lambda seen, rng: "no", 1)[0][0].result.truncated


def test_random_moves_are_samples_where_no_actions_are_listed(own: Path) -> None:
    named = load_environment(f"{own}:Match?rounds=2")
    one = NamedEnvironment("x", named.environment, players=_random_players(own), trained_agents=1)
    [episode], _ = episodes(one, lambda seen, rng: "1 1")
    assert not episode.error
    assert all(re.fullmatch(r"\[[0-3], [01]\]", said["x_1"]) for said in episode.actions if "x_1" in said)
    assert episode.result.info == {"steps": 6, "illegal": 0}


def _random_players(own: Path):
    from lmgym.apps.interop.from_pettingzoo import RandomMoves

    env = load_environment(f"{own}:Match").environment().env
    return {agent: RandomMoves(env.action_space(agent)) for agent in ("x_1", "x_2")}


def test_agents_that_are_numbers_have_their_numbers_as_names(own: Path) -> None:
    _, [returns] = episodes(load_environment(f"{own}:Numbered"), lambda seen, rng: "1 0")
    assert returns == {"0": 1.0, "1": 1.0}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Forgets", r"by the rewards of each step and 0 by last\(\); needed: .* passes pettingzoo.test.api_test"),
        ("NaNReward", "a reward for 'ann': nan is no reward"),
        ("TextReward", "a reward for 'ann': '1' is str"),
        ("Raises", "RuntimeError: the stones rolled away"),
        ("NaNSeen", "the observation has NaN"),
        ("Empty", "no agents"),
        ("Stays", "stays after its end; needed: .* passes pettingzoo.test.api_test"),
    ],
)
def test_a_failure_ends_the_episode_as_failed_and_no_more(own: Path, name: str, why: str) -> None:
    played, _ = episodes(load_environment(f"{own}:{name}"), lambda seen, rng: "1", 2)
    for episode in played:
        assert re.search(why, episode.error), episode.error
        assert all(steps[-1].reward is None for steps in episode.steps.values())


def test_an_episode_of_illegal_replies_is_truncated(own: Path) -> None:
    [episode], [returns] = episodes(load_environment(f"{own}:Take"), lambda seen, rng: "all of them")
    assert episode.result.truncated
    assert returns == {"ann": -3.0}
    assert episode.result.info == {"steps": 3, "illegal": 3}


def test_an_episode_without_an_end_is_truncated(own: Path) -> None:
    [episode], _ = episodes(load_environment(f"{own}:Match?rounds=5000"), lambda seen, rng: "0 0")
    assert episode.result.truncated
    assert episode.step_number == 3000
    game = load_environment(f"{own}:Take").environment()
    game.reset({}, 0)
    replies = ("ann", "no"), ("ann", "no"), ("ann", "1"), ("bob", "no"), ("bob", "no"), ("bob", "no")
    assert [game.step({agent: reply}).truncated for agent, reply in replies] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pettingzoo:classic.tictacto_v3", "did you mean classic.tictactoe_v3?"),
        ("pettingzoo:classic", "pettingzoo has no 'classic'"),
        ("pettingzoo:", "pettingzoo has no ''"),
        ("pettingzoo:json.decoder", "pettingzoo has no 'json.decoder'"),
        ("pettingzoo:no_such.game_v0", "No module named 'no_such'; needed: pip install no_such"),
        ("{}:Nameless", "has no possible_agents"),
        ("{}:Spaceless", "RuntimeError: no space"),
        ("{}:Camera", "Camera (ann) observes an image of 8 x 8 x 3"),
        ("{}:Take?policy=bob", "unexpected keyword argument 'policy'"),
    ],
)
def test_what_cannot_be_played_is_refused_with_what_is_needed(own: Path, words: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        load_environment(words.format(own))
    assert message in str(refused.value)


def test_a_module_makes_the_environment_with_its_settings() -> None:
    pytest.importorskip("pygame")
    named = load_environment("pettingzoo:classic.tictactoe_v3?policy=player_2")
    assert (named.trained_agents, list(named.players)) == (1, ["player_1"])
    played, returns = episodes(named, legal, 20)
    assert not any(episode.error for episode in played)
    assert {earned["player_2"] for earned in returns} >= {1.0, -1.0}
    assert all(earned["player_1"] == -earned["player_2"] for earned in returns)
    shown = load_environment("pettingzoo:classic.rps_v2?max_cycles=2").environment()
    shown.reset({}, 0)
    assert [shown.step({f"player_{i % 2}": "0"}).truncated for i in range(4)] == [False] * 3 + [True]
    with pytest.raises(InputError, match="has no agent 'player_3'; did you mean player_"):
        load_environment("pettingzoo:classic.tictactoe_v3?policy=player_3")


def test_what_is_listed_can_be_played() -> None:
    for name in SCHEME.names():
        assert load_environment(f"pettingzoo:{name}").environment().reset({}, 0)


def test_without_pettingzoo_nothing_is_listed_and_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SCHEME.missing() == ""
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    assert SCHEME.missing() == "pip install 'lmgym[pettingzoo]'"
    assert list(SCHEME.names()) == []
    assert SCHEME.wrap("x", object, object()) is None
    with pytest.raises(InputError, match=r"needed: pip install 'lmgym\[pettingzoo\]'"):
        load_environment("pettingzoo:classic.rps_v2")

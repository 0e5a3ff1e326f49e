"""Our environments as PettingZoo's: its own tests, equal episodes both ways, agents, rewards and failures."""

import contextlib
import io
import warnings

import numpy as np
import pytest

from lmgym.apps.games.alternating import Alternating
from lmgym.apps.games.prisoners import PrisonersDilemma
from lmgym.apps.games.tic_tac_toe import TicTacToe
from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import GeneratorPlayer, ScriptPlayer
from lmgym.environments.protocol import EpisodeFailed, Observation, StepResult
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

pytest.importorskip("pettingzoo")

from lmgym.apps.interop.from_pettingzoo import SCHEME
from lmgym.apps.interop.texts import text_of
from lmgym.apps.interop.to_pettingzoo import as_pettingzoo

WORDS = ("GUESS: cat", "l l l", "cooperate", "defect", "CLUE: an animal")


def noughts() -> Alternating:
    """Tic-tac-toe, both sides trained."""
    return Alternating(TicTacToe())


def dilemma() -> PrisonersDilemma:
    """Both move at once."""
    return PrisonersDilemma(3)


SEVERAL = (NamedEnvironment("noughts", noughts, trained_agents=2), NamedEnvironment("both", dilemma, trained_agents=2))
ONE = ("games:blackjack", "dialogue:taboo/guesser", "arithmetic:+-", "debate:letters")
ALL = (*SEVERAL, *map(load_environment, ONE))
by_name = pytest.mark.parametrize("named", ALL, ids=lambda named: named.name)


class Told:
    """`first` speaks, `second` is paid for what first said; then both at once are asked, and cut off."""

    trained_agents = 2

    def reset(self, task, seed):
        self.turn = 0
        return {"first": ask("one")}

    def step(self, actions):
        self.turn += 1
        if "break" in actions.values():
            raise RuntimeError("a broken line")
        if self.turn == 1:
            return StepResult({"second": ask("two")}, {"first": 1.0, "second": 100.0})
        if self.turn == 2:
            return StepResult({"first": ask("three"), "second": ask("four")}, {"first": 10.0, "second": 20.0})
        return StepResult({"first": ask("five")}, {a: float(len(t)) for a, t in actions.items()}, truncated=True)


def ask(text: str) -> Observation:
    return Observation(Conversation((Turn("user", text),)))


def say(seen: Observation, rng: np.random.Generator) -> str:
    actions = seen.actions or WORDS
    return actions[int(rng.integers(len(actions)))]


@by_name
def test_pettingzoos_own_tests_pass(named: NamedEnvironment) -> None:
    from pettingzoo.test import api_test, seed_test

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # that texts are no arrays, and names have no numbers
        api_test(as_pettingzoo(named), num_cycles=60)
        seed_test(lambda: as_pettingzoo(named), num_cycles=20)


@by_name
def test_episodes_are_ours_by_task_and_seed(named: NamedEnvironment) -> None:
    env = as_pettingzoo(named)
    others = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
    for seed in range(6):
        task = named.tasks[seed % len(named.tasks)]
        earned: dict[str, float] = dict.fromkeys(env.possible_agents, 0.0)
        shown: list[tuple[str, str]] = []

        def watch(episode, shown=shown, earned=earned) -> None:
            shown += [(a, text_of(seen)) for a, seen in episode.observations.items() if a in env.possible_agents]
            for agent in env.possible_agents if named.reward_function is None else ():
                earned[agent] += episode.result.rewards.get(agent, 0.0) if episode.said else 0.0

        player = ScriptPlayer(lambda environment, seen, rng: say(seen, rng), lambda seed: [1, seed])
        players = {**others, **dict.fromkeys(env.possible_agents, player)}
        [episode] = play([named.environment()], [task], [seed], players, watch=watch)
        replies = [(agent, text) for said in episode.actions for agent, text in said.items() if agent in earned]
        env.reset(seed=seed, options={"task": task})
        found, seen = dict.fromkeys(env.possible_agents, 0.0), []
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            found[agent] += reward
            if terminated or truncated:
                assert (terminated, truncated) == (episode.result.terminated, episode.result.truncated)
                assert {key: info[key] for key in episode.result.info} == dict(episode.result.info)
                env.step(None)
                continue
            seen.append((agent, observation["text"]))
            whose, text = replies.pop(0)
            assert whose == agent
            env.step(text)
        assert not replies
        assert seen == shown[: len(seen)]
        assert env.episode.actions == episode.actions
        if named.reward_function is None:
            assert found == pytest.approx(earned)


@by_name
def test_ours_as_pettingzoos_as_ours_plays_the_same_episodes(named: NamedEnvironment) -> None:
    made = []

    def make():
        made.append(as_pettingzoo(named))
        return made[-1]

    back = SCHEME.wrap("back", make, make())
    assert back is not None
    assert back.trained_agents == len(made[0].possible_agents)
    direct = as_pettingzoo(named)
    for seed in range(6):
        environment, rng = back.environment(), np.random.default_rng(seed)
        shown = environment.reset({}, seed)
        direct.reset(seed=seed)
        for agent in direct.agent_iter():
            observation, _, terminated, truncated, info = direct.last()
            if terminated or truncated:
                direct.step(None)
                continue
            assert list(shown) == [agent]
            assert shown[agent].prompt.turns[-1].text == observation["text"]
            reply = say(Observation("", info["actions"]), rng)
            direct.step(reply)
            result = environment.step({agent: reply})
            assert result.rewards == direct.rewards
            shown = result.observations
        assert result.terminated != result.truncated
        environment.close()


def test_rewards_are_those_of_the_engine_and_a_cut_ends_all_agents() -> None:
    env = as_pettingzoo(Told)
    assert env.possible_agents == ["first", "second"]
    env.reset(seed=0)
    assert (env.agent_selection, env.observe("first"), env.observe("second")) == (
        "first",
        {"text": "one"},
        {"text": ""},
    )
    env.step("x")
    assert env.rewards == {"first": 1.0, "second": 0.0}  # the engine pays nobody who has not acted
    assert env.agent_selection == "second"
    env.step("x")
    assert env.rewards == {"first": 10.0, "second": 20.0}
    assert env.last()[:2] == ({"text": "three"}, 11.0)
    env.step("abc")
    assert env.rewards == {"first": 0.0, "second": 0.0}
    assert env.last()[:2] == ({"text": "four"}, 20.0)
    env.step("abcd")
    assert env.truncations == {"first": True, "second": True}
    assert env.terminations == {"first": False, "second": False}
    assert env.last()[:2] == ({"text": "five"}, 3.0)
    env.step(None)
    assert env.last()[:2] == ({"text": "four"}, 4.0)
    env.step(None)
    assert env.agents == []
    env.close()


def test_a_failure_is_no_reward() -> None:
    env = as_pettingzoo(Told)
    env.reset(seed=0)
    with pytest.raises(EpisodeFailed, match="a broken line"):
        env.step("break")
    env.reset(seed=0)
    env.step("x")
    assert env.rewards["first"] == 1.0


def test_agents_are_found_or_given() -> None:
    assert as_pettingzoo(Told, ("first", "second")).possible_agents == ["first", "second"]
    with pytest.raises(InputError, match="trains 3 agents, and an episode asked first, second; needed: agents="):
        as_pettingzoo(NamedEnvironment("three", noughts, trained_agents=3))
    env = as_pettingzoo(Told, ("first",))
    env.reset(seed=0)
    with pytest.raises(InputError, match="Told asks second; needed: agents= with all trained agents"):
        env.step("x")


def test_a_class_or_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean blackjack"):
        as_pettingzoo("games:blackjak")
    with pytest.raises(InputError, match="split='test'"):
        as_pettingzoo("games:blackjack").reset(seed=0, options={"split": "test"})

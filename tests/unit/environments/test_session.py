"""A session: the episodes of one agent, a reply at a time, equal to those that the engine plays."""

import numpy as np
import pytest

from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import GeneratorPlayer, ScriptPlayer
from lmgym.environments.protocol import POLICY, EpisodeFailed, Observation, StepResult
from lmgym.environments.session import Session
from lmgym.errors import InputError
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.text import Conversation, Turn

ASK = Observation(Conversation((Turn("user", "Well?"),)))
EPISODES = 25


def say(environment, seen, rng) -> str:
    """A listed action, or words of which some are right somewhere."""
    words = ["GUESS: cat", "l l l", "7", "hello, tell me more about music", "CLUE: an animal"]
    actions = seen.actions or words
    return actions[int(rng.integers(len(actions)))]


@pytest.mark.parametrize(
    "words", ["games:blackjack", "dialogue:taboo/guesser", "world:1", "debate:letters", "arithmetic:+-"]
)
def test_a_session_plays_the_episodes_of_the_engine(words: str):
    named = load_environment(words)
    others = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
    own = ScriptPlayer(say, lambda seed: [1, seed])
    tasks = [named.tasks[i % len(named.tasks)] for i in range(EPISODES)]
    rewards: list[dict[int, float]] = [{} for _ in tasks]

    def watch(episode) -> None:
        if named.reward_function is None:
            rewards[episode.index][episode.step_number] = episode.result.rewards.get(agent, 0.0)

    with Session(named) as session:
        session.reset(tasks[0], 0)
        agent = session.agent
        seeds = list(range(EPISODES))
        episodes = play([named.environment() for _ in tasks], tasks, seeds, {**others, agent: own}, watch=watch)
        for task, seed, episode in zip(tasks, seeds, episodes, strict=True):
            seen, total = session.reset(task, seed), 0.0
            for said in (actions[agent] for actions in episode.actions if agent in actions):
                seen = session.reply(said)
                total += seen.reward
            assert seen.ended
            assert session.episode.actions == episode.actions
            assert seen.info == episode.result.info
            if named.reward_function is None:
                assert total == pytest.approx(sum(rewards[episode.index].values()))


class Two:
    """Two agents at once."""

    def reset(self, task, seed):
        return {"a": ASK, "b": ASK}

    def step(self, actions):
        return StepResult(rewards={"a": len(actions["b"])}, terminated=True)


def test_the_rewards_of_a_turn_are_those_until_the_agent_acts_again():
    class Answered:
        """The other agent answers, and its answer is what pays."""

        def reset(self, task, seed):
            self.said = 0
            return {"a": ASK}

        def step(self, actions):
            self.said += 1
            if "a" in actions:
                return StepResult({"b": ASK}, {"a": 1.0})
            return StepResult({"a": ASK} if self.said < 4 else {}, {"a": 10.0}, terminated=self.said >= 4)

    with Session(NamedEnvironment("x", Answered, players={"b": ScriptedGenerator(["yes"])})) as session:
        assert session.reset({}, 0).observation == ASK
        assert [session.reply("go").reward, session.reply("go").reward] == [11.0, 11.0]


def test_agents_that_nobody_plays_are_refused():
    with Session(NamedEnvironment("x", Two)) as session, pytest.raises(InputError, match="x asks a and b; needed"):
        session.reset({}, 0)
    with Session(NamedEnvironment("x", Two, players={"b": ScriptedGenerator(["yes"])})) as session:
        session.reset({}, 0)
        assert session.reply("no").reward == 3.0
    with pytest.raises(InputError, match="trains 2 agents at once"):
        Session(NamedEnvironment("x", Two, trained_agents=2))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (RuntimeError("the board fell"), "the board fell"),
        (StepResult(rewards={POLICY: float("nan")}, terminated=True), "nan"),
        (StepResult(rewards={POLICY: "much"}, terminated=True), "much"),  # type: ignore[dict-item]
        (StepResult(), "observation"),
        (None, "StepResult"),
    ],
)
def test_a_failure_of_the_environment_is_no_reward(result, message: str):
    class Fails:
        def reset(self, task, seed):
            return {POLICY: ASK}

        def step(self, actions):
            if isinstance(result, Exception):
                raise result
            return result

    with Session(NamedEnvironment("x", Fails)) as session:
        session.reset({}, 0)
        with pytest.raises(EpisodeFailed, match=message):
            session.reply("go")
        assert session.reset({}, 1).observation == ASK


def test_an_episode_that_ends_before_the_agent_acts_is_a_failure():
    class Ends:
        def reset(self, task, seed):
            return {}

        def step(self, actions):
            raise AssertionError

    with Session(NamedEnvironment("x", Ends)) as session, pytest.raises(EpisodeFailed, match="before the agent acted"):
        session.reset({}, 0)


def test_replies_of_others_depend_on_the_episode_alone():
    named = load_environment("debate:letters")
    with Session(named) as first, Session(named) as second:
        for seed in (3, 4):
            first.reset(named.tasks[0], seed)
            first.reply("l")
        second.reset(named.tasks[0], 4)
        second.reply("l")
        assert np.array_equal(first.episode.actions, second.episode.actions)

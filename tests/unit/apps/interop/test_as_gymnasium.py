"""Our environments as Gymnasium's: its own checks, equal episodes both ways, tasks by options, and failures."""

import warnings

import numpy as np
import pytest

from lmgym.environments.engine import play
from lmgym.environments.named import load_environment
from lmgym.environments.players import GeneratorPlayer, ScriptPlayer
from lmgym.environments.protocol import POLICY, EpisodeFailed, Observation, StepResult
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from lmgym.apps.interop.from_gymnasium import SCHEME  # noqa: E402
from lmgym.apps.interop.texts import AnyText, text_of  # noqa: E402
from lmgym.apps.interop.to_gymnasium import as_gymnasium  # noqa: E402

NAMES = ("games:blackjack", "games:frozen_lake", "arithmetic:+-", "dialogue:taboo/guesser", "world:0", "debate:letters")
WORDS = ("GUESS: cat", "l l l", "7", "hello, tell me more about music", "CLUE: an animal")


class Shout:
    """Two turns: say the word of the task, in capitals the second time; ½ each. Other words cut the episode off."""

    tasks = ({"word": "über"}, {"word": "naïve\n"})
    eval_tasks = ({"word": "held out"},)

    def reset(self, task, seed):
        self.word, self.turn = task["word"], 0
        return self._ask()

    def step(self, actions):
        self.turn += 1
        wanted = self.word if self.turn == 1 else self.word.upper()
        if actions[POLICY] == "stop":
            raise RuntimeError("hoarse")
        right = actions[POLICY] == wanted
        over, cut = self.turn == 2, not right
        seen = {} if over and not cut else self._ask()
        return StepResult(seen, {POLICY: 0.5 * right}, over and not cut, cut, {"turns": self.turn})

    def _ask(self):
        turns = (Turn("user", f"Say {self.word}"), Turn("bot", "ok"), Turn("user", "Well? 🙂"))
        return {POLICY: Observation(Conversation(turns[: 1 + 2 * self.turn], "Speak."), ("a", "b"))}


def say(environment, seen, rng) -> str:
    actions = seen.actions or WORDS
    return actions[int(rng.integers(len(actions)))]


@pytest.mark.parametrize("name", NAMES)
def test_gymnasiums_own_check_passes(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(as_gymnasium(name), skip_render_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_episodes_are_ours_by_task_and_seed(name: str) -> None:
    named = load_environment(name)
    others = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
    env = as_gymnasium(name)
    tasks = [named.tasks[i % len(named.tasks)] for i in range(8)]
    for seed, task in enumerate(tasks):
        observation, info = env.reset(seed=seed, options={"task": task})
        agent = env.session.agent
        player = {**others, agent: ScriptPlayer(say, lambda seed: [1, seed])}
        shown: list[str] = []
        earned: list[float] = []

        def watch(episode, shown=shown, earned=earned, agent=agent) -> None:
            earned.append(episode.result.rewards.get(agent, 0.0) if episode.said else 0.0)
            if agent in episode.observations:
                shown.append(text_of(episode.observations[agent]))

        [episode] = play([named.environment()], [task], [seed], player, watch=watch)
        seen, total = [observation], 0.0
        for text in [said[agent] for said in episode.actions if agent in said]:
            observation, reward, terminated, truncated, info = env.step(text)
            seen.append(observation)
            total += reward
        assert (terminated, truncated) == (episode.result.terminated, episode.result.truncated)
        assert seen[:-1] == shown[: len(seen) - 1]
        assert {key: info[key] for key in episode.result.info} == dict(episode.result.info)
        assert env.session.episode.actions == episode.actions
        if named.reward_function is None:
            assert total == pytest.approx(sum(earned))
    env.close()


@pytest.mark.parametrize("name", ["games:blackjack", "games:frozen_lake", "arithmetic:+-", "dialogue:taboo/guesser"])
def test_ours_as_gymnasiums_as_ours_plays_the_same_episodes(name: str) -> None:
    made = []

    def make():
        made.append(as_gymnasium(name))
        return made[-1]

    back = SCHEME.wrap("back", make, make())
    assert back is not None
    direct = as_gymnasium(name)
    for seed in range(8):
        environment, rng = back.environment(), np.random.default_rng(seed)
        shown = environment.reset({}, seed)[POLICY]
        observation, info = direct.reset(seed=seed)
        over = False
        while not over:
            assert shown.prompt.turns[-1].text == observation
            assert shown.prompt.persona == "You act in SessionEnv. Reply with a text."
            reply = say(None, Observation("", info["actions"]), rng)
            observation, reward, terminated, truncated, info = direct.step(reply)
            result = environment.step({POLICY: reply})
            assert result.rewards == {POLICY: reward}
            assert (result.terminated, result.truncated) == (terminated, truncated)
            shown, over = result.observations.get(POLICY), terminated or truncated
        environment.close()


def test_texts_of_all_characters_and_of_several_turns_are_in_the_space_and_in_the_info() -> None:
    env = as_gymnasium(Shout)
    observation, info = env.reset(seed=0, options={"task": {"word": "naïve\n"}})
    assert observation == "Speak.\n\nSay naïve\n"
    assert info == {
        "messages": [{"role": "system", "content": "Speak."}, {"role": "user", "content": "Say naïve\n"}],
        "actions": ["a", "b"],
    }
    observation, reward, terminated, truncated, info = env.step("naïve\n")
    assert observation == "Speak.\nUser: Say naïve\n\nBot: ok\nUser: Well? 🙂\nBot:"
    assert (reward, terminated, truncated, info["turns"]) == (0.5, False, False, 1)
    for text in (observation, "", "x" * 10**5, "\0"):
        assert text in env.observation_space
        assert text in env.action_space
    assert 7 not in env.action_space
    assert env.step("NAÏVE\n")[:4] == ("", 0.5, True, False)


def test_a_truncated_episode_shows_what_would_have_come_next() -> None:
    env = as_gymnasium(Shout)
    env.reset(seed=0, options={"task": {"word": "über"}})
    observation, reward, terminated, truncated, info = env.step("what?")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert observation.startswith("Speak.\nUser: Say über")
    assert info["messages"][-1]["content"] == "Well? 🙂"


def test_a_seed_is_the_number_of_an_episode_of_its_split() -> None:
    env = as_gymnasium(Shout)

    def begun(**given) -> tuple[str, int]:
        env.reset(**given)
        return env.task["word"], env.session.episode.seed

    assert [begun(seed=seed) for seed in range(4)] == [("über", 0), ("naïve\n", 0), ("über", 1), ("naïve\n", 1)]
    assert begun(seed=3, options={"split": "validation"}) == ("held out", 3)
    assert begun(seed=3, options={"task": {"word": "x"}}) == ("x", 3)
    env.reset(seed=3)
    drawn = [begun() for _ in range(20)]
    env.reset(seed=3)
    assert [begun() for _ in range(20)] == drawn
    assert len({seed for _, seed in drawn}) > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 1}, "no option tasks; needed: task, split"),
        ({"split": "test"}, "split='test'; needed: train or"),
        ({"task": 3}, "task=3; needed: a dict"),
    ],
)
def test_options_that_are_none_are_refused(options, message: str) -> None:
    env = as_gymnasium("games:blackjack")
    with pytest.raises(InputError, match=message):
        env.reset(seed=0, options=options)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("hit")


def test_a_failure_and_the_end_are_no_rewards() -> None:
    env = as_gymnasium(Shout)
    env.reset(seed=0)
    with pytest.raises(EpisodeFailed, match="hoarse"):
        env.step("stop")
    with pytest.raises(gymnasium.error.ResetNeeded, match="needed: reset"):
        env.step("über")
    env.reset(seed=0)
    env.step("no")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("no")


def test_the_space_of_all_texts_samples_texts_by_its_seed() -> None:
    one, other = AnyText(seed=3), AnyText(seed=3)
    assert one == other
    assert [one.sample() for _ in range(5)] == [other.sample() for _ in range(5)]
    assert one != gymnasium.spaces.Text(5)

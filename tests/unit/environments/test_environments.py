"""The environments: scored chat, the app's conversation, Blackjack, the prisoner's dilemma."""

import re
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from acting import TOKENIZER, FakeReward, Scripted

from lmgym.apps.games.prisoners import PrisonersDilemma, tit_for_tat
from lmgym.apps.world.app import deploy
from lmgym.apps.world.app_conversation import SEEDS, AppConversation
from lmgym.apps.world.behaviour import Behaviour
from lmgym.apps.world.streams import draw_population
from lmgym.apps.world.world import World
from lmgym.environments.protocol import Environment, Observation, SampleReward, StepResult
from lmgym.environments.rollout_engine import run_episodes
from lmgym.environments.scored_chat import ScoredChat
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.messages import from_transcript
from lmgym.text import Conversation, Turn, to_transcript

WORLD = World(0)


def answer(conversation: Conversation) -> str:
    """Kind, dull or rude, as a function of what was said; with white space that the app does not show."""
    lot = zlib.crc32(to_transcript(conversation).encode()) % 4
    [thing, *_] = WORLD.grammar.named_things(conversation)
    return (f" {thing} are great.\ndo you like {thing}? ", "ok.", "who cares.", f"{thing} are nice. ")[lot]


@cache
def deployed() -> Behaviour:
    return deploy(ScriptedGenerator(lambda conversation, rng: answer(conversation)), 60, 8, 3, WORLD)


Policy = Callable[[Observation], str]


def play(environment: Environment, task: Mapping, seed: int, policy: Policy) -> tuple[list[StepResult], list[str]]:
    """(results, replies) of an episode with one agent."""
    observations, results, said = environment.reset(task, seed), [], []
    while not (results and (results[-1].terminated or results[-1].truncated)):
        said.append(policy(observations["policy"]))
        results.append(environment.step({"policy": said[-1]}))
        observations = results[-1].observations
    return results, said


def converse(environment: AppConversation, user: int, day: int) -> list[StepResult]:
    return play(environment, {"user": user}, day, lambda seen: answer(seen.prompt))[0]


def test_a_scored_chat_shows_its_prompt_requests_one_score_and_ends() -> None:
    prompt = Conversation((Turn("user", "hello"),))
    chat = ScoredChat()
    assert chat.reset({"prompt": prompt, "target": 3, "topic": "x"}, 0) == {"policy": Observation(prompt)}
    result = chat.step({"policy": "hi."})
    assert result.terminated
    assert not result.rewards
    [request] = result.score_requests
    assert (request.agent, request.prompt, request.reply) == ("policy", prompt, "hi.")
    assert request.columns == {"target": 3, "topic": "x"}
    assert chat.reset({"prompt": "a"}, 0)["policy"].prompt == "a"
    with pytest.raises(InputError, match="a task has prompt=None; needed: a Conversation or a text"):
        chat.reset({"text": "a"}, 0)


def test_conversations_equal_those_of_the_deployed_app() -> None:
    """Every user of a day has the same messages, replies and retries."""
    behaviour = deployed()
    messages, chats = behaviour.activity.messages, iter(behaviour.chats)
    said = {}
    for chat in chats:
        said.setdefault(chat.user, []).append(chat.turns)
    retries = np.zeros(60, dtype=np.int64)
    replies = np.concatenate(behaviour.traces.utility).size
    seen = 0
    for user in range(60):
        environment = AppConversation(WORLD, behaviour.population, max_replies=1000)
        for day, turns in zip(np.flatnonzero(messages[user]).tolist(), said[user], strict=True):
            results = converse(environment, user, day)
            assert environment.chat.turns == turns
            assert results[-1].terminated
            assert results[-1].info["length"] == messages[user, day]
            assert sum(result.rewards["policy"] for result in results) == messages[user, day] - 1
            retries[user] += results[-1].info["retries"]
            seen += len(results)
    assert (retries == behaviour.activity.retries).all()
    assert seen == replies
    assert retries.sum() > 50
    assert messages[:, 0].std() > 2


def test_the_logged_utility_is_the_hidden_utility_of_the_reply_as_the_app_shows_it() -> None:
    environment = AppConversation(WORLD, deployed().population)
    shown = environment.reset({"user": 7}, 0)["policy"].prompt
    user = deployed().population.users.take(np.array([7]))
    result = environment.step({"policy": " i like it. \n ok. "})
    assert result.info["utility"] == pytest.approx(WORLD.utility([shown], ["i like it. ok."], user)[0])


def test_the_reward_is_1_for_a_further_message_and_retry_reward_for_a_retry() -> None:
    population = deployed().population
    kinds = set()
    for user in range(40):
        environment = AppConversation(WORLD, population, retry_reward=-0.25)
        before = 1
        for result in converse(environment, user, 0):
            went_on = result.info["length"] - before
            before = result.info["length"]
            reward = result.rewards["policy"]
            assert reward in (1.0, 0.0, -0.25)
            assert (reward == 1.0) == (went_on == 1)
            kinds.add((reward, result.terminated))
        total = sum(r.rewards["policy"] for r in converse(environment, user, 0))
        assert total == before - 1 - 0.25 * environment.retries
    assert kinds == {(1.0, False), (0.0, False), (0.0, True), (-0.25, False), (-0.25, True)}


def test_a_conversation_is_truncated_after_max_replies_and_shows_the_next_observation() -> None:
    environment = AppConversation(WORLD, deployed().population, max_replies=3)
    ends = [converse(environment, user, 0) for user in range(40)]
    assert {len(results) for results in ends} == {1, 2, 3}
    stopped = [results[-1] for results in ends if results[-1].truncated]
    assert 0 < len(stopped) < 40
    assert all(bool(r.observations) and not r.terminated for r in stopped)
    assert all(not results[-1].observations for results in ends if results[-1].terminated)


def test_task_and_seed_determine_the_conversation() -> None:
    alone = draw_population(WORLD, np.array([5, 17]), 3)  # another company, the same people
    one, two = AppConversation(WORLD, deployed().population), AppConversation(WORLD, alone)
    assert converse(one, 17, 123) == converse(two, 17, 123) == converse(one, 17, 123)
    openings = {one.reset({"user": 17}, seed)["policy"].prompt for seed in (0, 1, 2**34, 2**62 + 12345, SEEDS - 1)}
    assert len(openings) == 5


@pytest.mark.parametrize("user", [None, 4, 18, "5"])
def test_a_user_outside_the_population_is_refused(user) -> None:
    environment = AppConversation(WORLD, draw_population(WORLD, np.array([5, 17]), 3))
    with pytest.raises(InputError, match="needed: a number of the population's 2 users, from 5 to 17"):
        environment.reset({"user": user}, 0)


@pytest.mark.parametrize("make", [PrisonersDilemma, lambda n: AppConversation(WORLD, deployed().population, n)])
def test_an_episode_without_steps_is_refused(make) -> None:
    with pytest.raises(InputError, match="=0; needed: 1 or more"):
        make(0)


def test_two_prisoners_move_at_once_and_each_sees_its_own_side() -> None:
    environment = PrisonersDilemma(rounds=3)
    shown = environment.reset({}, 0)
    assert shown["first"] == shown["second"]
    first = environment.step({"first": "I cooperate.", "second": "Defect"})
    assert first.rewards == {"first": 0.0, "second": 5.0}
    turns = [turn.text for turn in first.observations["first"].prompt.turns]
    assert turns == ["Round 1?", "I cooperate.", "The other player chose to defect. You earn 0. Round 2?"]
    assert first.observations["second"].prompt.turns[1:] == (
        Turn("bot", "Defect"), Turn("user", "The other player chose to cooperate. You earn 5. Round 2?")
    )  # fmt: skip
    second = environment.step({"first": "cooperate or defect?", "second": "hm"})
    assert second.rewards == {"first": 1.0, "second": 1.0}
    last = environment.step({"first": "cooperate", "second": "cooperate"})
    assert last.rewards == {"first": 3.0, "second": 3.0}
    assert last.terminated
    assert last.info == {"first_cooperated": 2.0, "second_cooperated": 1.0}


def test_tit_for_tat_repeats_the_other_players_move() -> None:
    environment, rng = PrisonersDilemma(rounds=4), np.random.default_rng(0)
    observations, answers = environment.reset({}, 0), []
    for words in ("defect", "cooperate", "defect", "defect"):
        answers.append(tit_for_tat(observations["second"].prompt, rng))
        observations = environment.step({"first": words, "second": answers[-1]}).observations
    assert answers == ["cooperate", "defect", "cooperate", "defect"]


def test_the_engine_plays_different_environments_together() -> None:
    """A scored chat, two users of the app and two prisoners, one of them scripted, in one request a step."""

    def policy(text: str, seed: int) -> str:
        if "defect" in text:
            return "defect"
        return "hello" if "hello" in text else answer(from_transcript(text))

    users = [AppConversation(WORLD, deployed().population, max_replies=5) for _ in range(2)]
    environments = [ScoredChat(), *users, PrisonersDilemma(rounds=3)]
    tasks = [{"prompt": "hello", "bonus": 2.0}, {"user": 3}, {"user": 4}, {}]
    reward_function = FakeReward(lambda sample: SampleReward(0.5 + sample.request.columns["bonus"]))
    generator = Scripted(policy, max_length=2000)
    others = {"second": ScriptedGenerator(tit_for_tat)}
    episodes = run_episodes(
        environments, tasks, [0, 1, 2, 3], generator, TOKENIZER, Sampling(), reward_function, others
    )  # fmt: skip
    assert [(e.index, e.agent) for e in episodes] == [*((i, "policy") for i in range(3)), (3, "first")]
    assert len(generator.asked[0]) == 4
    assert len(generator.asked) == max(len(episode.steps) for episode in episodes)
    chat, *talks, game = episodes
    assert [step.reward for step in chat.steps] == [2.5]
    assert [step.reward for step in game.steps] == [5.0, 1.0, 1.0]  # tit for tat cooperates once
    for talk, user, day in zip(talks, (3, 4), (1, 2), strict=True):
        alone = converse(AppConversation(WORLD, deployed().population, max_replies=5), user, day)
        assert [step.reward for step in talk.steps] == [result.rewards["policy"] for result in alone]
        assert talk.info == alone[-1].info
        assert (talk.final_prompt is None) == talk.terminated


def test_the_code_in_the_documentation_runs(small_models: dict[str, Path]) -> None:
    """The guessing game is played to both of its ends, and the prisoners by a model."""
    text = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")
    [prisoners] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec((Path(__file__).parents[3] / "examples/environments/guess.py").read_text(), names)
    generator = Scripted(lambda prompt, seed: "7" if "higher" in prompt else "5")
    episodes = run_episodes(
        [names["Guess"](), names["Guess"]()], [{}, {}], [6, 1], generator, TOKENIZER, Sampling(), None
    )  # fmt: skip
    assert [[step.reward for step in episode.steps] for episode in episodes] == [[0.0, 1.0], [0.0] * 4]
    assert [step.prompt_text.splitlines()[-2] for step in episodes[0].steps] == [
        "User: A number from 1 to 9?", "User: Try higher.",
    ]  # fmt: skip
    assert [episode.info for episode in episodes] == [{"tries": 2}, {"tries": 4}]

    names = {}
    exec(prisoners.replace("outputs/negotiator", str(small_models["llama"])), names)
    assert len(names["episodes"]) == 64
    assert all(len(episode.steps) == 5 and episode.agent == "first" for episode in names["episodes"])

"""The task setup of debates: both sides are trained, and evaluations are against the start, from both sides."""

from collections import Counter
from pathlib import Path

import pytest

from lmgym.apps.debate.formats import DEBATERS, consultancy, debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.prompts.debate import PROMPTS as LONG_PROMPTS
from lmgym.apps.debate.prompts.short import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.training.ppo_setup import debate_rounds
from lmgym.config import ModelConfig
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.local_generation import load_causal
from lmgym.generation.protocol import Sampling
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import TaskSetup

QUESTIONS = synthetic_questions(6)


def config(model: str = "nowhere", eval_size: float = 2, reward: RewardConfig | None = None) -> PPOConfig:
    rollout = RolloutConfig("synthetic", max_new_tokens=5, eval_size=eval_size)
    return PPOConfig("x", ModelConfig(model), rollout, reward or RewardConfig(), MethodConfig("grpo"))


@pytest.fixture(scope="module")
def setup(small_models: dict[str, Path]) -> TaskSetup:
    given = QUESTIONS, debate(1), PROMPTS, LetterJudge("l"), (0.67, 0.33)
    return debate_rounds(*given)(config(str(small_models["llama"])), None)


def test_one_policy_plays_both_debaters_on_questions_that_are_not_evaluated(setup: TaskSetup) -> None:
    assert setup.trained_agents == 2
    assert not setup.players
    assert [task["question"] for task in setup.tasks] == [question.question for question in QUESTIONS[:4]]
    made = setup.environment()
    assert set(made.reset(setup.tasks[0], 0)) == set(DEBATERS)
    ended = made.step(dict.fromkeys(DEBATERS, "a b c d e f g"))
    assert [request.agent for request in ended.score_requests] == list(DEBATERS)
    assert sorted(request.columns["baseline"] for request in ended.score_requests) == [0.33, 0.67]
    assert {speech.text for speech in made.transcript.speeches} == {"a b c d e"}, "speeches have max_new_tokens"


def test_evaluations_are_each_held_out_question_from_both_sides(setup: TaskSetup) -> None:
    tasks = setup.eval_tasks
    found = [(task["question"], task["side"], task["flipped"]) for task in tasks]
    assert found == [(QUESTIONS[4].question, side, False) for side in DEBATERS] + [
        (QUESTIONS[5].question, side, True) for side in DEBATERS
    ]
    evaluated = setup.for_evaluation
    for task in tasks:
        seen = evaluated.environment().reset(task, 0)
        assert set(seen) == {"policy", "opponent"}
        assert f"You are {task['side']}." in (seen["policy"].prompt.persona or "")


def test_against_itself_a_policy_wins_what_its_opponent_loses(setup: TaskSetup, small_models: dict[str, Path]) -> None:
    policy, evaluated = load_causal(str(small_models["llama"])), setup.for_evaluation
    tasks = [task for task in setup.eval_tasks for _ in range(8)]
    episodes = run_episodes(
        [evaluated.environment() for _ in tasks], tasks, range(len(tasks)), policy, policy.tokenizer,
        Sampling(max_new_tokens=5), evaluated.reward_function, evaluated.players,
    )  # fmt: skip
    assert Counter(episode.agent for episode in episodes) == {"policy": len(tasks)}
    for episode, task in zip(episodes, tasks, strict=True):
        assert episode.total_reward is not None
        right = (task["side"] == DEBATERS[0]) != task["flipped"]
        p_win = episode.steps[-1].scores["p_win"]
        assert episode.total_reward == pytest.approx(p_win - (0.67 if right else 0.33))
    assert len({episode.steps[-1].completion.text for episode in episodes}) > 1


@pytest.mark.parametrize(
    ("changes", "format", "prompts", "said"),
    [
        ({"reward": RewardConfig("a=world:0")}, debate(1), PROMPTS, "a debate's judge gives the rewards"),
        ({"eval_size": 6}, debate(1), PROMPTS, "eval_size=6 of 6 questions; needed: at least 1, and 1 left"),
        ({"eval_size": 0.5}, debate(1), PROMPTS, "eval_size=0.5 of 6 questions"),
        ({}, consultancy(1), LONG_PROMPTS, "needed: two, for self-play"),
        ({}, debate(1), {"overall": "A debate."}, "opening"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_model_loads(changes: dict, format, prompts, said: str) -> None:
    with pytest.raises(InputError) as raised:
        debate_rounds(QUESTIONS, format, prompts, LetterJudge())(config(**changes), None)
    assert said in str(raised.value)

"""Limits of the rollout engine: long prompts, contexts without room, broken protocols."""

import re

import pytest
from acting import TOKENIZER, Chat, FakeReward, Scripted, play

from lmgym.environments.protocol import POLICY, Observation, ScoreRequest, StepResult
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.models.small_models import train_tokenizer
from lmgym.text import tokenize_texts


def test_long_prompts_are_truncated_on_the_left_after_the_bos_and_counted() -> None:
    tokenizer = train_tokenizer(["one two three"], 300)
    tokenizer.add_special_tokens({"bos_token": "<s>"})

    class Long(Chat):
        def _shown(self):
            return {"policy": Observation("<s>" + "one two " * (len(self.said) * 5) + "three")}

    generator = Scripted(max_length=26)
    sampling = Sampling(max_new_tokens=16)
    environment = Long(1, truncates=True, terminates=False)
    [episode] = run_episodes([environment], [{"topic": "a"}], [0], generator, tokenizer, sampling, FakeReward())
    [step] = episode.steps
    whole = tokenize_texts(tokenizer, ["<s>" + "one two " * 5 + "three"])[0]
    assert len(whole) > 10
    assert step.prompt == [whole[0], *whole[-9:]] == generator.asked[0][0]
    assert step.prompt[0] == tokenizer.bos_token_id
    assert (step.dropped_turns, step.shortened) == (0, len(whole) - 10)
    assert step.prompt_text == tokenizer.decode(step.prompt)
    assert episode.final_prompt is not None
    assert len(episode.final_prompt) == 10


def test_max_prompt_limits_the_prompt_below_the_context() -> None:
    whole, shorter = tokenize_texts(TOKENIZER, ["User: hello 0 0\nBot:", "User: 0\nBot:"])
    [episode] = play([Chat(1)], max_prompt=len(shorter))
    step = episode.steps[0]
    assert (step.prompt, step.prompt_text) == (shorter, "User: 0\nBot:"), "its end, in the template's own marks"
    assert (step.dropped_turns, step.shortened) == (0, len(whole) - len(shorter))


def test_long_prompts_are_refused_on_request() -> None:
    with pytest.raises(
        InputError,
        match=r"episode 1 \(seed 1\) .*more than 20 tokens; needed: at most so many, the context of 36 less max_new",
    ):
        play([Chat(1), Chat(4)], Scripted(max_length=36), on_long_prompt="refuse")
    stopped = Chat(1, truncates=True, terminates=False)
    [episode] = play([stopped], Scripted(max_length=36), on_long_prompt="refuse")
    assert 0 < len(episode.final_prompt) <= 20  # no reply to it was requested


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generator": Scripted(max_length=16)}, "max_new_tokens=16 leaves no room for a prompt in a context of 16"),
        ({"max_prompt": 0}, "max_prompt=0; needed: 1 to 240"),
        ({"max_prompt": 241}, "max_prompt=241; needed: 1 to 240"),
    ],
)
def test_a_context_without_room_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        play([Chat(1)], **settings)


class Returns(Chat):
    """Returns one result at its first step; the other methods are those of Chat."""

    def __init__(self, result: object, first: object = None) -> None:
        super().__init__(1)
        self.result, self.first = result, first

    def reset(self, task, seed):
        return super().reset(task, seed) if self.first is None else self.first

    def step(self, actions):
        return self.result


def paid(reward: object, agent: str = "policy") -> StepResult:
    return StepResult(rewards={agent: reward}, terminated=True)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (StepResult(), "no agent has an observation and the episode has not ended; needed:"),
        (({}, 1.0, True, False, {}), "`step` gave a tuple; needed: a StepResult"),
        (paid(None), "a reward for 'policy': None is NoneType; needed: a number"),
        (paid("1"), "a reward for 'policy': '1' is str; needed: a number"),
        (paid(1e200), "1e.200 is no reward; needed: a finite number, at most 1,000,000 in size"),
        (paid(float("nan")), "nan is no reward"),
        (StepResult({"policy": Observation(42)}), "the observation of 'policy' is 42, a int; needed: text"),  # type: ignore[arg-type]
        (StepResult({"policy": "hello"}), r"a str is observed; needed: {agent: Observation\(prompt\)} for all"),  # type: ignore[dict-item]
        (StepResult({"policy": Observation("\ud800")}), "has half a surrogate pair, which no file can hold"),
        (StepResult({"policy": Observation("a", (1, 2))}), "the observation of 'policy' is 1, a int"),  # type: ignore[arg-type]
        (StepResult(info={"z": "\ud800"}, terminated=True), r"info\['z'\] is '\\ud800'; needed: a finite number"),  # type: ignore[dict-item]
        (StepResult(info={"z": float("inf")}, terminated=True), "is inf; needed: a finite number, to log"),
        (StepResult(info={3: 1.0}, terminated=True), "a name in info is 3"),  # type: ignore[dict-item]
        (StepResult(info=[1], terminated=True), "info is a list; needed: a dict of numbers"),  # type: ignore[arg-type]
        (StepResult(terminated=True, score_requests=("policy",)), "a score is requested by a str"),  # type: ignore[arg-type]
        (StepResult(terminated=True, score_requests=(ScoreRequest("judge", "a", "b"),)), "for 'judge', who has not"),
    ],
)
def test_a_result_out_of_bounds_fails_its_episode_and_the_others_go_on(result: object, why: str) -> None:
    whole, failed = play([Chat(2), Returns(result)], reward_function=FakeReward())
    assert whole.total_reward == 5.0
    assert (failed.index, failed.agent, failed.total_reward) == (1, "policy", None)
    assert [step.reward for step in failed.steps] == [None]
    assert failed.error == failed.steps[0].error
    assert re.match(r"episode 1 \(seed 1\) of Returns, step 1: ", failed.error)
    assert re.search(why, failed.error)
    assert len(failed.error) < 400


@pytest.mark.parametrize("first", ["hello", ("hello", {}), {"policy": "hello"}, {"policy": Observation(None)}])  # type: ignore[arg-type]
def test_an_episode_that_fails_at_its_beginning_has_no_steps_and_says_why(first: object) -> None:
    whole, failed = play([Chat(2), Returns(None, first)])
    assert whole.total_reward == 5.0
    assert (failed.index, failed.agent, failed.steps, failed.total_reward) == (1, "", [], None)
    assert re.match(r"episode 1 \(seed 1\) of Returns, step 0: ", failed.error)


def test_what_is_no_single_episodes_fault_is_refused() -> None:
    class Mute(Chat):
        def _shown(self):
            return {"policy": Observation("")}

    same = Chat(1)
    with pytest.raises(InputError, match="the prompt of 'policy' has no token"):
        play([Mute(1)])
    with pytest.raises(InputError, match="an environment was given twice; needed: an instance an episode"):
        play([same, same])


def test_a_reward_of_an_agent_that_acts_in_other_games_alone_is_left_out() -> None:
    """A negotiation that ends before its judge speaks still says what the judge earned."""

    class Negotiation(Chat):
        def step(self, actions):
            if "buyer" in actions and self.turns == 2:
                return StepResult({"judge": Observation("who won?")})
            return StepResult(rewards={"buyer": 1.0, "judge": 0.5}, terminated=True)

        def _shown(self):
            return {"buyer": Observation("a price?")}

    buyer, judge, alone = play([Negotiation(2), Negotiation(1)])
    assert [(e.index, e.agent, e.total_reward) for e in (buyer, judge, alone)] == [
        (0, "buyer", 1.0), (0, "judge", 0.5), (1, "buyer", 1.0),
    ]  # fmt: skip


def test_an_environment_that_never_ends_is_truncated_after_so_many_steps() -> None:
    class Endless:
        def reset(self, task, seed):
            self.steps = 0
            return {POLICY: Observation("0")}

        def step(self, actions):
            self.steps += 1
            return StepResult({POLICY: Observation(str(self.steps))}, {POLICY: 1.0}, terminated=self.steps == 9)

    def played(most_steps: int | None):
        generator = Scripted(lambda text, seed: "on")
        given = [{}], [0], generator, TOKENIZER, Sampling(4), None
        [episode] = run_episodes([Endless()], *given, most_steps=most_steps)
        return len(episode.steps), episode.truncated, episode.terminated, episode.final_prompt

    assert played(3) == (3, True, False, TOKENIZER("3").input_ids)
    assert played(9)[:3] == (9, False, True)
    assert played(None)[:3] == (9, False, True)

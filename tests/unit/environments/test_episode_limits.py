"""Limits of the rollout engine: long prompts, contexts without room, broken protocols."""

import pytest
from acting import TOKENIZER, Chat, FakeReward, Scripted, play

from lmgym.environments.protocol import Observation, StepResult
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


def test_environments_that_break_the_protocol_are_refused() -> None:
    class Silent(Chat):
        def step(self, actions):
            return StepResult()

    class Generous(Chat):
        def step(self, actions):
            return StepResult(rewards={"polcy": 1.0}, terminated=True)

    class Mute(Chat):
        def _shown(self):
            return {"policy": Observation("")}

    class Unpaid(Chat):
        def step(self, actions):
            return StepResult(rewards={"policy": None}, terminated=True)

    class OfGymnasium(Chat):
        def step(self, actions):
            return {}, 1.0, True, False, {}

    class Wordy(Chat):
        def _shown(self):
            return {"policy": "hello"}

    class Beginning(Chat):
        def reset(self, task, seed):
            return "hello", {}

    same = Chat(1)
    for environments, message in (
        ([Silent(1)], "step 1: no agent has an observation and the episode has not ended; needed:"),
        ([Generous(1)], r"for 'polcy', who has not acted; needed: one of \['policy'\]"),
        ([Unpaid(1)], r"episode 0 \(seed 0\) of Unpaid, step 1: a reward of None for 'policy'"),
        ([OfGymnasium(1)], r"episode 0 \(seed 0\) of OfGymnasium, step 1: `step` gave a tuple; needed: a StepResult"),
        ([Wordy(1)], r"step 0: a str is observed; needed: {agent: Observation\(prompt\)} for all agents that"),
        ([Beginning(1)], "step 0: a tuple is observed"),
        ([Mute(1)], "the prompt of 'policy' has no token"),
        ([same, same], "an environment was given twice; needed: an instance an episode"),
    ):
        with pytest.raises(InputError, match=message):
            play(environments)

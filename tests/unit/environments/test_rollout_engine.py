"""The rollout engine: one request a step, chance that others do not touch, rewards on the acts that earned them."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from acting import TOKENIZER, Chat, FakeReward, Scripted, play
from patience import PATIENCE
from transformers import AutoModelForCausalLM

from lmgym.apps.games.prisoners import PrisonersDilemma, tit_for_tat
from lmgym.environments.protocol import Observation, Sample, SampleReward, ScoreRequest, StepResult, Task
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError, RunStopped
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Completion, Sampling, ScriptedGenerator
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn, render, tokenize_texts


def test_a_step_of_all_episodes_is_one_request_and_one_call_of_the_reward_function() -> None:
    generator, reward_function = Scripted(), FakeReward()
    episodes = play([Chat(3), Chat(1), Chat(2)], generator, reward_function)
    assert [len(prompts) for prompts in generator.asked] == [3, 2, 1]
    assert [len(samples) for samples in reward_function.calls] == [3, 2, 1]
    assert [len(episode.steps) for episode in episodes] == [3, 1, 2]
    assert [(episode.index, episode.agent) for episode in episodes] == [(0, "policy"), (1, "policy"), (2, "policy")]
    assert [step.reward for step in episodes[0].steps] == [2.0, 3.0, 4.0]  # turn 1, 2, 3 and the reward function's 1
    assert episodes[0].info == {"turns": 3.0}


def test_episodes_without_score_requests_need_no_reward_function() -> None:
    reward_function = FakeReward()
    [episode] = play([Chat(2, asks=False)], reward_function=reward_function)
    assert reward_function.calls == []
    assert [step.reward for step in episode.steps] == [1.0, 2.0]
    run_episodes([Chat(1, asks=False)], [{"topic": "a"}], [0], Scripted(), TOKENIZER, Sampling(), None)
    with pytest.raises(InputError, match="requests a score; needed: a reward function"):
        run_episodes([Chat(1)], [{"topic": "a"}], [0], Scripted(), TOKENIZER, Sampling(), None)


def test_the_reward_function_gets_the_request_the_prompt_and_the_sampled_tokens() -> None:
    reward_function = FakeReward()
    [episode] = play([Chat(2)], Scripted(lambda text, seed: "thanks"), reward_function)
    [second] = reward_function.calls[1]
    assert second.request.reply == "thanks"
    assert second.completion is episode.steps[1].completion
    assert second.prompt_text == episode.steps[1].prompt_text
    assert second.prompt_text == "User: hello 0 0\nBot: thanks\nUser: turn 1\nBot:"


def test_conversations_are_rendered_by_the_template_and_texts_are_unchanged() -> None:
    class Letter(Chat):
        def _shown(self):
            return {"policy": Observation("one two")}

    generator = Scripted()
    chat, letter = play([Chat(1), Letter(1)], generator)
    [first], [second] = chat.steps, letter.steps
    assert first.prompt_text == render(TOKENIZER, Conversation((Turn("user", "hello 0 0"),)))
    assert second.prompt_text == "one two"
    for step, seen in zip((first, second), generator.asked[0], strict=True):
        assert step.prompt == seen == tokenize_texts(TOKENIZER, [step.prompt_text])[0]
        assert (step.dropped_turns, step.shortened) == (0, 0)


def test_sampled_ids_are_never_tokenised_again() -> None:
    letters = tuple(tokenize_texts(TOKENIZER, [c])[0][0] for c in "hello")
    assert list(letters) != tokenize_texts(TOKENIZER, ["hello"])[0]  # another way to the same text

    class Speller(Scripted):
        def _one(self, prompt, seed):
            return Completion("hello", "length", letters, (-1.0,) * len(letters), len(letters))

    [episode] = play([Chat(2)], Speller())
    assert [step.completion.ids for step in episode.steps] == [letters, letters]


def test_the_seed_of_a_reply_depends_on_episode_step_agent_and_sampling() -> None:
    def seeds(environment, **settings) -> list[int]:
        generator = Scripted()
        play([environment], generator, **settings)
        return [seed for [seed] in generator.seeds]

    base = seeds(Chat(3))
    assert len(set(base)) == 3
    assert all(0 <= seed < 2**63 for seed in base)
    assert seeds(Chat(3), tasks=[{"topic": "other"}]) == base
    for other in (
        seeds(Chat(3), seeds=[1]),
        seeds(Chat(3, agent="another")),
        seeds(Chat(3), sampling=Sampling(max_new_tokens=16, seed=1)),
    ):
        assert not set(other) & set(base)


@pytest.fixture(scope="module")
def policy(small_models: dict[str, Path]) -> LocalGenerator:
    """A tiny real one; its weights are large, so that replies depend on what was said."""
    model = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "head" not in name:
                parameter.mul_(3.0)
    return LocalGenerator(model, load_tokenizer(str(small_models["llama"])))


def test_the_rest_of_the_batch_changes_nothing(policy: LocalGenerator) -> None:
    lengths = (3, 1, 2, 3)

    def found(chosen: Sequence[int]) -> dict[int, list]:
        episodes = run_episodes(
            [Chat(lengths[i]) for i in chosen],
            [{"topic": f"hello {i}"} for i in chosen],
            [100 + i for i in chosen],
            policy,
            policy.tokenizer,
            Sampling(max_new_tokens=12),
            FakeReward(lambda sample: SampleReward(float(len(sample.completion.ids)))),
        )
        return {
            chosen[e.index]: [(s.prompt, s.completion.ids, s.completion.text, s.reward) for s in e.steps]
            for e in episodes
        }

    together = found([0, 1, 2, 3])
    assert found([3, 2, 1, 0]) == together
    assert {**found([0]), **found([2, 1]), **found([3])} == together
    assert len({ids for steps in together.values() for _, ids, _, _ in steps}) == sum(lengths)


def test_only_a_truncated_episode_has_a_final_prompt() -> None:
    stopped, over, both = play(
        [Chat(2, truncates=True, terminates=False), Chat(2), Chat(2, truncates=True, terminates=True)]
    )
    assert (stopped.truncated, stopped.terminated) == (True, False)
    last, [added] = stopped.steps[-1], tokenize_texts(TOKENIZER, ["\nUser: turn 2\nBot:"])
    assert stopped.final_prompt == [*last.prompt, *last.completion.ids[:-1], *added], "this template writes no eos here"
    assert TOKENIZER.decode(stopped.final_prompt).startswith("User: hello 0 0\nBot:fine\nUser: turn 1\nBot:fine\n")
    assert (over.truncated, over.terminated, over.final_prompt) == (False, True, None)
    assert (both.truncated, both.terminated, both.final_prompt) == (True, True, None)


class Duel:
    """Two agents act at once, three times; then one of them alone."""

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        self.received: list[dict[str, str]] = []
        return {"left": Observation("one"), "right": Observation("two")}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        self.received.append(dict(actions))
        number = len(self.received)
        requests = tuple(ScoreRequest(agent, "x", said) for agent, said in actions.items())
        if number < 3:
            seen = {"left": Observation(f"one {number}"), "right": Observation(f"two {number}")}
            return StepResult(seen, {"left": 10.0, "right": -10.0}, score_requests=requests)
        if number == 3:
            return StepResult({"right": Observation("seven")}, {"left": 1.0}, score_requests=requests)
        return StepResult({}, {"left": 5.0, "right": 7.0}, terminated=True)


def test_agents_that_act_at_once_share_a_step_and_each_has_an_episode() -> None:
    duel, generator, reward_function = Duel(), Scripted(lambda text, seed: f"said {text}"), FakeReward()
    left, right = play([duel], generator, reward_function)
    assert duel.received[1] == {"left": "said one 1", "right": "said two 1"}
    assert list(duel.received[3]) == ["right"]
    assert [len(prompts) for prompts in generator.asked] == [2, 2, 2, 1]
    assert [len(samples) for samples in reward_function.calls] == [2, 2, 2]
    assert [(e.index, e.agent, len(e.steps)) for e in (left, right)] == [(0, "left", 3), (0, "right", 4)]
    assert [step.reward for step in right.steps] == [-9.0, -9.0, 1.0, 7.0]
    # what left earned while right acted alone is the last act's
    assert [step.reward for step in left.steps] == [11.0, 11.0, 7.0]
    assert left.terminated
    assert right.terminated


def test_an_agent_with_a_generator_of_its_own_acts_and_is_not_trained() -> None:
    duel, generator, reward_function = Duel(), Scripted(), FakeReward()
    script = ScriptedGenerator(lambda conversation, rng: f"after {conversation.turns[-1].text}")
    [left] = play([duel], generator, reward_function, others={"right": script})
    assert [said["right"] for said in duel.received] == ["after two", "after two 1", "after two 2", "after seven"]
    assert left.agent == "left"
    assert [len(prompts) for prompts in generator.asked] == [1, 1, 1]  # and no request where nobody is trained
    assert [[sample.request.agent for sample in samples] for samples in reward_function.calls] == [["left"]] * 3


def test_an_agent_with_a_generator_of_its_own_has_seeds_of_its_own() -> None:
    def said(seeds: list[int]) -> list[list[str]]:
        duels = [Duel() for _ in seeds]
        random = ScriptedGenerator(lambda conversation, rng: str(rng.integers(10**9)))
        play(duels, seeds=seeds, others={"right": random})
        return [[actions["right"] for actions in duel.received] for duel in duels]

    first, second = said([5, 6])
    assert len({*first, *second}) == 8
    assert said([6]) == [second]


def test_a_failed_reward_masks_only_its_step() -> None:
    def reward(sample: Sample) -> SampleReward:
        if "hello 1" in sample.prompt_text and "turn" not in sample.prompt_text:
            return SampleReward(None, {"kind": 0.5}, "the scorer is away")
        return SampleReward(0.5, {"kind": 0.25})

    first, second = play([Chat(2), Chat(2)], reward_function=FakeReward(reward))
    assert [step.reward for step in first.steps] == [1.5, 2.5]
    assert [step.reward for step in second.steps] == [None, 2.5]
    assert [step.error for step in second.steps] == ["the scorer is away", ""]
    assert [step.scores for step in second.steps] == [{"kind": 0.5}, {"kind": 0.25}]


def test_dense_rewards_are_one_a_sampled_token_with_the_environments_on_the_last() -> None:
    reward_function = FakeReward(lambda sample: SampleReward(tuple(0.1 * i for i in range(len(sample.completion.ids)))))
    [episode] = play([Chat(1)], Scripted(lambda text, seed: "one two three"), reward_function)
    [step] = episode.steps
    size = len(step.completion.ids)
    assert size > 2
    assert step.reward == pytest.approx((*(0.1 * i for i in range(size - 1)), 0.1 * (size - 1) + 1.0))


def test_several_requests_for_one_reply_add_up() -> None:
    class Twice(Chat):
        def step(self, actions):
            result = super().step(actions)
            return StepResult(result.observations, result.rewards, True, score_requests=[*result.score_requests] * 2)

    dense = iter([SampleReward((1.0, 2.0)), SampleReward(10.0), SampleReward((1.0, 2.0)), SampleReward((3.0, 4.0))])
    reward_function = FakeReward(lambda sample: next(dense))
    generator = Scripted(lambda text, seed: "one")
    first, second = play([Twice(1), Twice(1)], generator, reward_function)
    assert first.steps[0].reward == (1.0, 13.0)
    assert second.steps[0].reward == (4.0, 7.0)


def test_a_wrong_number_of_rewards_is_refused() -> None:
    with pytest.raises(ValueError, match=r"episode 0 .*gave 1 rewards for a reply of 2 tokens; needed: one a token"):
        play([Chat(1)], Scripted(lambda text, seed: "one"), FakeReward(lambda sample: SampleReward((1.0,))))

    class Short(FakeReward):
        def rewards(self, samples):
            return [SampleReward(1.0)] * (len(samples) - 1)

    with pytest.raises(ValueError, match="gave 1 rewards for 2 replies"):
        play([Chat(1), Chat(1)], reward_function=Short())


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (KeyError("table"), r"Broken, step 2: KeyError: 'table' \(.*test_rollout_engine.py:\d+\)$"),
        (float("nan"), "Broken, step 2: a reward for 'policy': nan is no reward; needed: a finite number"),
        (float("-inf"), "Broken, step 2: a reward for 'policy': -inf is no reward"),
    ],
)
def test_a_failing_environment_ends_its_episode_masked_and_the_others_go_on(blocking, failure, message) -> None:
    class Broken(Chat):
        def step(self, actions):
            result = super().step(actions)
            if len(self.said) < 5:
                return result
            if isinstance(failure, Exception):
                raise failure
            return replace(result, rewards={"policy": failure})

    broken = Broken(3)
    broken.blocking = blocking
    rewards = FakeReward()
    alone = play([Chat(3)], seeds=[7])
    whole, failed = play([Chat(3), broken], seeds=[7, 8], reward_function=rewards)
    assert whole == alone[0]
    assert whole.total_reward == 9
    assert failed.total_reward is None
    assert [step.reward for step in failed.steps] == [2, None]
    assert re.match(r"episode 1 \(seed 8\) of ", failed.steps[-1].error)
    assert re.search(message, failed.steps[-1].error)
    assert (failed.terminated, failed.truncated, failed.final_prompt) == (True, False, None)
    assert len(failed.actions) == 2
    assert [len(call) for call in rewards.calls] == [2, 1, 1]  # a failed episode asks for no score


def test_the_rewards_of_all_trained_agents_of_a_failed_game_are_masked_and_scripts_leave_none() -> None:
    class Broken(PrisonersDilemma):
        def step(self, actions):
            if self.played:
                raise OSError("gone")
            return super().step(actions)

    both = play([Broken(3)])
    assert [[step.reward for step in episode.steps] for episode in both] == [[1.0, None], [1.0, None]]
    [first] = play([Broken(3)], others={"second": ScriptedGenerator(tit_for_tat)})
    assert [step.reward for step in first.steps] == [5.0, None]


@pytest.mark.parametrize("blocking", [False, True])
def test_an_episode_that_fails_before_a_trained_agent_acts_has_no_steps_and_the_others_go_on(blocking: bool) -> None:
    class Broken(Chat):
        def reset(self, task, seed):
            raise KeyError("table")

    broken = Broken(3)
    broken.blocking = blocking
    whole, failed = play([Chat(3), broken], seeds=[7, 8])
    assert whole.total_reward == 9
    assert (failed.agent, failed.steps, failed.total_reward) == ("", [], None)
    assert re.match(r"episode 1 \(seed 8\) of Broken, step 0: KeyError: 'table' \(.*.py:\d+\)$", failed.error)


@pytest.mark.parametrize("blocking", [False, True])
def test_what_a_step_does_to_the_process_is_undone(blocking: bool, tmp_path: Path, capfd) -> None:
    class Rude(Chat):
        def step(self, actions):
            os.chdir(tmp_path)
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            torch.set_grad_enabled(False)
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            os.close(2)
            sys.exit(3)

    rude, before, stdout = Rude(3), os.getcwd(), sys.stdout
    rude.blocking = blocking
    whole, failed = play([Chat(2), rude])
    assert (whole.total_reward, failed.total_reward) == (5, None)
    assert failed.error.endswith("RuntimeError: SystemExit(3)")
    assert (os.getcwd(), sys.stdout) == (before, stdout)
    assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float32, "cpu")
    assert torch.is_grad_enabled()
    os.write(2, b"still open")
    assert capfd.readouterr().err == "still open"


def test_a_closed_stdout_is_opened_again() -> None:
    code = (
        "import sys\nfrom lmgym.runs.process_state import process_state_kept\n"
        "with process_state_kept(): sys.stdout.close()\nprint('said')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\n", "")


@pytest.mark.parametrize("error", [InputError("a wrong setting"), RunStopped("enough", "failed", 1)])
def test_mistakes_of_users_and_deliberate_stops_are_no_failures_of_an_episode(error: Exception) -> None:
    class Broken(Chat):
        def step(self, actions):
            raise error

    with pytest.raises(type(error), match=str(error)):
        play([Chat(3), Broken(3)])


def test_blocking_environments_wait_in_parallel_in_reset_and_step() -> None:
    """Each waits until all do: alone none would come through."""
    everybody = threading.Barrier(12)

    class Remote(Chat):
        blocking = True

        def reset(self, task, seed):
            everybody.wait(PATIENCE)
            return super().reset(task, seed)

        def step(self, actions):
            everybody.wait(PATIENCE)
            return super().step(actions)

    main = threading.get_ident()
    stepped_by = []

    class Here(Chat):
        def step(self, actions):
            stepped_by.append(threading.get_ident())
            return super().step(actions)

    remote = [Remote(2) for _ in range(12)]
    episodes = play([*remote, Here(2)])
    assert [step.reward for step in episodes[5].steps] == [2.0, 3.0]
    assert [episode.index for episode in episodes] == list(range(13))
    assert [e.said[0].text for e in remote] == [f"hello {i} {i}" for i in range(12)]
    assert stepped_by == [main, main]


def test_no_tasks_give_no_episodes() -> None:
    assert play([]) == []

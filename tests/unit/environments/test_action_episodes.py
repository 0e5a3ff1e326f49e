"""Episodes of a policy over actions: it says one of those that are listed, and a list that is at fault is named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.environments.episodes import Episode
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.actions import ActionPolicy
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn

WORDS = ("hit", "stick", "double down", "split the pair", "fold")


@dataclass
class Listed:
    """Two turns or more, with actions that differ by seed and turn; it refuses all others."""

    turns: int = 2
    lists: Mapping[int, Sequence[str]] = field(default_factory=dict)
    legal: Sequence[str] = ()
    turn: int = 0

    def reset(self, task, seed):
        self.seed, self.turn = seed, 0
        return self._shown()

    def step(self, actions):
        assert actions[POLICY] in self.legal, "an illegal move"
        self.turn += 1
        ended = self.turn == self.turns
        return StepResult({} if ended else self._shown(), {POLICY: float(len(actions[POLICY]))}, ended)

    def _shown(self):
        first = (self.seed + self.turn) % 3
        self.legal = self.lists.get(self.turn, WORDS[first : first + 2 + self.turn % 2])
        return {POLICY: Observation(Conversation((Turn("user", f"turn {self.turn} of {self.seed}"),)), self.legal)}


@pytest.fixture(scope="module")
def policy(small_models: dict[str, Path]) -> ActionPolicy:
    """A tiny one with large weights, so that replies depend on what was said."""
    model = AutoModelForCausalLM.from_pretrained(small_models["gpt2"], dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3.0)
    return ActionPolicy(LocalGenerator(model, load_tokenizer(str(small_models["gpt2"]))), "token")


def play(policy: ActionPolicy, environments: Sequence[Listed], seeds: Sequence[int], most: int = 24) -> list[Episode]:
    given = environments, [{}] * len(seeds), seeds, policy, policy.generator.tokenizer
    return run_episodes(*given, Sampling(most, seed=3), None)


def test_every_reply_is_one_of_the_listed_actions_and_ends_its_turn(policy: ActionPolicy) -> None:
    episodes = play(policy, [Listed(2 + i % 3) for i in range(24)], list(range(24)))
    said = {step.completion.text for episode in episodes for step in episode.steps}
    assert len(said) > 3
    for episode in episodes:
        assert [step.completion.text for step in episode.steps] == [one[POLICY] for one in episode.actions]
        for step in episode.steps:
            found = step.completion
            assert found.choice is not None
            assert found.text == found.choice.candidates.texts[found.choice.chosen]
            assert found.ids[-1] == policy.generator.tokenizer.eos_token_id
            assert (found.finish_reason, len(found.logprobs)) == ("eos", 1)
            assert step.reward == float(len(found.text))


def test_an_episode_is_the_same_alone_and_among_others(policy: ActionPolicy) -> None:
    many = play(policy, [Listed(2 + i % 3) for i in range(8)], list(range(8)))
    for i in range(8):
        [alone] = play(policy, [Listed(2 + i % 3)], [i])
        assert alone.actions == many[i].actions
    assert len({str(episode.actions) for episode in play(policy, [Listed() for _ in range(8)], [0] * 8)}) == 1


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ((), r"lists no actions; needed: the texts of all legal actions, as Observation\(prompt, \("),
        (("hit", ""), "lists '', an empty action"),
        (("hit", "fold", "hit"), "lists 'hit' and 'hit', whose tokens are equal"),
        (
            ("hit", " ".join(WORDS * 3)),
            r"lists 'hit .*, of \d+ tokens with its end; needed: at most 24, or a larger --max_new_tokens",
        ),
    ],
)
def test_a_list_at_fault_names_environment_seed_and_step(policy: ActionPolicy, listed, why: str) -> None:
    with pytest.raises(InputError, match=rf"^episode 1 \(seed 77\) of Listed, step 1: .*'policy' {why}"):
        play(policy, [Listed(), Listed(lists={1: listed}), Listed()], [5, 77, 6])


def test_without_a_policy_over_actions_lists_are_not_looked_at(policy: ActionPolicy) -> None:
    class AnyText(Listed):
        def step(self, actions):
            self.legal = [actions[POLICY]]
            return super().step(actions)

    given = [AnyText(lists={0: ("hit", "hit")})], [{}], [0], policy.generator, policy.generator.tokenizer
    [episode] = run_episodes(*given, Sampling(4), None)
    assert all(step.completion.choice is None for step in episode.steps)

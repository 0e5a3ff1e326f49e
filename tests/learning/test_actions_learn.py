"""A policy over listed actions learns a game of several turns, with a critic and without, and broken versions do not.

A turn names something and lists three names of things, one of them right, in one, two or three words. Any text of the
model's vocabulary could be said: by chance a policy over tokens says a listed one in 1 of thousands of replies.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import outside
import pytest
from broken_rollouts import break_rollouts, turn_advantages
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import ppo.train as loop
from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.distributed.random_state import seeded
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.models.saving import save_plain
from lmgym.models.small_models import build_model, size_settings
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.task_setups import TaskSetup

KEYS = {
    "red": "take red", "blue": "take the blue", "green": "green", "iron": "open iron",
}  # fmt: skip
TURNS, UPDATES, LEARNING_RATE = 2, 24, 8e-3
OF_SUMS = {"updates": 60, "learning_rate": 2e-3}
"""A sum's gradient grows with the words of a text: at 5e-3, PPO with seed 0 stays at 1.18, and seeds 1 to 5 reach 1.50
to 1.99. With these, seeds 0 to 5: 1.83, 1.61, 1.45, 1.47, 1.69, 1.63."""
BAR = 1.2  # of 2, and .67 at random; seeds 0 to 2: 1.46, 1.44, 1.44 with a critic, 1.31, 1.36, 1.34 without


class Doors:
    """As many doors as turns; the right key earns 1, any other nothing."""

    def reset(self, task, seed):
        self.chance, self.turn = np.random.default_rng(seed), 0
        return self._shown()

    def step(self, actions):
        reward, self.turn = float(actions[POLICY] == KEYS[self.door]), self.turn + 1
        ended = self.turn == TURNS
        return StepResult({} if ended else self._shown(), {POLICY: reward}, ended)

    def _shown(self):
        doors = self.chance.permutation(list(KEYS))[:3].tolist()
        self.door = doors[self.chance.integers(3)]
        return {POLICY: Observation(f"door {self.door}", [KEYS[door] for door in doors])}


def doors(config, tokenizer) -> TaskSetup:
    return TaskSetup([{}], [{}] * 300, Doors, None, "doors")


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """A GPT-2 that says all words about equally often."""
    vocabulary = sorted({word for name, key in KEYS.items() for word in (name, *key.split())} | {"door"})
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*vocabulary, "<eos>", "<pad>"])}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, padding_side="right", eos_token="<eos>", pad_token="<pad>", model_max_length=16,
        chat_template="{{ messages[0]['content'] }}",
    )  # fmt: skip
    with seeded(0, 0):
        model = build_model("gpt2", tokenizer, "causal", 0, **size_settings("gpt2", 2, 32, 2, 16))
    folder = tmp_path_factory.mktemp("doors") / "model"
    save_plain(model, model.state_dict(), folder, tokenizer)
    return folder


def doors_opened(
    start: Path, folder: Path, method, scores="token", seed: int = 0, policy_over="actions", updates: int = UPDATES,
    learning_rate: float = LEARNING_RATE,
) -> float:  # fmt: skip
    """Of 2, in 300 held-out episodes after so many updates."""
    config = PPOConfig(
        "doors",
        ModelConfig(str(start), precision="fp32"),
        RolloutConfig(
            num_rollouts=64, num_generations=None if method == "ppo" else 4, max_new_tokens=4,
            policy_over=policy_over, action_scores=scores,
        ),
        method=MethodConfig(method, ppo_epochs=2, init_kl_coef=0.0, credit="episode" if method == "ppo" else "turn"),
        optimizer=OptimizerConfig(
            learning_rate, warmup=0, global_batch=64, micro_batch=64, max_updates=updates, seed=seed
        ),
        run=RunConfig(str(folder), tracking="none", eval_updates=updates, save_updates=-1),
    )  # fmt: skip
    loop.train(config, doors)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["eval/reward/mean"] for line in lines if "eval/reward/mean" in line][-1]


def mix_up_episodes(monkeypatch) -> None:
    """Each turn has the advantage of the same turn of the episode before."""

    def mix_up(rollouts) -> None:
        # not of the turn before in its own episode, which contains the turn's own reward
        rollouts.advantages = rollouts.advantages.roll(TURNS)

    break_rollouts(monkeypatch, mix_up)


@pytest.mark.parametrize("method", ["ppo", pytest.param("grpo", marks=pytest.mark.slow)])
def test_doors_are_opened_with_a_critic_and_without(method: str, start: Path, tmp_path: Path) -> None:
    assert doors_opened(start, tmp_path, method) > BAR
    right = [outside.logprobs(tmp_path / "model", [(f"door {door}", key)]).item() for door, key in KEYS.items()]
    wrong = [
        outside.logprobs(tmp_path / "model", [(f"door {door}", key)]).item()
        for door in KEYS
        for other, key in KEYS.items()
        if other != door
    ]
    assert sum(right) / len(right) > sum(wrong) / len(wrong) + 1


@pytest.mark.slow
@pytest.mark.parametrize("scores", ["sum", "word"])
@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_so_they_are_by_other_scores(method: str, scores, start: Path, tmp_path: Path) -> None:
    assert doors_opened(start, tmp_path, method, scores, **(OF_SUMS if scores == "sum" else {})) > BAR


@pytest.mark.slow
@pytest.mark.parametrize("broken", [turn_advantages, mix_up_episodes])
@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_a_broken_version_misses_the_bar(
    broken: Callable, method: str, start: Path, monkeypatch, tmp_path: Path
) -> None:
    broken(monkeypatch)
    assert doors_opened(start, tmp_path, method) < BAR - 0.4


def test_a_policy_over_tokens_rarely_says_what_is_listed(start: Path, tmp_path: Path) -> None:
    assert doors_opened(start, tmp_path, "ppo", policy_over="tokens", updates=2) < 0.2

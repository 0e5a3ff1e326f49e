"""Policies learn by debate to win rounds before a judge that counts a letter; a broken version does not.

Wins are of 64 rounds against the policy that training started from, which wins half of them.
"""

import dataclasses
import json
from pathlib import Path

import pytest

import ppo.setup
from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.environments.debate.formats import debate
from lmgym.environments.debate.players.judges import LetterJudge
from lmgym.environments.debate.prompts.short import PROMPTS
from lmgym.environments.debate.synthetic import synthetic_questions
from lmgym.text import Replies
from ppo.config import LimitConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.self_play.debates import debate_rounds
from ppo.train import train as train_in_self_play
from preferences.config import LossConfig
from preferences.debates import train_on_debates
from preferences.iterative.config import IterativeConfig, JudgeConfig, PromptConfig, RoundConfig
from preferences.iterative.rounds import Rounds

LEARNED = 0.9  # fixed before the first run
GIVEN = synthetic_questions(96), debate(rounds=1), PROMPTS, LetterJudge("e")


def by_self_play(model: ModelConfig, run: RunConfig, seed: int) -> None:
    train_in_self_play(
        PPOConfig(
            "debate", model,
            RolloutConfig("synthetic", num_rollouts=64, num_generations=8, max_new_tokens=12, eval_size=32),
            method=MethodConfig("grpo", ppo_epochs=2, init_kl_coef=0.0), limits=LimitConfig(max_kl=0.0),
            optimizer=OptimizerConfig(1e-2, global_batch=64, micro_batch=64, max_updates=96, seed=seed), run=run,
        ),
        debate_rounds(*GIVEN),
    )  # fmt: skip


def by_dpo_in_rounds(model: ModelConfig, run: RunConfig, seed: int) -> None:
    train_on_debates(
        IterativeConfig(
            "debate", model, PromptConfig(f"{run.output}.jsonl", eval_size=32, max_length=200),
            RoundConfig(64, 4, renew_reference=True, max_new_tokens=12),
            JudgeConfig(weights="p_win=1,won=0", missing_eos_penalty=0.0), LossConfig("dpo", beta=0.1),
            OptimizerConfig(
                2e-3, schedule="constant_with_warmup", global_batch=64, micro_batch=64, max_updates=32, seed=seed
            ),
            run,
        ),
        *GIVEN,
    )  # fmt: skip


WON = {by_self_play: "eval/scores/won", by_dpo_in_rounds: "eval/score/won"}


def shares_won(learn, start: Path, folder: Path, seed: int = 0) -> tuple[float, float]:
    """(before, after) training."""
    model = ModelConfig(str(start), lora_rank=32, lora_alpha=64, precision="fp32")
    learn(model, RunConfig(str(folder), tracking="none", eval_updates=1000, save_updates=-1), seed)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    won = [line[WON[learn]] for line in lines if WON[learn] in line]
    return won[0], won[-1]


@pytest.mark.slow
@pytest.mark.parametrize("learn", WON)
def test_the_policy_wins_against_its_start(learn, small_models: dict[str, Path], tmp_path: Path) -> None:
    before, after = shares_won(learn, small_models["llama"], tmp_path / "run")
    assert 0.3 < before < 0.7
    assert after > LEARNED


def blame_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = ppo.setup.advantage_estimator

    def made(config):
        def estimate(rollouts, kl_coef):
            rewards = estimator(config)(rollouts, kl_coef)
            rollouts.advantages = -rollouts.advantages
            return rewards

        return estimate

    monkeypatch.setattr(ppo.setup, "advantage_estimator", made)


def choose_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    pair_of = Rounds._pair

    def exchanged(self, *given):
        pair = pair_of(self, *given)
        row = pair and pair.replies
        return row and dataclasses.replace(pair, replies=Replies(row.prefix, row.suffixes[::-1], ends=row.ends[::-1]))

    monkeypatch.setattr(Rounds, "_pair", exchanged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learn", "break_it"), [(by_self_play, blame_the_winner), (by_dpo_in_rounds, choose_the_worst)]
)
def test_a_broken_version_loses(learn, break_it, small_models: dict[str, Path], monkeypatch, tmp_path: Path) -> None:
    break_it(monkeypatch)
    assert shares_won(learn, small_models["llama"], tmp_path / "run")[1] < 0.5

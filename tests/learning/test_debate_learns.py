"""A policy learns by self-play to win debates before a judge that counts a letter, and a broken version does not.

Wins are against the policy that it started from, which wins half of them.
"""

import json
from pathlib import Path

import ppo.setup
from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.environments.debate.formats import debate
from lmgym.environments.debate.players.judges import LetterJudge
from lmgym.environments.debate.prompts.short import PROMPTS
from lmgym.environments.debate.synthetic import synthetic_questions
from ppo.config import LimitConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.self_play.debates import debate_rounds
from ppo.train import train

BAR = 0.9
UPDATES = 40


def share_won(start: Path, folder: Path, seed: int = 0) -> tuple[float, float]:
    """Shares of 64 rounds that the policy has won against its start, before and after training."""
    config = PPOConfig(
        "debate",
        ModelConfig(str(start), precision="fp32"),
        RolloutConfig("synthetic", num_rollouts=64, num_generations=8, max_new_tokens=12, eval_size=32),
        method=MethodConfig("grpo", init_kl_coef=0.0), limits=LimitConfig(max_kl=0.0),
        optimizer=OptimizerConfig(5e-3, warmup=0, global_batch=64, micro_batch=64, max_updates=UPDATES, seed=seed),
        run=RunConfig(str(folder), tracking="none", eval_updates=UPDATES, save_updates=-1),
    )  # fmt: skip
    train(config, debate_rounds(synthetic_questions(96), debate(rounds=1), PROMPTS, LetterJudge("e")))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    won = [line["eval/scores/won"] for line in lines if "eval/scores/won" in line]
    return won[0], won[-1]


def test_self_play_wins_against_the_start(small_models: dict[str, Path], tmp_path: Path) -> None:
    before, after = share_won(small_models["llama"], tmp_path)
    assert 0.3 < before < 0.7
    assert after > BAR


def test_with_advantages_of_the_wrong_sign_it_loses(small_models: dict[str, Path], monkeypatch, tmp_path: Path) -> None:
    estimator = ppo.setup.advantage_estimator

    def made(config):
        def estimate(rollouts, kl_coef):
            rewards = estimator(config)(rollouts, kl_coef)
            rollouts.advantages = -rollouts.advantages
            return rewards

        return estimate

    monkeypatch.setattr(ppo.setup, "advantage_estimator", made)
    assert share_won(small_models["llama"], tmp_path)[1] < 0.5

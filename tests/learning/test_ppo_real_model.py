"""PPO on a real model: a reward of a few lines of Python rises on held-out prompts within 15 updates."""

import json
import math
from pathlib import Path
from statistics import mean, stdev

import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.task_setups import text_with_function
from ppo.train import train

PROMPTS = 160
HELD_OUT = 96
UPDATES = 15
THINGS = ("bread", "a bicycle", "tomatoes", "a shed", "soup", "a kite", "a fence", "candles", "a garden", "jam")
WAYS = ("make", "paint", "store", "sell", "choose", "clean", "carry", "describe")
QUESTIONS = ("How do I {} {}?", "Is it hard to {} {}?")


def speaks_to_the_reader(samples, prompts, outputs, tokenizer, **columns) -> list[float]:
    """Words that speak to the reader, four at most: 0 to 1."""
    replies = [[word.strip(".,:;!?") for word in output.lower().split()] for output in outputs]
    return [min(4, reply.count("you") + reply.count("your")) / 4 for reply in replies]


@pytest.mark.real
@pytest.mark.slow
def test_a_reward_of_a_few_lines_rises_on_held_out_prompts_by_more_than_two_standard_errors(
    real_model: Path, tmp_path: Path
) -> None:
    questions = [question.format(way, thing) for question in QUESTIONS for way in WAYS for thing in THINGS]
    assert len(questions) == PROMPTS
    prompts = tmp_path / "prompts.jsonl"
    rows = ({"messages": [{"role": "user", "content": question}]} for question in questions)
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = PPOConfig(
        name="speaks",
        policy=ModelConfig(str(real_model)),
        rollout=RolloutConfig(str(prompts), eval_size=HELD_OUT, num_rollouts=64, max_new_tokens=24),
        method=MethodConfig(ppo_epochs=3, num_layers_unfrozen=2),
        optimizer=OptimizerConfig(2e-4, global_batch=64, micro_batch=16, max_updates=UPDATES),
        run=RunConfig(str(tmp_path / "run"), tracking="none", eval_updates=UPDATES, save_updates=-1),
    )
    train(config, text_with_function(speaks_to_the_reader, as_text=False))
    before, after = (rewards_by_task(tmp_path / "run", update) for update in (0, UPDATES))
    assert before.keys() == after.keys()
    rises = [after[task] - before[task] for task in before]  # the same prompts at the same noise
    assert len(rises) == HELD_OUT
    assert mean(rises) > 2 * stdev(rises) / math.sqrt(HELD_OUT)
    assert 0 < mean(before.values()) < 0.9, "there was room to rise"


def rewards_by_task(run: Path, update: int) -> dict[int, float]:
    lines = (run / f"samples/evaluation-{update:06d}.jsonl").read_text().splitlines()
    return {row["task"]: row["episode_reward"] for row in map(json.loads, lines)}

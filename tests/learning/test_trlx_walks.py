"""trlx's own benchmark through `ppo.trlx` is the experiment here: the same figures on the same seeds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from launching import largest_difference, read_weights
from safetensors.torch import load_file

from lmgym.config import RunConfig
from lmgym.environments.random_walks import draw_random_walks
from ppo import trlx
from ppo.experiments.randomwalks import CONFIG
from ppo.task_setups import random_walks
from ppo.train import train
from ppo.trlx.data.default_configs import (
    ModelConfig,
    OptimizerConfig,
    PPOConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainConfig,
    TRLConfig,
)
from ppo.trlx.data.method_configs import MethodConfig
from ppo.trlx.trainer.accelerate_rft_trainer import RFTConfig
from ppo.trlx.training import Trained


def program(start: Path, folder: Path, updates: int, seed: int, method: MethodConfig | None = None) -> Trained:
    """As trlx's example, with the experiment's second moment of Adam; PPO unless another method is given."""
    config = TRLConfig(
        train=TrainConfig(
            seq_length=10, epochs=20, total_steps=updates, batch_size=100, minibatch_size=50, eval_interval=updates,
            checkpoint_interval=10000, pipeline="PromptPipeline", trainer="AcceleratePPOTrainer",
            checkpoint_dir=str(folder), tracker=None, seed=seed,
        ),
        model=ModelConfig(model_path=str(start), num_layers_unfrozen=-1),
        tokenizer=TokenizerConfig(tokenizer_path=str(start), truncation_side="right"),
        optimizer=OptimizerConfig("adamw", {"lr": 3.0e-4, "betas": (0.9, 0.999), "eps": 1.0e-8, "weight_decay": 0.0}),
        scheduler=SchedulerConfig("cosine_annealing", {"T_max": 10000, "eta_min": 3.0e-4}),
        method=method or PPOConfig(
            name="PPOConfig", num_rollouts=128, chunk_size=256, ppo_epochs=4, init_kl_coef=0, vf_coef=1.2,
            cliprange_reward=10, gen_kwargs={"max_new_tokens": 9, "top_k": 0, "top_p": 1.0, "do_sample": True},
        ),
    )  # fmt: skip
    walks = draw_random_walks(1000)
    return trlx.train(
        reward_fn=lambda samples, **kwargs: walks.optimality(samples),
        prompts=walks.prompts,
        eval_prompts=50 * walks.prompts,
        metric_fn=lambda samples, **kwargs: {"optimality": walks.optimality(samples)},
        config=config,
    )


def experiment(start: Path, folder: Path, updates: int, seed: int) -> None:
    """The same settings by their names here."""
    train(
        replace(
            CONFIG,
            policy=replace(CONFIG.policy, model=str(start)),
            optimizer=replace(
                CONFIG.optimizer, max_updates=updates, seed=seed, schedule="constant_with_warmup", warmup=0
            ),
            run=RunConfig(str(folder), tracking="none", eval_updates=updates, save_updates=-1),
        ),
        random_walks,
    )


def optimality(folder: Path) -> float:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["metrics/optimality"]


@pytest.mark.slow
def test_the_program_and_the_experiment_have_the_same_weights_after_8_updates(start: Path, tmp_path) -> None:
    program(start, tmp_path / "program", 8, 11)
    experiment(start, tmp_path / "experiment", 8, 11)
    assert optimality(tmp_path / "program") == optimality(tmp_path / "experiment")
    trained = read_weights(tmp_path / "program")
    assert largest_difference(trained, read_weights(tmp_path / "experiment")) == 0
    assert largest_difference(trained, load_file(start / "model.safetensors")) > 1e-3, "or there is nothing to compare"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_160_updates_both_find_the_shortest_walks(seed: int, start: Path, tmp_path) -> None:
    trained = program(start, tmp_path / "program", 160, seed)
    experiment(start, tmp_path / "experiment", 160, seed)
    assert optimality(tmp_path / "program") == optimality(tmp_path / "experiment") > 0.93
    walks = draw_random_walks(1000)
    prompts = trained.tokenizer(walks.prompts, return_tensors="pt")
    greedy = trained.tokenizer.batch_decode(trained.generate(**prompts, do_sample=False), skip_special_tokens=True)
    assert walks.optimality(greedy).mean() > 0.93


@pytest.mark.slow
def test_rft_finds_short_walks_too(start: Path, tmp_path) -> None:
    sampling = {"max_new_tokens": 9, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "do_sample": True}
    method = RFTConfig("RFTConfig", sampling, 0.9, 0.95, n_improve_steps=1, n_generations_per_prompt=100)
    program(start, tmp_path / "program", 20, 1, method)
    assert optimality(tmp_path / "program") > 0.93

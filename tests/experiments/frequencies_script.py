"""The rotary frequencies that every stage trains with in bf16 under DeepSpeed, beside those of the model's folder.

Run under a launcher; rank 0 writes what it found to the JSON file that the last argument names. The argument before it
names a JSON file: the model's folder, pairs, chats, an empty folder, the DeepSpeed configs, and what is added to them.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, TrainerCallback

import reward_models.check
import reward_models.train
import sft.check
import sft.train
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, TrainerConfig
from lmgym.distributed.deepspeed_config import read_config, resolve_config
from lmgym.distributed.deepspeed_engine import Engine
from lmgym.distributed.ranks import rank, start_distributed, stop_distributed, world_size
from lmgym.models.loading import load_tokenizer
from lmgym.runs.launch import launch
from lmgym.runs.run import Run
from lmgym.training.plan import TrainingPlan
from ppo.config import PPOConfig
from ppo.setup import build
from reward_models.config import RewardModelConfig
from reward_models.pairwise import PairTask
from sft.config import SftConfig
from sft.tasks import CHAT

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, global_batch=4, micro_batch=2, max_updates=2)

Frequencies = dict[str, torch.Tensor]


def frequencies_of(module: torch.nn.Module) -> Frequencies:
    """Copies of the floating buffers, by the end of their names."""
    found = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    return {name.partition("rotary_emb.")[2]: buffer.detach().clone() for name, buffer in found.items()}


def described(module: torch.nn.Module, exact: Frequencies) -> dict[str, Any]:
    """A module's numbers: the largest angle at position 1000 by which a frequency is off, and the weights."""
    found = frequencies_of(module)
    assert found.keys() == exact.keys(), (list(found), list(exact))
    return {
        "off": max(float((found[name].double() - exact[name].double()).abs().max()) * 1000 for name in exact),
        "weights": sorted({str(p.dtype) for p in module.parameters()}),
        "sharded": any(hasattr(p, "ds_id") for p in module.parameters()),
    }


class Look(TrainerCallback):
    """Describes the model before each update."""

    def __init__(self, exact: Frequencies) -> None:
        self.exact = exact
        self.found: list[dict[str, Any]] = []

    def on_step_begin(self, args, state, control, model=None, **kwargs) -> None:
        """Once DeepSpeed has the model."""
        self.found.append(described(model, self.exact))


def trained(stage: str, deepspeed: dict[str, Any], given: dict[str, Any], exact: Frequencies) -> list[dict[str, Any]]:
    """The numbers that a stage of the Trainer's trains with, before each of two updates."""
    model, folder = given["model"], f"{given['folder']}/{stage}"
    run_config = RunConfig(output=folder, tracking="none", eval_updates=10_000, save_updates=-1)
    settings: dict[str, Any] = {"run": run_config, "trainer": TrainerConfig(log_updates=1)}
    tokenizer, look = load_tokenizer(model), Look(exact)
    accumulation = 2 // world_size()
    with Run.start(folder, {}, 0, "none", is_main=rank() == 0) as run:
        if stage == "reward_models":
            pairs = RowsConfig(given["pairs"], max_length=128, eval_size=0.1)
            scoring = RewardModelConfig("look", ModelConfig(model, precision="bf16"), pairs, OPTIMIZER, **settings)
            rows = PairTask().prepare(scoring, tokenizer)
            plan = TrainingPlan(scoring, scoring.scorer, deepspeed, accumulation, tokenizer, rows, [])
            trainer = reward_models.train.make_trainer(reward_models.check.RewardModelPlan(plan, []), PairTask(), run)
        else:
            chats = RowsConfig(given["chats"], eval_size=4, max_length=128)
            talking = SftConfig("look", ModelConfig(model, precision="bf16"), chats, OPTIMIZER, **settings)
            rows = CHAT.prepare(talking, tokenizer)
            plan = TrainingPlan(talking, talking.policy, deepspeed, accumulation, tokenizer, rows, [])
            trainer = sft.train.make_trainer(sft.check.SftPlan(plan, [], {}), CHAT, run)
        trainer.add_callback(look)
        trainer.train()
    AcceleratorState._reset_state()  # the next trainer has another config
    return look.found


def prepared(deepspeed: dict[str, Any], given: dict[str, Any], exact: Frequencies) -> list[dict[str, Any]]:
    """The numbers that PPO trains with: at the start, and once a checkpoint is loaded."""
    actor, _ = build(PPOConfig("look", policy=ModelConfig(given["model"])), load_tokenizer(given["model"]))
    config = resolve_config(deepspeed, 2, 1, world_size(), "bf16", 1.0, hidden_size=4)
    engine = Engine.prepare(actor, torch.optim.AdamW(actor.parameters(), lr=1e-3), config)
    found = [described(engine.module, exact)]
    engine.save(f"{given['folder']}/checkpoint")
    engine.load(f"{given['folder']}/checkpoint")
    return [*found, described(engine.module, exact)]


def main() -> None:
    """All stages under all configs."""
    given = json.loads(Path(sys.argv[-2]).read_text())
    start_distributed(use_deepspeed=True)
    exact = frequencies_of(AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32))
    found: dict[str, Any] = {}
    for name in given["configs"]:
        deepspeed = read_config(CONFIGS / name) | given["added"]
        found[f"ppo {name}"] = prepared(deepspeed, given, exact)
        for stage in ("reward_models", "sft"):
            found[f"{stage} {name}"] = trained(stage, deepspeed, given, exact)
        gc.collect()
    if rank() == 0:
        Path(sys.argv[-1]).write_text(json.dumps(found))
    stop_distributed()


if __name__ == "__main__":
    launch(main)

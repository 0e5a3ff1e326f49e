"""`train`: the episodes of an agent, many at once, through ppo's own loop."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmgym.apps.agents.agent import Agent
from lmgym.apps.agents.dialogue import takes_system
from lmgym.apps.agents.environment import MOST_TURNS, AgentEnvironment
from lmgym.apps.agents.settings import run_config
from lmgym.apps.games.gym_text import make_gymnasium
from lmgym.config import Range
from lmgym.errors import MOST_STEPS, MOST_TOGETHER, InputError
from lmgym.runs.launch import launch
from lmgym.training.reporting import show_notes

if TYPE_CHECKING:
    from ppo.task_setups import Prepare

EVALUATED = 64


def agent_episodes(
    agent_class: Callable[..., Agent],
    env: str | Callable[[], Any],
    env_settings: Mapping[str, Any] | None = None,
    max_turns: int = MOST_TURNS,
) -> "Prepare":
    """The task setup of an agent's episodes: what an experiment passes to `ppo.train.train`.

    `env` is an id of Gymnasium, made with `env_settings`, or a function that makes an environment like Gymnasium's.
    """

    def prepare(config, tokenizer):
        from ppo.rewards import SCORER_SETTINGS
        from ppo.task_setups import TaskSetup, refuse_unused

        refuse_unused(config.reward, SCORER_SETTINGS, "an environment has its own rewards")
        held_out = int(config.rollout.eval_size)
        if held_out < 1:
            raise InputError(f"eval_size={config.rollout.eval_size:g}; needed: a number of episodes to evaluate on")
        make_env = partial(make_gymnasium, env, env_settings or {}) if isinstance(env, str) else env
        environment = partial(AgentEnvironment, agent_class, make_env, max_turns, takes_system(tokenizer))
        environment()  # what cannot be made is refused before weights are loaded
        name = env if isinstance(env, str) else getattr(env, "__name__", "an environment")
        return TaskSetup([{}], [{}] * held_out, environment, None, f"{name} {dict(env_settings or {})}")

    return prepare


def train(
    agent_class: Callable[..., Agent],
    env_id: str | Callable[[], Any],
    num_envs: int = 64,
    *,
    model: str | Path,
    episodes: int = 6400,
    generate_config_dict: Mapping[str, Any] | None = None,
    ppo_config_dict: Mapping[str, Any] | None = None,
    peft_config: Any = None,
    env_settings: Mapping[str, Any] | None = None,
    max_turns: int = MOST_TURNS,
    output: str = "outputs/agents",
) -> Path:
    """Train the agent as its own loop does, `num_envs` episodes at a time; the folder of the trained policy.

    The dicts are those of `Agent`; `ppo_config_dict` may also have flags of `lmgym train ppo`, as
    `{"method": "grpo", "num_generations": 8, "deepspeed": "zero2"}`, and its batch is `num_envs`. `model` is a folder
    or a hub id. Under a launcher errors are printed in one line and end the process.
    """

    folder = Path(output)

    def work() -> None:
        nonlocal folder
        from ppo.train import train as train_ppo
        from ppo.trlx.adapters import adapter_settings

        Range(1, MOST_TOGETHER).check("num_envs", num_envs)
        Range(1, MOST_STEPS).check("episodes", episodes)
        lora, notes = adapter_settings(peft_config, unfrozen=-1)
        settings = {
            "model": str(model),
            "num_rollouts": num_envs,
            "generation_batch_size": num_envs,
            "eval_size": EVALUATED,
            "output": output,
            "precision": "fp32",
            **lora,
        }
        config, more = run_config("agents", generate_config_dict, ppo_config_dict, settings)
        updates = -(-episodes // num_envs) * config.updates_per_iteration
        if "max_updates" not in (ppo_config_dict or {}):
            config = replace(config, optimizer=replace(config.optimizer, max_updates=updates))
        show_notes([f"lmgym.agents: {note}" for note in (*notes, *more)])
        folder = train_ppo(config, agent_episodes(agent_class, env_id, env_settings, max_turns))

    if "RANK" in os.environ:  # each rank ends its process cleanly afterwards
        launch(work)
    else:
        work()
    return folder / "model"

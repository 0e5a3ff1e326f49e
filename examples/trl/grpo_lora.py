"""Shared by the GRPO and PPO trainers: games as a task setup, the settings of Playpen's paper, and the run.

Further flags of `playpen run` are settings of lmgym train ppo: -- --max_updates 40 --learning_rate 1e-5.
"""

from pathlib import Path
from typing import Any

from lmgym.apps.playpen.playing import close_games
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import BasePlayPen, open_games
from lmgym.apps.playpen.trainers.checkpoints import keep_checkpoint, learner_source, with_flags
from lmgym.apps.playpen.trainers.learning_games import (
    TEACHER,
    GameReward,
    LearningGame,
    TeacherReplies,
    learning_tasks,
    paper_reward,
    split_tasks,
)
from lmgym.apps.playpen.trainers.rollout_records import RolloutRecords
from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.distributed.ranks import rank, world_size
from ppo.config import LimitConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import TaskSetup
from ppo.train import train

HELD_OUT = 0.2  # of the instances of each game


def train_grpo(trainer: BasePlayPen, game_registry: GameRegistry, **lora: Any) -> None:
    """GRPO of an adapter by the games of a registry, with the teacher if the trainer has one."""
    partner = trainer.teacher.name if trainer.teacher else "selfplay"
    folder = Path("models/grpo+lora") / trainer.learner.name / partner
    config = grpo_config(trainer, folder, MethodConfig("grpo", init_kl_coef=0.04), **lora)
    folder = train_in_games(trainer, game_registry, config)
    keep_checkpoint(trainer.learner, folder, "adapter", f"grpo-{partner}")


def grpo_config(trainer: BasePlayPen, folder: Path, method: MethodConfig, **lora: Any) -> PPOConfig:
    """The settings of Playpen's paper: 16 games with 8 replies each, at most 100 tokens; and the flags.

    The temperature is the learner's, or the paper's 1 if that is 0: a greedy learner tries nothing.
    """
    source = learner_source(trainer.learner)
    config = PPOConfig(
        name="playpen",
        policy=ModelConfig(
            model=source.model, precision="fp32", load_in_4bit=source.bits == 4, load_in_8bit=source.bits == 8, **lora
        ),
        rollout=RolloutConfig(
            num_rollouts=128, num_generations=8 if method.method == "grpo" else None,
            max_new_tokens=min(100, trainer.learner.max_tokens), temperature=trainer.learner.temperature or 1.0,
            generation_batch_size=64,
        ),
        # a masked game is no fault of the run
        reward=RewardConfig(max_failed_rewards=1.0), method=method,
        optimizer=OptimizerConfig(5e-7, global_batch=128, micro_batch=4, max_updates=100),
        run=RunConfig(output=str(folder), save_updates=-1, tracking="none"), limits=LimitConfig(max_kl=0.0),
    )  # fmt: skip
    return with_flags(config, trainer.flags, folder)


def train_in_games(trainer: BasePlayPen, game_registry: GameRegistry, config: PPOConfig) -> Path:
    """Trains the learner by the games of a registry, a part of each game's instances held out; the run's folder."""
    games = open_games(game_registry)
    try:
        return train(config, lambda config, tokenizer: game_setup(trainer, games, config))
    finally:
        close_games(games)


def game_setup(trainer: BasePlayPen, games: list[Any], config: PPOConfig) -> TaskSetup:
    """The games as a task setup; the episodes of training that this process plays are left in playpen-records."""
    teacher = trainer.teacher
    programmed = bool(teacher and teacher.is_programmed)
    tasks = learning_tasks(games, self_play=teacher is None, teacher=teacher.name if teacher else TEACHER)
    train_tasks, eval_tasks = split_tasks(tasks, HELD_OUT, config.optimizer.split_seed)
    named = {game.spec.name: game for game in games}
    players = {TEACHER: TeacherReplies(teacher)} if teacher and not programmed else {}
    record = RolloutRecords(trainer.players, -(-config.rollout.num_rollouts // world_size()))
    recorded = {"record": record} if rank() == 0 else {}
    return TaskSetup(
        train_tasks, eval_tasks, lambda: LearningGame(named, programmed, paper_reward, **recorded), GameReward(),
        f"{', '.join(named)}: {len(tasks)} tasks", players=players,
        eval_environment=lambda: LearningGame(named, programmed, paper_reward), eval_players=players,
    )  # fmt: skip

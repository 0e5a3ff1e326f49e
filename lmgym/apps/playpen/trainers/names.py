"""The names that a trainer's file imports `from playpen`, and from its modules: `playpen run` makes them importable.

They are Playpen's names for what is here. Nothing of the package of that name is loaded, which needs clemcore in this
environment.
"""

import sys

from lmgym.apps.playpen.trainers.base import BaseCallback, BasePlayPen, GameRecordCallback, RolloutProgressCallback
from lmgym.apps.playpen.trainers.stepping import GameEnv, StepRolloutBuffer, make_env

BasePlaypenTrainer = BasePlayPen
"""its name in later versions, whose `learn` takes no registry"""
MODULES = ("playpen", "playpen.base", "playpen.callbacks", "playpen.buffers", "playpen.envs", "playpen.envs.game_env")

__all__ = [
    "BaseCallback",
    "BasePlayPen",
    "BasePlaypenTrainer",
    "GameEnv",
    "GameRecordCallback",
    "RolloutProgressCallback",
    "StepRolloutBuffer",
    "make_env",
]


def make_importable() -> None:
    """Make this module what `import playpen` finds in this process."""
    sys.modules.update(dict.fromkeys(MODULES, sys.modules[__name__]))

"""The pool of frozen opponents: earlier policies of a run, saved every few iterations, one of which plays at a time.

    PATH/pool.json                      the run's folder
    PATH/iteration_00000010/model/      the policy before iteration 10, an ordinary folder

Design decisions:
- The members that iteration i draws from are those saved up to it, and the draw is a function of (seed, i): a run that
  was killed goes on with the same opponents, and needs no state but the folder.
- Every rank loads the same opponent; one is in memory at a time. It plays as the policy does, over tokens or actions.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.ranks import raise_on_all_ranks, rank
from lmgym.environments.one_side import OPPONENT
from lmgym.environments.players import Actor
from lmgym.errors import InputError, shown, shown_path
from lmgym.generation.actions import ActionPolicy, policy_over
from lmgym.generation.local_generation import LocalGenerator, load_causal
from lmgym.models.forward.policies import save_policy
from lmgym.models.saving import submodule_weights
from lmgym.runs.files import read_json, write_json
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from ppo.best import Trained
from ppo.config import RolloutConfig
from ppo.task_setups import TaskSetup

POOL = "pool:"
RECORD = "pool.json"
POOL_STREAM = 0x706F6F6C
"""separates the draws of opponents from other draws of (seed, iteration)"""


def check_opponents(given: str | None, setup: TaskSetup) -> None:
    """Raises InputError if the task setup does not use the setting `opponents`."""
    if given is not None and "opponents" not in setup.uses_settings:
        raise InputError(
            f"--opponents {shown(given)} would not be used: the task setup has no side for an opponent; needed: one of "
            "lmgym/apps/games/self_play/ppo_setup.py, or leave --opponents out"
        )


def has_pool(opponents: str | None) -> bool:
    """True if opponents come from a pool."""
    return (opponents or "").startswith(POOL)


def pool_folder(opponents: str) -> Path:
    """The folder of `pool:PATH`. Raises InputError if the path is empty."""
    path = opponents.removeprefix(POOL)
    if not path:
        raise InputError("opponents=pool: has no path; needed: pool:PATH, the folder for frozen policies")
    return Path(path)


def member(folder: Path, iteration: int) -> Path:
    """The folder of the policy that was saved before an iteration."""
    return folder / f"iteration_{iteration:08d}" / "model"


def draw_opponent(seed: int, iteration: int, every: int) -> int:
    """The iteration before which the opponent of `iteration` was saved: one of 0, every, 2 every, ..., each as likely.

    A function of its arguments.
    """
    return every * int(np.random.default_rng([seed, iteration, POOL_STREAM]).integers(iteration // every + 1))


def claim_pool(opponents: str | None, run: Run, resumed: bool) -> None:
    """Makes the pool's folder this run's. A new run renames the pool of a former run in the same output folder.

    Raises InputError, on all ranks, for a folder that holds something else. Collective.
    """
    if opponents and has_pool(opponents):
        raise_on_all_ranks(lambda: _claim(pool_folder(opponents), run, resumed) if rank() == 0 else None)


def _claim(folder: Path, run: Run, resumed: bool) -> None:
    owner, record = str(run.folder.resolve()), folder / RECORD
    found = _read_owner(record) if record.exists() else None
    if found == owner and not resumed:
        number = next(n for n in range(1, 10**6) if not folder.with_name(f"{folder.name}.{n}").exists())
        folder.rename(folder.with_name(f"{folder.name}.{number}"))
    elif found != owner and folder.exists() and any(folder.iterdir()):
        whose = f"the pool of the run in {shown(found)}" if found else "no pool of opponents"
        raise InputError(
            f"--opponents pool:{shown_path(folder)} holds {whose}; needed: a new or empty folder, or that run's output"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, {"run": owner})
    except OSError as error:
        raise InputError(
            f"--opponents pool:{shown_path(folder)}: {error.strerror}; needed: a folder to write"
        ) from error


def _read_owner(record: Path) -> str | None:
    try:
        return read_json(record)["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def set_opponent(
    settings: RolloutConfig, seed: int, c: Trained, run: Run, supervisor: Supervisor, iteration: int
) -> dict[str, float]:
    """Save the policy to the pool if it is due, and load this iteration's opponent unless it plays already.

    Returns the metric that names it. Collective.
    """
    if not has_pool(settings.opponents):
        return {}
    folder, every = pool_folder(settings.opponents or ""), settings.pool_every
    if iteration % every == 0:
        with supervisor.saving_results(c.engine.module):
            weights = c.engine.gather()
            if run.is_main:
                policy = c.engine.module.policy
                target = member(folder, iteration).parent
                save_policy(policy, submodule_weights(weights, "policy."), target, c.tokenizer, merge=True)
    drawn = draw_opponent(seed, iteration, every)
    path = member(folder, drawn)
    playing = c.setup.players.get(OPPONENT)
    playing = playing.generator if isinstance(playing, ActionPolicy) else playing
    if not isinstance(playing, LocalGenerator) or playing.model.name_or_path != str(path):
        c.setup = replace(c.setup, players={})  # frees the opponent of before
        c.setup = replace(c.setup, players={OPPONENT: raise_on_all_ranks(lambda: load_member(path, settings))})
    return {"opponent/iteration": float(drawn)}


def load_member(path: Path, settings: RolloutConfig) -> Actor:
    """The opponent in a folder, over tokens or actions as the policy. Raises InputError if there is no such folder."""
    if not path.is_dir():
        raise InputError(
            f"the pool has no {shown_path(path)}, an opponent of this run; needed: the folder as the run left it, or "
            "--resume never to begin again"
        )
    with without_sharded_load():
        generator = load_causal(str(path))
    assert isinstance(generator, LocalGenerator)
    generator.generation_batch_size = settings.generation_batch_size
    return policy_over(settings.policy_over, generator, settings.action_scores)

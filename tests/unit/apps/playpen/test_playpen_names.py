"""A file that was written for Playpen: `from playpen import ...`, run by `playpen run` as it is."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy_games import SayGame, scripted, without_keys

from lmgym.apps.playpen.commands import playpen
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import tasks_of
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.running import load_trainer
from lmgym.apps.playpen.trainers.buffers import StepRolloutBuffer
from lmgym.apps.playpen.trainers.names import StandIn
from lmgym.apps.playpen.trainers.stepping import GameEnv
from lmgym.errors import InputError

FILE = """
from playpen import BasePlayPen, GameRecordCallback, RolloutProgressCallback, StepRolloutBuffer, make_env


class StepTrainer(BasePlayPen):

    def __init__(self, learner, teacher):
        super().__init__(learner, teacher)
        self.rollout_steps = 20
        self.add_callback(GameRecordCallback())
        self.add_callback(RolloutProgressCallback(self.rollout_steps))

    def learn(self, game_registry):
        game_spec = game_registry.get_game_specs_that_unify_with("taboo")[0]
        with make_env(game_spec, [self.learner, self.teacher]) as game_env:
            rollout_buffer = StepRolloutBuffer(game_env)
            self._collect_rollouts(game_env, self.rollout_steps, rollout_buffer)
        steps = [step for trajectory in rollout_buffer.trajectories for step in trajectory]
        print("collected", self.learner.get_name(), len(steps), sum(step["done"] for step in steps))
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path) -> None:
    without_keys(monkeypatch, tmp_path)


def run(*line: str):
    return CliRunner().invoke(playpen, ["run", *line])


def test_a_trainer_that_imports_playpen_steps_through_games_and_leaves_records(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    done = run("mine.py", "-l", "mock", "-t", "mock")
    assert done.exit_code == 0, done.output
    assert "collected mock 20 10" in done.output
    assert "20 of 20 steps collected" in done.output
    folder = tmp_path / "playpen-records/mock-t0.0--mock-t0.0/rollout0001/taboo"
    numbers = sorted(int(path.parent.name.removeprefix("episode_")) for path in folder.rglob("scores.json"))
    assert numbers == list(range(2, 21, 2))
    assert "needs a teacher; needed: -t MODEL" in run("mine.py", "-l", "mock").output
    (tmp_path / "alone.py").write_text(FILE.replace("learner, teacher)", "learner, teacher=None)", 1))
    assert "collected mock 20 10" in run("alone.py", "-l", "mock").output, "in all seats"


@pytest.mark.parametrize(
    "line",
    ["from playpen.base import BasePlayPen as Base", "from playpen import BasePlaypenTrainer as Base"],
)
def test_names_of_other_versions_and_a_learn_without_a_registry(line: str, tmp_path) -> None:
    (tmp_path / "playpen").mkdir()  # of a clone of Playpen, which needs clemcore
    (tmp_path / "playpen/__init__.py").write_text("import clemcore")
    (tmp_path / "mine.py").write_text(f"{line}\nclass T(Base):\n    def learn(self):\n        print('learned')\n")
    done = run("mine.py", "-l", "mock")
    assert "learned" in done.output
    assert isinstance(sys.modules["playpen"], StandIn)


IMPORTS = """
from playpen import (BasePlayPen, BasePlaypenTrainer, BaseCallback, CallbackList, PlayPenEnv, RolloutBuffer,
    StepRolloutBuffer, BranchingRolloutBuffer, GameEnv, GameBranchingEnv, make_env, make_tree_env, EpisodeBuffer,
    EpisodeBufferCallback, BranchingEpisodeBuffer, BranchingEpisodeBufferCallback, to_instances_filter, to_sub_selector)
from playpen.envs.branching_env import GameBranchingEnv as Same, GameTree
from playpen.callbacks.buffers import BranchingEpisodeBufferCallback as Own
from playpen.starters.branching_trainer import BranchingPlayPenTrainer
from playpen import buffers, starters
import clemcore.clemgame as game
from clemcore.backends import Model, ModelSpec, ModelRegistry
from clemcore.backends.huggingface_local_api import HuggingfaceLocalModel
from clemcore.clemgame import GameRegistry, GameSpec, Player, GameMaster, GameStep
from clemcore.clemgame.runners import batchwise, branching, sequential
from clemcore.clemgame.runners.branching import is_player_model, is_player_role, is_round, run
assert Same is GameBranchingEnv and Own is BranchingEpisodeBufferCallback
assert buffers.EpisodeBuffer is EpisodeBuffer and starters.BranchingPlayPenTrainer is BranchingPlayPenTrainer
assert run is branching.run and run is not sequential.run and game.GameRegistry is GameRegistry
class T(BasePlaypenTrainer):
    def learn(self):
        found = GameRegistry.from_directories_and_cwd_files()
        assert found is self.get_game_registry()
        print("has", *found.names)
"""


@pytest.mark.parametrize("is_installed", [False, True])
def test_every_name_that_trainers_import_is_found_whether_the_packages_are_installed_or_not(
    is_installed: bool, tmp_path, monkeypatch
) -> None:
    (tmp_path / "mine.py").write_text(IMPORTS)
    for name in ("playpen", "clemcore") if is_installed else ():
        (tmp_path / "installed" / name).mkdir(parents=True)
        (tmp_path / "installed" / name / "__init__.py").write_text("raise SystemExit('loaded')")
        monkeypatch.syspath_prepend(tmp_path / "installed")
    done = run("mine.py", "-l", "mock", "-g", "taboo")
    assert "has taboo" in done.output, done.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "from playpen.clemdatasets import EpisodBuffer",
            r"playpen.clemdatasets has no EpisodBuffer in lmgym; did you mean EpisodeBuffer\?",
        ),
        (
            "from clemcore.clemgame import ClemGameEnv",
            "clemcore.clemgame has no ClemGameEnv in lmgym; .*needed: Playpen",
        ),
        ("import playpen.agents\nplaypen.agents.Agent", "playpen.agents has no Agent in lmgym"),
        ("from playpen import to_rows\nto_rows([])", "playpen has no to_rows in lmgym"),
        ("from clemcore.backends import load_model\nload_model('x')", "clemcore.backends has no load_model in lmgym"),
    ],
)
def test_a_name_that_is_not_here_is_one_line_with_what_to_do(line: str, message: str, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(line + "\n" + FILE)
    with pytest.raises(InputError, match=rf"mine\.py failed: ImportError: {message}") as caught:
        load_trainer("mine.py")
    assert "pip install clemcore" in str(caught.value)
    assert "mine.py, line" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "sequential.run(None, [], [], reward_func=len)",
            r"TypeError: run\(\) got an unexpected keyword .*'reward_func'",
        ),
        ("import trlx_absent", "ModuleNotFoundError: No module named 'trlx_absent'"),
        ("self.learner.generate_response([])", "mock has no generator"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_fails_as_a_trainer_learns_is_one_line_with_its_place(body: str, message: str, tmp_path) -> None:
    head = "from clemcore.clemgame.runners import sequential\nfrom playpen import BasePlaypenTrainer\n"
    (tmp_path / "mine.py").write_text(f"{head}class T(BasePlaypenTrainer):\n    def learn(self):\n        {body}\n")
    done = run("mine.py", "-l", "mock")
    assert done.exit_code == 2
    last = done.output.splitlines()[-1]
    assert re.search(message, last), last
    assert "Traceback" not in done.output
    assert "mine.py, line 5" in last or "generator" in message


def test_a_package_that_is_not_installed_is_named_with_its_line(tmp_path) -> None:
    (tmp_path / "mine.py").write_text("import os\nimport absent_package.inner\n")
    with pytest.raises(
        InputError, match=r"No module named 'absent_package'.*mine.py, line 2\); needed: pip install absent_package"
    ):
        load_trainer("mine.py")


def test_steps_go_through_the_instances_in_turn_and_each_seat_has_its_player() -> None:
    learner, teacher = scripted(["yes"], "a"), scripted(["no"], "b")
    game = SayGame(2)
    env = GameEnv(game, [learner, teacher], tasks_of(game))
    buffer = StepRolloutBuffer(env)
    said = []
    for _ in range(5):
        player, context = env.observe()
        said.append((player.name, player.game_role, player.model.name, context["content"], player(context)))
        done, info = env.step(said[-1][-1])
        buffer.on_step(context, said[-1][-1], done, info)
        if done:
            buffer.on_done()
            with pytest.raises(InputError, match="the episode of say has ended; needed: reset"):
                env.observe()
            env.reset()
    first, second = ("Player 1", "first", "a"), ("Player 2", "second", "b")
    assert said[:2] == [(*first, "first: say yes, 0", "yes"), (*second, "second: say yes, 1", "no")]
    assert [len(steps) for steps in buffer.trajectories] == [2, 2, 1]
    assert env.task.number == 0, "from the first instance on again"
    with pytest.raises(InputError, match="say has 2 players and 2 instances here, and 3 models"):
        GameEnv(game, [learner] * 3, tasks_of(game))


def test_the_learners_weights_are_at_hand_in_this_process_alone(small_models) -> None:
    fields = {"model_name": "a", "backend": "huggingface_local", "huggingface_id": str(small_models["gpt2"])}
    learner = Model(Spec(fields))
    assert learner.model.config.model_type == "gpt2"
    assert learner.tokenizer("hello").input_ids
    with pytest.raises(InputError, match="b is of backend openai; needed: huggingface_local"):
        _ = Model(Spec({"model_name": "b", "backend": "openai"})).model


def test_a_teacher_that_cannot_play_is_refused_before_the_trainer_makes_anything(tmp_path) -> None:
    Path("model_registry.json").write_text(
        json.dumps([{"model_name": "t", "backend": "huggingface_local", "huggingface_id": "./absent"}])
    )
    (tmp_path / "mine.py").write_text(FILE)
    done = run("mine.py", "-l", "mock", "-t", "t")
    assert done.exit_code == 2
    assert "absent" in done.output
    assert not (tmp_path / "playpen-records").exists()

"""PPO on games, in this process: what a run records of a game, and what failing environments do to it."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from launching import read_metrics, words
from ppo_in_process import Go

from lmgym.environments.named import load_environment
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.errors import InputError, RunStopped
from lmgym.report.curves import reference_lines
from lmgym.report.run_files import RunFiles
from ppo.config import RolloutConfig
from ppo.named_environments import environment_episodes, split_tasks
from ppo.task_setups import TaskSetup

NAMED = {"prepare": environment_episodes, "prompts": RolloutConfig().prompts}


class Fragile:
    """Three turns; in some seeds the second one raises, gives NaN or an infinite reward."""

    def __init__(self, failing: Callable[[int], bool]) -> None:
        self.failing = failing

    def reset(self, task: Mapping, seed: int) -> dict[str, Observation]:
        self.seed, self.turn = seed, 0
        return {POLICY: Observation("hello")}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        self.turn += 1
        reward = len(actions[POLICY]) / 10
        if self.turn == 2 and self.failing(self.seed):
            if self.seed % 3 == 0:
                raise KeyError("no such move")
            reward = math.nan if self.seed % 3 == 1 else math.inf
        shown = {} if self.turn == 3 else {POLICY: Observation(f"turn {self.turn}")}
        return StepResult(shown, {POLICY: reward}, terminated=self.turn == 3, info={"turns": self.turn})


def fragile(failing: Callable[[int], bool]):
    tasks: list = [{}] * 8
    return lambda config, tokenizer: TaskSetup(tasks, tasks, lambda: Fragile(failing), None, "fragile")


def test_a_run_goes_on_without_the_episodes_whose_environment_failed(go: Go, capsys) -> None:
    folder = go(prepare=fragile(lambda seed: seed % 7 == 0), max_failed_rewards=0.9)
    failed = read_metrics(folder)["rollout/failed_rewards"]
    assert 0 < max(failed.values()) < 0.9
    assert json.loads((folder / "run.json").read_text())["outcome"] == "finished"
    printed = words(capsys.readouterr().out)
    assert "rewards failed; their replies have no loss: episode" in printed
    assert "of Fragile, step 2:" in printed
    assert all(math.isfinite(x) for x in read_metrics(folder)["loss/policy"].values())


def test_a_run_stops_if_too_many_environments_fail(go: Go) -> None:
    with pytest.raises(
        RunStopped, match=r"8 of 8 rewards failed, more than max_failed_rewards=0.1 .*Fragile, step 2: "
    ):
        go(prepare=fragile(lambda seed: True))


def test_a_game_of_the_ladder_is_trained_on_by_its_name_with_its_reference_lines(go: Go) -> None:
    folder = go(**NAMED, environment="games:shop", num_rollouts=8, eval_size=4)
    lines = reference_lines(RunFiles(folder))
    assert lines.keys() == {"random", "heuristic", "optimal"}
    assert lines["optimal"] == 1.0
    metrics = read_metrics(folder)
    assert set(metrics["reward/mean"].values()) == {0.0}
    assert "episode/calls" in metrics
    assert "optimal" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"environment": None}, "there is no environment; needed: --environment SCHEME:NAME"),
        ({"prompts": "a.jsonl"}, "has tasks of its own, beside --prompts 'a.jsonl'; needed: one of them"),
        ({"eval_size": 0.5}, "eval_size=0.5; needed: a number of episodes"),
        (
            {"environment": "arithmetic:+", "eval_size": 100},
            "eval_size=100 of 100 tasks of .*; needed: 1 to 99",
        ),
        ({"eval_scorer": "outputs/x"}, "--eval_scorer outputs/x would not be used: games:shop has its own rewards"),
        (
            {"environment": "debate:letters", "scorers": "a=b"},
            "--scorers a=b would not be used: debate:letters has its own rewards",
        ),
    ],
)
def test_a_setup_of_a_game_refuses_what_it_cannot_use(go: Go, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        go(**(NAMED | {"environment": "games:shop"} | settings))


def test_a_world_that_lies_where_prompts_are_read_by_default_is_not_taken_for_prompts_of_the_user(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / RolloutConfig().prompts
    there.parent.mkdir(parents=True)
    there.touch()
    folder = go(**NAMED, environment="games:shop", num_rollouts=8, eval_size=4)
    assert (folder / "model").is_dir()


def test_a_game_of_two_is_played_against_a_script(go: Go) -> None:
    pytest.importorskip("textarena")
    folder = go(**NAMED, environment="games:nim", num_rollouts=8, eval_size=4)
    assert set(read_metrics(folder)["reward/mean"].values()) <= {-1.0, 0.0}  # a second illegal move loses


def test_a_game_that_is_not_installed_is_refused_before_the_run(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError, match=r"pip install 'lmgym\[gym\]'"):
        go(**NAMED, environment="games:taxi")


def test_an_experiment_that_does_not_use_the_environment_refuses_it(go: Go) -> None:
    with pytest.raises(InputError, match="is not used by this experiment; needed: lmgym train ppo environment --env"):
        go(environment="games:shop")


def test_tasks_are_held_out_at_random_by_the_seed_of_the_split() -> None:
    named = load_environment("arithmetic:+")
    train, held_out = split_tasks(named, 20, 0)
    assert [task for task in named.tasks if task not in held_out] == train
    assert split_tasks(named, 0.2, 0) == (train, held_out)
    assert split_tasks(named, 20, 1)[1] != held_out
    own = load_environment("debate:letters")
    assert split_tasks(own, 8, 0) == (own.tasks, own.eval_tasks[:8])
    alone = load_environment("games:shop")
    assert split_tasks(alone, 3, 0) == (({},), [{}] * 3)

"""The pool of frozen opponents: who is drawn, and whose folder it is."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmgym.apps.games.self_play.ppo_setup import self_play
from lmgym.errors import InputError
from lmgym.generation.actions import ActionPolicy
from lmgym.generation.local_generation import LocalGenerator
from ppo.config import PPOConfig, RolloutConfig
from ppo.opponents import check_opponents, claim_pool, draw_opponent, has_pool, load_member, pool_folder
from ppo.task_setups import TaskSetup


def config(opponents: str | None, environment: str = "games:tic_tac_toe", **changes) -> PPOConfig:
    return PPOConfig("x", rollout=RolloutConfig(environment=environment, opponents=opponents, **changes))


def test_opponents_are_drawn_from_those_saved_so_far_as_a_function_of_seed_and_iteration() -> None:
    drawn = [draw_opponent(0, iteration, 3) for iteration in range(300)]
    assert drawn == [draw_opponent(0, iteration, 3) for iteration in range(300)]
    assert drawn != [draw_opponent(1, iteration, 3) for iteration in range(300)]
    assert all(one % 3 == 0 and one <= iteration for iteration, one in enumerate(drawn))
    assert set(drawn[:3]) == {0}
    late = [draw_opponent(seed, 11, 3) for seed in range(400)]
    assert {one: late.count(one) > 60 for one in set(late)} == dict.fromkeys((0, 3, 6, 9), True)


def claim(folder: Path, run: Path, resumed: bool = False) -> None:
    claim_pool(f"pool:{folder}", SimpleNamespace(folder=run), resumed)  # type: ignore[arg-type]


def test_a_pool_belongs_to_one_output_folder(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    claim(pool, tmp_path / "a")
    assert json.loads((pool / "pool.json").read_text()) == {"run": str(tmp_path / "a")}
    (pool / "iteration_00000000").mkdir()
    claim(pool, tmp_path / "a", resumed=True)
    assert (pool / "iteration_00000000").is_dir()
    with pytest.raises(InputError, match=r"holds the pool of the run in .*a'?; needed: a new or empty folder"):
        claim(pool, tmp_path / "b")
    claim(pool, tmp_path / "a")
    assert [path.name for path in pool.iterdir()] == ["pool.json"]
    assert (tmp_path / "pool.1/iteration_00000000").is_dir(), "a new run keeps the former one's"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no pool of opponents"):
        claim(tmp_path, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(InputError, match="has no path; needed: pool:PATH"):
        pool_folder("pool:")


def test_a_setup_without_a_side_for_an_opponent_refuses_opponents() -> None:
    plain = TaskSetup([], [], lambda: None, None, "")  # type: ignore[arg-type,return-value]
    check_opponents(None, plain)
    with pytest.raises(InputError, match=r"--opponents 'random' would not be used"):
        check_opponents("random", plain)


def test_the_setup_of_each_kind_of_opponent() -> None:
    alone = self_play(config(None), None)
    assert (alone.trained_agents, alone.tasks, alone.players) == (2, [{}], {})
    assert set(alone.environment().reset({}, 0)) == {"first"}
    for opponents, players in (("optimal", ["opponent"]), ("pool:x", [])):
        setup = self_play(config(opponents), None)
        assert (setup.trained_agents, [task["side"] for task in setup.tasks]) == (1, ["first", "second"])
        assert list(setup.players) == players
        assert set(setup.environment().reset(setup.tasks[1], 0)) == {"opponent"}
    for any_setup in (alone, setup):
        evaluated = any_setup.for_evaluation
        assert list(evaluated.players) == ["opponent"]
        assert [task["side"] for task in any_setup.eval_tasks[:2]] == ["first", "second"]
        assert set(evaluated.environment().reset(any_setup.eval_tasks[0], 0)) == {"policy"}
    assert has_pool("pool:x")
    assert not has_pool("random")


def test_what_no_game_can_use_is_refused() -> None:
    with pytest.raises(InputError, match="needed: games:NAME"):
        self_play(config(None, environment="a.jsonl"), None)
    with pytest.raises(InputError, match="has no scripted player 'strong'"):
        self_play(config("strong"), None)
    with pytest.raises(InputError, match="needed: 2 games or more"):
        self_play(config(None, eval_size=0.5), None)


def test_an_opponent_plays_over_tokens_or_actions_as_the_policy_does(small_models: dict[str, Path]) -> None:
    assert isinstance(load_member(small_models["llama"], config("pool:x").rollout), LocalGenerator)
    over_actions = load_member(
        small_models["llama"], config("pool:x", policy_over="actions", action_scores="token").rollout
    )
    assert isinstance(over_actions, ActionPolicy)
    assert over_actions.scores == "token"
    with pytest.raises(InputError, match=r"the pool has no .*gone"):
        load_member(Path("gone"), config("pool:x").rollout)

"""PPO on a role of a dialogue game, with scripts in the others."""

from dataclasses import replace
from pathlib import Path

import pytest
from launching import read_metrics
from ppo_in_process import train_small

from lmgym.apps.games.dialogue.syllables import with_small_policy
from lmgym.apps.games.experiments.taboo import CONFIG
from lmgym.errors import InputError
from ppo.config import RewardConfig, RolloutConfig
from ppo.named_environments import environment_episodes


def prepared(environment: str, eval_size: float = 8):
    rollout = replace(CONFIG.rollout, environment=environment, eval_size=eval_size)
    return environment_episodes(replace(CONFIG, rollout=rollout, reward=RewardConfig()), None)


def test_a_small_policy_plays_and_is_rewarded(talkative_models: dict[str, Path], tmp_path: Path) -> None:
    folder = train_small(
        talkative_models["gpt2"], Path(RolloutConfig().prompts), tmp_path, environment_episodes, max_updates=4,
        environment="dialogue:taboo/guesser", num_rollouts=8, eval_updates=4,
    )  # fmt: skip
    metrics = read_metrics(folder)
    assert set(metrics["episode/aborted_by_describer"].values()) == {0.0}
    aborted, reward = metrics["episode/aborted"], metrics["reward/mean"]
    assert [*aborted.values()]
    # this policy knows no form: each game is aborted by it
    assert set(aborted.values()) == set(metrics["episode/aborted_by_guesser"].values()) == {1.0}
    assert set(reward.values()) == {-1.0}
    assert metrics["eval/episode/aborted"]


def test_the_setup_has_held_out_instances_and_a_script_for_the_other_role() -> None:
    setup = prepared("dialogue:taboo/describer", 7)
    assert list(setup.players) == ["guesser"]
    assert len(setup.eval_tasks) == 7
    names = [task["experiment"]["name"] for task in setup.eval_tasks]
    assert names == (names[:2] * 4)[:7], "of the experiments in turn"
    assert len(set(names)) == 2
    assert prepared("dialogue:word_guess").players == {}
    assert list(prepared("dialogue:word_guess_critic/critic").players) == ["guesser"]


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ("dialogue:taboo/guesse", "taboo has no role 'guesse'; needed: dialogue:taboo/describer or /guesser"),
        ("dialogue:tabu/guesser", "there is no dialogue game 'tabu'"),
        ("dialogue:taboo/guesser?instances=4500", "different instances of the split validation; needed: 4500"),
    ],
)
def test_mistakes_are_refused(environment: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        prepared(environment)


def test_a_small_policy_is_made_for_each_game_unless_another_model_is_given(monkeypatch, tmp_path: Path) -> None:
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "lmgym.apps.games.dialogue.syllables.make_start", lambda game, folder: made.append((game, folder)) or folder
    )
    games = ("taboo_syllables", "word_guess_clue_syllables")
    for game in games:
        rollout = replace(CONFIG.rollout, environment=f"dialogue:{game}/guesser?instances=4")
        config = replace(CONFIG, policy=replace(CONFIG.policy, model=str(tmp_path)), rollout=rollout)
        assert with_small_policy(config, str(tmp_path)).policy.model == f"{tmp_path}/{game}"
        assert with_small_policy(config, "elsewhere") is config
    assert made == [(game, f"{tmp_path}/{game}") for game in games]
    taboo = replace(CONFIG, policy=replace(CONFIG.policy, model=str(tmp_path)))
    monkeypatch.undo()
    with pytest.raises(InputError, match="no small policy plays 'taboo'"):
        with_small_policy(taboo, str(tmp_path))

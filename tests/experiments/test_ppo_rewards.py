"""Rewards of `--reward` through whole runs: what is optimised, logged and kept."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from launching import read_lines, read_metrics
from ppo_in_process import train_small

from lmgym.errors import InputError, RunStopped
from ppo.task_setups import chat_with_scorers

Go = Callable[..., Path]
FILE = """
async def letters(completions, word, **columns):
    assert all(isinstance(text, str) for text in completions)
    return [100.0 * len(text) + len(w) - 1 for text, w in zip(completions, word)]
def constant(solution_str):
    return {"score": 7.0}
def none(completions, **columns):
    return [None] * len(completions)
"""
GRPO = {"method": "grpo", "num_generations": 4, "init_kl_coef": 0.0, "ppo_epochs": 1, "max_updates": 4}


@pytest.fixture
def go(talkative_models: dict[str, Path], tmp_path: Path) -> Go:
    """Trains on prompts with a column."""
    rows = [{"prompt": f"hello {i}", "word": "x"} for i in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "f.py").write_text(FILE)
    given = talkative_models["gpt2"], tmp_path / "rows.jsonl", tmp_path
    return partial(train_small, *given, chat_with_scorers, **GRPO)


def test_a_reward_of_a_file_is_optimised_as_its_author_wrote_it_and_logged_raw(go: Go, tmp_path: Path) -> None:
    folder = go(reward=f"{tmp_path}/f.py:letters,{tmp_path}/f.py:constant", weights="constant=0.5", eval_updates=2)
    found = read_metrics(folder)
    for row in read_lines(folder / "samples/evaluation-000000.jsonl"):
        assert row["scores"] == {"letters": 100.0 * len(row["reply"]), "constant": 7.0}
        assert row["reward"] == 100.0 * len(row["reply"]) + 3.5
    assert found["scores/constant"][2] == 7
    assert found["reward/mean"][2] == pytest.approx(found["scores/letters"][2] + 3.5)
    assert found["reward/total"][2] == pytest.approx(found["reward/mean"][2]), "nothing is clipped"


@pytest.mark.parametrize("normalize", ["none", "group"])
def test_weights_change_evenly_over_a_run_and_evaluations_have_the_last_ones(
    normalize: str, go: Go, tmp_path: Path, capsys
) -> None:
    rewards = f"{tmp_path}/f.py:letters,{tmp_path}/f.py:constant"
    folder = go(reward=rewards, weights="constant=0:3", normalize=normalize, max_updates=6, eval_updates=2)
    assert "weights change evenly over the run: constant from 0 to 3" in capsys.readouterr().out
    found = read_metrics(folder)
    assert list(found["reward/weight/constant"].values()) == [0.0, 1.5, 3.0]
    for update, weight in found["reward/weight/constant"].items():
        assert found["reward/mean"][update] == pytest.approx(found["scores/letters"][update] + 7 * weight)
        assert found["eval/reward/mean"][update] == pytest.approx(found["eval/scores/letters"][update] + 21)


def test_by_group_a_constant_reward_changes_nothing_and_logs_and_monitors_are_raw(go: Go, tmp_path: Path) -> None:
    letters = f"{tmp_path}/f.py:letters"
    given = {"normalize": "group", "monitor_scorers": f"watched={letters}"}
    alone = go(name="alone", reward=letters, **given)
    folder = go(name="both", reward=f"{letters},{tmp_path}/f.py:constant", weights="letters=1,constant=100", **given)
    found, wanted = read_metrics(folder), read_metrics(alone)
    assert found["loss/policy"] == wanted["loss/policy"], "to the last bit"
    assert found["rollout/reply_tokens"] == wanted["rollout/reply_tokens"]
    for number in (2, 4):
        assert found["reward/mean"][number] == pytest.approx(wanted["reward/mean"][number] + 700)
        assert found["reward/total"][number] == pytest.approx(found["reward/mean"][number])
    assert found["eval/monitor/watched"] == wanted["eval/reward/mean"]
    advantages = [row["advantage"] for row in read_lines(folder / "samples/rollouts-000002.jsonl")]
    assert max(map(abs, advantages)) > 0.1


def test_a_run_in_which_no_function_rewards_a_reply_ends_with_that_reason(go: Go, tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="no function rewards this reply: each gave None"):
        go(reward=f"{tmp_path}/f.py:none")


def test_a_function_that_needs_more_than_there_is_ends_the_run_before_step_1(go: Go, tmp_path: Path) -> None:
    (tmp_path / "g.py").write_text("def f(completions, trainer_state):\n    return [0.0]\n")
    with pytest.raises(InputError, match=r"g.py:f requires trainer_state, .*and the columns word"):
        go(reward=f"{tmp_path}/g.py")

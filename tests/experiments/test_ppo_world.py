"""PPO's experiments in the simulated world, launched as users launch them, at a tiny size."""

from pathlib import Path

import pytest
from launching import ROOT, flags, launch, read_lines, read_metrics, run

from lmgym.apps.world.making import make_world, make_world_policy
from lmgym.runs.launching import experiments

TINY = flags(
    num_rollouts=8, global_batch=4, micro_batch=16, ppo_epochs=1, max_updates=4, max_new_tokens=6,
    tracking="none", precision="fp32",
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A world's files, and an untrained policy in `policy`."""
    folder = tmp_path_factory.mktemp("world")
    make_world(str(folder), 1000, 0)
    make_world_policy(str(folder), str(folder / "policy"), layers=1, width=16)
    return folder


def launched(name: str, world: Path, output: Path, *arguments: object, kind: str = "fork") -> dict:
    words = launch(
        kind, "--model", world / "policy", "--output", output, *TINY, *arguments, script=experiments("ppo")[name]
    )
    done = run(words)
    assert done.returncode == 0, done.stderr
    assert (output / "model/config.json").is_file()
    return read_metrics(output)


def test_many_turns_with_the_apps_users_on_two_ranks(world: Path, tmp_path: Path) -> None:
    arguments = ("--environment", "world:0", "--eval_size", 4, "--deepspeed", ROOT / "configs/zero2.json")
    metrics = launched("world_conversation", world, tmp_path / "a", *arguments, kind="forks")
    assert set(metrics["eval/reward/mean"]) == {0, 2, 4}
    # what is earned is the conversation's length, less the message that opened it
    for step, reward in metrics["eval/reward/mean"].items():
        assert reward == pytest.approx(metrics["eval/episode/length"][step] - 1)
    rows = read_lines(tmp_path / "a/samples/evaluation-000000.jsonl")
    assert max(row["turn"] for row in rows) > 0
    assert {row["reward"] for row in rows} <= {0.0, 1.0}


def test_engagement_watches_a_worlds_hidden_utility_and_another_scorer(world: Path, tmp_path: Path) -> None:
    scorers = ("--scorers", "joint=world:0", "--eval_scorer", "world:0", "--monitor_scorers", "other=world:0")
    # of an untrained policy's few replies all may be worth the same
    prompts = ("--prompts", world / "logs.parquet", "--eval_size", 64)
    metrics = launched("world_engagement", world, tmp_path / "a", *scorers, *prompts)
    assert set(metrics["eval/eval_scorer"]) == {0, 2, 4}
    assert metrics["eval/eval_scorer"] == metrics["eval/monitor/other"] == metrics["eval/scores/joint"]
    gain = (metrics["eval/eval_scorer"][4] - metrics["eval/eval_scorer"][0]) / metrics["eval/eval_scorer_std"][0]
    assert metrics["eval/eval_scorer_gain"][4] == pytest.approx(gain)
    assert metrics["eval/eval_scorer_gain"].keys() == {2, 4}
    # the reward is the watched scorer itself: they differ on ties alone, which count a half
    for name in ("eval_scorer", "other"):
        assert metrics[f"eval/agreement/{name}"].keys() == {0, 2, 4}
        assert 0.75 < metrics[f"eval/agreement/{name}"][4] <= 1


def test_words_are_a_reward_and_any_chat_is_a_prompt(world: Path, tmp_path: Path) -> None:
    metrics = launched("sentiment_words", world, tmp_path / "a", "--prompts", world / "sft.parquet")
    assert metrics["kl/coefficient"][4] > 0
    rows = read_lines(tmp_path / "a/samples/evaluation-000000.jsonl")
    assert all(isinstance(row["reward"], float) and row["reward"] == round(row["reward"]) for row in rows)


def test_any_policy_scorer_and_prompts_by_path(world: Path, scorer_folders: dict[str, Path], tmp_path: Path) -> None:
    settings = ("--prompts", world / "pairs.parquet", "--scorers", f"a={scorer_folders['gpt2']},b=world:0")
    metrics = launched("hh_harmless", world, tmp_path / "a", *settings, "--weights", "b=.5", "--num_layers_unfrozen", 1)
    assert {"eval/scores/a", "eval/scores/b"} <= metrics.keys()

"""App, logs, scorer, better policy, app: with the commands that a user types, and no file edited in between."""

import json
from pathlib import Path

import pytest
from launching import BIN, ROOT, flags, run

EXPERIMENT = ROOT / "reward_models/experiments/convo_joint.py"


@pytest.mark.slow
def test_what_users_did_with_a_policy_trains_a_scorer_that_makes_it_better_for_other_users(tmp_path: Path) -> None:
    app, start, scorer = tmp_path / "app", tmp_path / "start", tmp_path / "scorer"

    def command(*words: object) -> str:
        done = run(words, seconds=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    command(BIN / "lmgym", "deploy", "bots", *flags(users=1000, days=12, output=app))
    command(BIN / "lmgym", "world-model", *flags(world=app, output=start, steps=500))
    settings = flags(
        model=start, output=scorer, eval_size=500, max_length=128, global_batch=64, micro_batch=32, learning_rate=3e-3,
        weight_decay=0.3, adam_beta2=0.99, epochs=2, precision="fp32", tracking="none",
    )  # fmt: skip
    words = [BIN / "python", EXPERIMENT, "--freeze_embeddings", *settings]

    def train(logs: Path, *more: str) -> str:
        return command(*words, "--dataset", logs / "logs.parquet", "--probe_data", logs, *more)

    assert "rows" in train(app, "--dry_run")
    train(app)
    metrics = json.loads((scorer / "evaluation.json").read_text())["metrics"]
    assert metrics["gold/gold_spearman"] > 0.35
    better = f"bots@{scorer}/model:8"
    out = tmp_path / "ab"
    words_of_test = flags(users=120, days=8, seed=1, output=out)
    command(BIN / "lmgym", "ab", "bots", better, *words_of_test, "--paired", "--logs")
    [comparison] = json.loads((out / "ab.json").read_text())["comparisons"]
    length = comparison["figures"]["conversation length"]
    assert length["relative"] > 0.2
    assert length["p_value"] < 0.001
    # and round again: what users did with the better policy is there to learn from
    assert "rows" in train(out / "logs/2", "--dry_run")

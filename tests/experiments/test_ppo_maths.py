"""The experiment of verifiable rewards: its data, each reward's own metric, and rows whose answer cannot be read."""

import json
from pathlib import Path

import pytest
from launching import ROOT, flags, launch, read_lines, read_metrics, run, words
from ppo_in_process import train_small

from lmgym.errors import InputError
from lmgym.scoring.maths import REWARDS, answer_faults
from ppo.task_setups import text_with_function


def test_the_experiment_makes_its_data_and_logs_each_reward(talkative_models: dict[str, Path], tmp_path: Path) -> None:
    settings = {
        "model": talkative_models["gpt2"], "num_rollouts": 16, "global_batch": 8, "max_updates": 1, "eval_size": 6,
        "max_new_tokens": 4, "output": "run", "tracking": "none", "ppo_epochs": 1, "weights": "correct=1,length=.5",
    }  # fmt: skip
    done = run(launch("fork", *flags(**settings), script=ROOT / "ppo/experiments/maths.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "one_digit.jsonl: 300 problems with their answers" in words(done.stdout)
    assert len(read_lines(tmp_path / "outputs/arithmetic/one_digit.jsonl")) == 300
    metrics = read_metrics(tmp_path / "run")
    for prefix in ("", "eval/"):
        [correct], [length] = (list(metrics[f"{prefix}scores/{name}"].values())[-1:] for name in ("correct", "length"))
        format_ = list(metrics[f"{prefix}scores/format"].values())[-1]  # 1 by default
        reward = list(metrics[f"{prefix}reward/mean"].values())[-1]
        assert reward == pytest.approx(correct + format_ + length / 2)
        assert 0.9 < length < 1


def test_rows_whose_answer_cannot_be_read_are_counted_and_not_played(
    talkative_models: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"prompt": f"What is {i} + 1?", "answer": i + 1} for i in range(20)]
    rows += [{"prompt": "What is one?", "answer": "one"}, {"prompt": "What?"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare = text_with_function(REWARDS, as_text=False, row_check=answer_faults)
    folder = train_small(talkative_models["gpt2"], file, tmp_path, prepare)
    data = json.loads((folder / "run.json").read_text())["data"]
    assert (data["train_tasks"], data["eval_tasks"], data["rejected_rows"]) == (14, 6, 2)
    assert data["rejected_by_reason"] == {"unreadable (field answer)": 1, "without a value (field answer)": 1}
    assert set(read_metrics(folder)["rollout/failed_rewards"].values()) == {0.0}
    [line] = [row for row in read_lines(folder / "rejected.jsonl") if row["line"] == 21]
    assert line["found"].startswith("'one' cannot be read by math-verify; needed: ")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[20:]))
    with pytest.raises(
        InputError, match=r"holds no prompts that can be used; rows rejected: 2 \(line 1: answer: 'one'"
    ):
        train_small(talkative_models["gpt2"], file, tmp_path, prepare, "none")

"""The files of docs/real_model.md are valid; its commands are tested with those of the other pages."""

from pathlib import Path

import pytest
from printed_blocks import written_file

from lmgym.apps.chat.loading import load_experiment
from lmgym.cli.get import MODELS

FILES = {name: written_file("docs/real_model.md", f"outputs/{name}.py") for name in ("talk", "speak_to_you")}


def test_the_chat_experiment_has_a_scorer_that_prefers_short_replies(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(FILES["talk"])
    judges = load_experiment(str(tmp_path / "talk.py")).judges()
    assert judges["short"].score([None, None], ["long reply", "short"]).tolist() == [-10.0, -5.0]


def test_the_training_experiment_rewards_words_that_address_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, launched = [], []
    monkeypatch.setattr("ppo.task_setups.text_with_function", lambda function, as_text: prepared.append(function))
    monkeypatch.setattr("lmgym.runs.launch.launch", launched.append)
    monkeypatch.setattr("sys.argv", ["speak_to_you.py", "--prompts", "pairs.jsonl"])
    space: dict = {}
    exec(compile(FILES["speak_to_you"], "speak_to_you.py", "exec"), space)
    assert space["config"].rollout.prompts == "pairs.jsonl"
    assert space["config"].policy.model == f"outputs/models/{MODELS[0].name}"
    replies = ["You. your, you you YOU", "I say your name", "nothing"]
    assert space["reward"]([], [], replies, None) == [1.0, 0.25, 0.0]
    assert len(launched) == 1

"""The audit at the end of `lmgym train reward`: the command around the training, its exit code, and the model card."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from lmgym.apps.audit import trained
from lmgym.apps.audit.trained import audit_trained, train_and_audit
from lmgym.runs.run import FINISHED


@pytest.fixture
def finished_run(scorer_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A run's folder with a scorer and a card."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copytree(scorer_folders["llama"], folder / "model")
    (folder / "run.json").write_text(json.dumps({"config": {"dataset": "nowhere.jsonl"}, "seconds": 1.0}))
    return folder


def test_a_training_command_that_fails_gives_its_exit_code_and_no_audit(capfd) -> None:
    assert train_and_audit([sys.executable, "-c", "raise SystemExit(3)"], "short") == 3
    assert "audit" not in "".join(capfd.readouterr())


def test_a_command_that_finishes_no_run_is_not_audited(capfd) -> None:
    assert train_and_audit([sys.executable, "-c", ""], "short") == 0
    assert "audit" not in "".join(capfd.readouterr())


def test_the_audit_stands_in_the_card_once_and_in_a_folder_of_its_own(finished_run: Path, capfd) -> None:
    card = finished_run / "model/README.md"
    card.unlink(missing_ok=True)
    card.write_text("# A scorer\n\n## Measured on held-out data\n\nfigures\n")
    for _ in range(2):
        audit_trained(finished_run, "short")
    text = card.read_text()
    assert text.startswith("# A scorer\n\n## Measured on held-out data\n\nfigures\n\n## Biases\n")
    assert text.count("## Biases") == 1
    assert "| no answer |" in text
    assert json.loads((finished_run / "audit/audit.json").read_text())["prompts"] >= 4
    assert (finished_run / "audit/audit.html").is_file()
    assert "audit of the scorer: " in capfd.readouterr().out


def test_a_short_audit_begins_no_batch_that_its_time_does_not_allow(finished_run: Path, monkeypatch) -> None:
    monkeypatch.setattr(trained, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(trained, "SHARE", 0.0)
    audit_trained(finished_run, "short")
    assert json.loads((finished_run / "audit/audit.json").read_text())["prompts"] == 4, "the first batch alone"


def test_a_scorer_that_cannot_be_audited_is_a_warning_and_the_run_is_good(tmp_path: Path, capfd) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    code = f"import os; open(os.environ[{FINISHED!r}], 'w').write({str(folder)!r})"
    assert train_and_audit([sys.executable, "-c", code], "short") == 0
    assert f"warning: the audit of {folder}/model failed (" in capfd.readouterr().err

"""Code of users that changes the process, or never returns: the run ends well, or stops with words in time."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import ENGINES, ROOT, digest, outcome
from launching import flags, launch, run, words

SCRIPT = ROOT / "tests/experiments/ppo_script.py"
TRAIN = {"max_updates": 8, "save_updates": 4, "eval_updates": 8, "tracking": "none", "stall_timeout": 5}
CODES = {"ddp": 1}  # torchrun turns every code into 1


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def asked(talkative_models: dict[str, Path], chats_file: Path) -> Callable[..., list]:
    """The command of a user: `asked(engine, output, **changes)`."""

    def make(engine: str, output: object, **changes) -> list:
        values = {"model": talkative_models["gpt2"], "prompts": chats_file, "output": output, **TRAIN, **changes}
        kind, config = ENGINES[engine]
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        return launch(kind, *flags(**values), script=SCRIPT)

    return make


@pytest.fixture(scope="module")
def undisturbed(asked, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    done = run(asked("plain", folder, stall_timeout=0))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("fault", ["folder", "dtype", "close"])
def test_what_a_reward_function_changes_in_the_process_changes_nothing_of_the_run(
    fault: str, asked, undisturbed: Path, talkative_models, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(talkative_models["gpt2"], tmp_path / "model")
    command = asked("plain", "run", model="model", stall_timeout=0)  # relative paths, as they are typed
    done = run(command, tmp_path, LMGYM_TEST_FAULT=fault, LMGYM_TEST_FOLDER=str(elsewhere))
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / "run") == ("finished", 0)
    assert list(elsewhere.iterdir()) == []
    assert digest(tmp_path / "run") == digest(undisturbed)
    said = words(done.stdout)
    assert "results in run" in said, "printed as it was typed, to the last line"
    assert str(tmp_path) not in said
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["config"]["output"] == str(tmp_path / "run")
    assert record["config"]["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(("engine", "rank"), [("plain", 0), slow("ddp", 1), slow("zero2", 0), slow("ddp", 0)])
def test_a_reward_function_that_holds_the_interpreter_ends_the_run_with_words(
    engine: str, rank: int, asked, tmp_path: Path
) -> None:
    folder, timeout = tmp_path / "run", 4 if engine == "plain" else 6
    planted = {"LMGYM_TEST_FAULT": "regex", "LMGYM_TEST_AT": "1", "LMGYM_TEST_RANK": str(rank)}
    done = run(asked(engine, folder, stall_timeout=timeout), seconds=120, **planted)
    assert done.returncode == CODES.get(engine, 70), done.stderr[-3000:]
    assert outcome(folder) == ("stalled", 70)
    said = words(done.stderr)
    assert re.search(rf"error: no progress for \d+ s \(--stall_timeout {timeout}\)\. rank 0: ", said)
    assert f"rank {1 - rank}: silent" not in said
    reported = said[said.index(f"rank {rank}: ") :].partition("; rank ")[0]
    assert re.match(rf"rank {rank}: score; no progress for \d+ s; now in ", reported)
    assert "match (re/__init__.py:" in reported
    assert "called from __call__ (ppo_script.py:" in reported
    assert json.loads((folder / "run.json").read_text())["error"].startswith("RunStopped: no progress for ")
    assert "in __call__" in (folder / "stalls" / f"rank-{rank}.txt").read_text()


@pytest.mark.parametrize(("engine", "fault"), [("plain", "remove"), ("plain", "move"), slow("zero2", "remove")])
def test_a_run_whose_folder_is_gone_stops_with_words(engine: str, fault: str, asked, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    planted = {"LMGYM_TEST_FAULT": fault, "LMGYM_TEST_AT": "1", "LMGYM_TEST_RANK": "0"}
    done = run(asked(engine, folder), LMGYM_TEST_FOLDER=str(folder), **planted)
    assert done.returncode == 74, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert f"{folder} was deleted, moved or replaced while the run wrote to it; " in said[0]
    assert "Traceback" not in done.stderr
    assert not folder.exists(), "nothing is written where it was"
    if fault == "move":
        assert outcome(tmp_path / "run.moved")[0] == "running"

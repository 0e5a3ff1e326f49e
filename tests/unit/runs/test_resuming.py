"""The start of a run: what it resumes, what it refuses and why, and which files of the former run it keeps."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmgym.errors import InputError, RunStopped
from lmgym.runs.checkpoint_files import Checkpoint, read
from lmgym.runs.checkpoints import Checkpoints
from lmgym.runs.locks import FolderLock, is_free
from lmgym.runs.record import versions
from lmgym.runs.resuming import Start, describe, find_start
from lmgym.runs.run import Run

FACTS: dict[str, Any] = {
    "engine": "ZeRO 2",
    "ranks": 2,
    "accumulation": 4,
    "data": "0123456789abcdef",
    "settings": {"learning_rate": 0.001, "global_batch": 16, "micro_batch": 2, "warmup": None},
    "versions": {"python": "3.11.7", "torch": "2.6.0"},
}


def with_changes(**changes: Any) -> dict[str, Any]:
    return {**FACTS, **changes}


def with_settings(**changes: Any) -> dict[str, Any]:
    return with_changes(settings={**FACTS["settings"], **changes})


def former_run(folder: Path, *steps: int, outcome: str = "killed", **settings: Any) -> str:
    """A folder with a run that has a checkpoint at each of the steps, and its id; `settings` are not those of FACTS."""
    run = begin(folder, Start("former"), FACTS["settings"] | settings)
    for step in (1, *steps):
        run.log(step, {"loss": 1 / step})
    for step in steps:
        save(folder, step, "former")
    if outcome == "killed":
        release(run)
    else:
        run.finish(outcome)
    return "former"


def begin(folder: Path, start: Start | None, settings: dict[str, Any] | None = None) -> Run:
    return Run.start(folder, FACTS["settings"] if settings is None else settings, seed=0, tracking="none", start=start)


def release(run: Run) -> None:
    """Releases the lock, as the operating system does when a process is killed."""
    assert run._lock
    run._lock.release()


def save(folder: Path, step: int, owner: str) -> Path:
    found = Checkpoints(folder / "checkpoints", owner, limit=9)
    return found.save(step, lambda path: (path / "weights").write_text(f"after {step}"), FACTS)


def found_start(folder: Path, *facts: Any, **options: Any) -> Start:
    """A start whose lock is free again."""
    start = find_start(folder, *(facts or [FACTS]), **options)
    assert start.lock
    start.lock.release()
    return start


def metrics(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def record(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_a_new_folder_begins_a_new_run_and_is_held(tmp_path: Path) -> None:
    start = find_start(tmp_path / "new", FACTS)
    assert (start.checkpoint, start.resumed_at, start.notes) == (None, None, ())
    assert re.fullmatch("[0-9a-f]{32}", start.run_id)
    assert not is_free(tmp_path / "new")
    assert start.lock
    start.lock.release()
    assert found_start(tmp_path / "new").run_id != start.run_id


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(RunStopped) as caught:
        find_start(tmp_path, FACTS)
    assert caught.value.exit_code == 73
    lock.release()


def all_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_finished_run_stays_as_it_is_and_the_next_ones_get_numbers(tmp_path: Path) -> None:
    former_run(tmp_path, 10, outcome="finished")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("good")
    kept = all_files(tmp_path)
    for number in (2, 3, 4):
        start = found_start(tmp_path, with_changes(engine="without DeepSpeed"), is_default=True)
        assert (start.resumed_at, start.folder) == (None, tmp_path / str(number))
        assert start.run_id != "former"
        runs = "1 run" if number == 2 else f"{number - 1} runs"
        assert start.notes[0].startswith(f"{tmp_path} holds {runs} already")
        run = begin(start.folder, start)
        run.finish()
        assert run.notes == []
    assert {path: all_files(tmp_path)[path] for path in kept} == kept


def test_a_folder_that_the_user_named_is_refused_if_it_holds_a_finished_run(tmp_path: Path) -> None:
    former_run(tmp_path, 10, outcome="finished")
    with pytest.raises(InputError, match="holds a finished run, which is never replaced; needed: another --output"):
        find_start(tmp_path, FACTS)
    assert is_free(tmp_path)
    start = found_start(tmp_path, resume="never")  # the way out that it names
    assert start.folder == tmp_path / "2"
    former_run(tmp_path / "2", 10)
    assert found_start(tmp_path).folder == tmp_path / "2", "an unfinished run of the same command"


def test_the_same_command_resumes_its_unfinished_run_among_others(tmp_path: Path) -> None:
    former_run(tmp_path, 10, outcome="finished")
    former_run(tmp_path / "2", 20)
    former_run(tmp_path / "10", 30, outcome="finished", learning_rate=0.002)
    start = found_start(tmp_path, is_default=True)
    assert (start.folder, start.resumed_at) == (tmp_path / "2", 20)
    start = found_start(tmp_path, with_settings(learning_rate=0.002), is_default=True)
    assert (start.folder, start.resumed_at) == (tmp_path / "11", None)
    assert found_start(tmp_path, resume="never", is_default=True).folder == tmp_path / "12"


def test_another_command_leaves_an_unfinished_run_to_its_own(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    start = found_start(tmp_path, with_settings(learning_rate=0.002), is_default=True)
    assert (start.folder, start.resumed_at) == (tmp_path / "2", None)
    assert "unfinished and with other settings (learning_rate was 0.001, now 0.002)" in start.notes[0]
    assert found_start(tmp_path, is_default=True).resumed_at == 10


@pytest.mark.parametrize("change", [{"engine": "ZeRO 3"}, {"ranks": 4}, {"data": "fedcba9876543210"}])
def test_the_same_command_under_another_launch_or_on_other_data_gets_no_number(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    former_run(tmp_path, 10)
    with pytest.raises(InputError, match="--resume never"):
        find_start(tmp_path, with_changes(**change), is_default=True)


def test_a_batch_that_follows_from_the_ranks_makes_no_other_command(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    facts = with_settings(global_batch=32, micro_batch=8) | {"ranks": 4}
    with pytest.raises(InputError, match=r"written by 2 rank\(s\), this run has 4"):
        find_start(tmp_path, facts, is_default=True)
    with pytest.raises(InputError, match="global_batch was 16, now 32"):
        find_start(tmp_path, facts, reshard=True, is_default=True)


def test_a_setting_of_another_version_makes_no_other_command(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    with pytest.raises(InputError, match=r"other settings: beta was None, now 0\.1"):
        find_start(tmp_path, with_settings(beta=0.1), is_default=True)


def test_a_run_without_a_checkpoint_makes_room_for_the_next(tmp_path: Path) -> None:
    former_run(tmp_path, outcome="failed")
    start = found_start(tmp_path, with_settings(learning_rate=0.002), is_default=True)
    assert (start.folder, start.resumed_at, start.notes) == (tmp_path, None, ())


def test_a_run_in_progress_of_another_command_is_passed_by_and_the_same_one_refused(tmp_path: Path) -> None:
    run = begin(tmp_path, find_start(tmp_path, FACTS))
    assert found_start(tmp_path, with_settings(learning_rate=0.002), is_default=True).folder == tmp_path / "2"
    with pytest.raises(RunStopped) as caught:
        find_start(tmp_path, FACTS, is_default=True)
    assert caught.value.exit_code == 73
    run.finish()


def test_folders_without_a_run_are_no_runs(tmp_path: Path) -> None:
    for name in ("2", "7", "images"):
        (tmp_path / name).mkdir()
    assert found_start(tmp_path, is_default=True).folder == tmp_path
    former_run(tmp_path, 10)
    assert found_start(tmp_path, is_default=True).resumed_at == 10
    assert found_start(tmp_path, with_settings(learning_rate=0.002), is_default=True).folder == tmp_path / "8"


def test_a_folder_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("lmgym.runs.resuming.run_folders", denied)  # root may read every folder
    with pytest.raises(InputError, match=r"cannot write a run to .*Permission denied"):
        find_start(tmp_path, FACTS)


@pytest.mark.parametrize("outcome", ["killed", "interrupted", "failed", "non_finite", "stalled"])
def test_an_unfinished_run_resumes_from_its_newest_checkpoint(tmp_path: Path, outcome: str) -> None:
    former_run(tmp_path, 10, 20, outcome=outcome)
    start = found_start(tmp_path)
    assert (start.run_id, start.resumed_at) == ("former", 20)
    assert start.checkpoint
    assert start.checkpoint.path == tmp_path / "checkpoints" / "step-00000020"
    assert start.notes == (f"resuming from {start.checkpoint.path}",)


NO_RECORD = ["", "[]", "{}", '{"outcome": "killed"}', '{"id": "for', '{"id": 3}', "[" * 100_000, None]


def lose_record(folder: Path, damage: str | None) -> None:
    """Damages the record of a run, or removes it."""
    if damage is None:
        (folder / "run.json").unlink()
    else:
        (folder / "run.json").write_text(damage)


@pytest.mark.parametrize("damage", NO_RECORD)
def test_checkpoints_without_a_record_are_refused_with_the_ways_out(tmp_path: Path, damage: str | None) -> None:
    former_run(tmp_path, 10, 20)
    lose_record(tmp_path, damage)
    before = names(tmp_path)
    with pytest.raises(InputError) as caught:
        find_start(tmp_path, FACTS)
    said = str(caught.value)
    newest = tmp_path / "checkpoints" / "step-00000020"
    found = "is missing" if damage is None else "cannot be read"
    assert f"the newest {newest}, and its run.json, which names their run, {found}; to resume" in said
    assert "--resume never" in said
    assert len(said.splitlines()) == 1
    assert is_free(tmp_path)
    assert names(tmp_path) == before
    # the ways out that it names, each taken
    command = re.search("to resume from them: (.*); to start from scratch", said)
    assert command
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    shutil.copytree(tmp_path, copy)
    assert found_start(copy, resume="never").resumed_at is None
    subprocess.run(command[1], shell=True, check=True)
    assert (found_start(tmp_path).run_id, found_start(tmp_path).resumed_at) == ("former", 20)


def test_a_lost_record_is_restored_from_the_one_that_was_kept(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    release(begin(tmp_path, find_start(tmp_path, FACTS)))
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match=f"to resume from them: cp {tmp_path}/run.1.json {tmp_path}/run.json; "):
        find_start(tmp_path, FACTS)


@pytest.mark.parametrize("damage", NO_RECORD)
def test_without_a_whole_checkpoint_a_lost_record_begins_a_new_run(tmp_path: Path, damage: str | None) -> None:
    former_run(tmp_path, 10)
    (tmp_path / "checkpoints" / "step-00000010" / "weights").unlink()
    lose_record(tmp_path, damage)
    start = find_start(tmp_path, FACTS)
    assert start.resumed_at is None
    begin(tmp_path, start).finish()
    if damage is not None:
        assert (tmp_path / "run.1.json").read_text() == damage


@pytest.mark.parametrize("facts", [{}, {"engine": 3}, FACTS | {"settings": []}, FACTS | {"versions": None}])
def test_invalid_facts_are_refused_in_one_line(tmp_path: Path, facts: dict[str, Any]) -> None:
    former_run(tmp_path, 10)
    Checkpoints(tmp_path / "checkpoints", "former").save(20, lambda path: (path / "weights").touch(), facts)
    with pytest.raises(InputError) as caught:
        find_start(tmp_path, FACTS)
    assert "step-00000020" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_it_used(tmp_path: Path) -> None:
    former_run(tmp_path, 10, 20)
    (tmp_path / "checkpoints" / "step-00000020" / "weights").write_text("after 2!")
    start = found_start(tmp_path)
    assert (start.run_id, start.resumed_at) == ("former", 10)
    assert start.notes == (
        f"{tmp_path}/checkpoints/step-00000020 was skipped: weights has changed since it was written (sha256)",
        f"resuming from {tmp_path}/checkpoints/step-00000010",
    )


@pytest.mark.parametrize("is_default", [True, False])
def test_resume_never_starts_a_new_run_beside_the_unfinished_one(tmp_path: Path, is_default: bool) -> None:
    former_run(tmp_path, 10)
    start = found_start(tmp_path, resume="never", is_default=is_default)
    assert (start.resumed_at, start.folder) == (None, tmp_path / "2")
    assert start.run_id != "former"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (with_changes(engine="without DeepSpeed"), ["under ZeRO 2,", "is without DeepSpeed;", "the same launch"]),
        (with_changes(engine="ZeRO 3"), ["under ZeRO 2,", "is ZeRO 3;"]),
        (with_changes(ranks=4), ["by 2 rank(s)", "has 4;", "--num_gpus 2 ", "--nproc_per_node 2)", "--reshard"]),
        (with_changes(data="fedcba9876543210"), ["fingerprint 0123456789ab,", "now fedcba987654)", "same rows"]),
        (with_settings(learning_rate=0.002), ["learning_rate was 0.001, now 0.002;", "use the same settings"]),
        (with_settings(warmup=5), ["warmup was None, now 5;"]),
        (with_settings(micro_batch=4), ["micro_batch was 2, now 4;"]),
        (with_settings(global_batch=8, micro_batch=1), ["global_batch was 16, now 8; micro_batch was 2, now 1;"]),
        (with_settings(beta=0.1), ["beta was None, now 0.1;"]),
    ],
)
def test_another_run_is_refused_with_both_values_and_the_ways_out(
    tmp_path: Path, facts: dict[str, Any], words: list[str]
) -> None:
    former_run(tmp_path, 10)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(InputError) as caught:
        find_start(tmp_path, facts)
    said = str(caught.value)
    assert all(word in said for word in [*words, "--resume never", "another --output", str(tmp_path)]), said
    assert is_free(tmp_path)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    assert found_start(tmp_path, facts, resume="never").resumed_at is None
    assert found_start(tmp_path).resumed_at == 10


def test_resharding_allows_other_ranks_and_micro_batches_only(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    other = with_settings(micro_batch=4) | {"ranks": 1, "accumulation": 4}
    assert found_start(tmp_path, other, reshard=True).resumed_at == 10
    for change, word in (
        ({"engine": "ZeRO 3"}, "under ZeRO 2"),
        ({"data": "fedcba9876543210"}, "fingerprint"),
        ({"settings": FACTS["settings"] | {"global_batch": 8}}, "global_batch was 16, now 8"),
    ):
        with pytest.raises(InputError, match=word):
            find_start(tmp_path, other | change, reshard=True)


def test_a_run_of_a_version_with_more_settings_resumes_and_a_line_names_them(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    start = found_start(tmp_path, with_changes(settings={"learning_rate": 0.001, "micro_batch": 2}))
    assert start.resumed_at == 10
    assert start.notes[0] == (
        "the checkpoint was written with settings that this version does not have: global_batch=16, warmup=None"
    )


def test_other_versions_are_reported_and_the_run_resumes(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    start = found_start(tmp_path, with_changes(versions={"python": "3.11.7", "torch": "2.7.0", "peft": "0.17"}))
    assert start.resumed_at == 10
    assert start.notes[0] == (
        "the checkpoint was written with torch 2.6.0, now 2.7.0: results may differ in the last digits"
    )
    assert len(start.notes) == 2


def test_facts_are_as_json_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    facts = describe({"betas": (0.9, 0.99), "warmup": None}, "ZeRO 2", 4, "abc")
    assert facts == json.loads(json.dumps(facts))
    assert facts["settings"] == {"betas": [0.9, 0.99], "warmup": None}
    assert (facts["engine"], facts["ranks"], facts["accumulation"], facts["data"]) == ("ZeRO 2", 2, 4, "abc")
    assert facts["versions"] == versions()


def test_a_resumed_run_keeps_metrics_up_to_the_checkpoint_and_renames_former_files(
    tmp_path: Path,
) -> None:
    former_run(tmp_path, 10, 20, 25)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000025")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')  # a kill within a line
    written = (tmp_path / "metrics.jsonl").read_text()
    run = begin(tmp_path, find_start(tmp_path, FACTS))
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(written.splitlines(keepends=True)[:3])
    run.log(21, {"loss": 0.5})
    now, former = record(tmp_path / "run.json"), record(tmp_path / "run.1.json")
    assert (now["id"], now["outcome"], now["resumed_at"]) == ("former", "running", 20)
    assert (former["id"], former["outcome"], former["resumed_at"]) == ("former", "killed", None)
    assert metrics(tmp_path / "metrics.jsonl") == [1, 10, 20, 21]
    assert (tmp_path / "metrics.1.jsonl").read_text() == written
    assert names(tmp_path) == {"run.json", "run.1.json", "metrics.jsonl", "metrics.1.jsonl", "checkpoints"}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-00000010", "step-00000020"}
    assert not is_free(tmp_path)
    run.finish("interrupted", 75)
    assert is_free(tmp_path)
    assert found_start(tmp_path).resumed_at == 20


def test_a_resumed_run_renames_the_report_of_a_non_finite_loss(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    (tmp_path / "non_finite.json").write_text("{}")
    begin(tmp_path, find_start(tmp_path, FACTS)).finish()
    assert not (tmp_path / "non_finite.json").exists()
    assert (tmp_path / "non_finite.1.json").exists()


def test_final_figures_are_written_once_by_the_run_that_finishes(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "run/seconds": 3.0, "run/loss": 0.5}\n')  # killed between its last update and its end
    run = begin(tmp_path, find_start(tmp_path, FACTS))
    run.log(10, {"run/loss": 0.5})
    release(run)
    assert metrics(tmp_path / "metrics.jsonl") == [1, 10, 10]


def test_the_outcome_of_a_former_run_is_kept(tmp_path: Path) -> None:
    former_run(tmp_path, 10, outcome="interrupted")
    begin(tmp_path, find_start(tmp_path, FACTS)).finish()
    assert record(tmp_path / "run.1.json")["outcome"] == "interrupted"


def test_a_new_run_renames_checkpoints_that_cannot_be_resumed_too(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    run = begin(tmp_path, None)
    expected = {"run.json", "run.1.json", "metrics.jsonl", "metrics.1.jsonl", "checkpoints.1"}
    assert names(tmp_path) == expected
    assert isinstance(read(tmp_path / "checkpoints.1" / "step-00000010", "former"), Checkpoint)
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert metrics(tmp_path / "metrics.1.jsonl") == [1, 10]
    assert (record(tmp_path / "run.1.json")["outcome"], record(tmp_path / "run.json")["resumed_at"]) == ("killed", None)
    release(run)
    begin(tmp_path, None).finish()
    assert names(tmp_path) == expected | {"run.2.json", "metrics.2.jsonl", "report.html"}


@pytest.mark.parametrize("words", ["{}/model", "joint={}/model,gold=elsewhere", "{}/checkpoints/step-00000010"])
def test_a_new_run_cannot_read_the_files_that_it_renames(words: str, tmp_path: Path) -> None:
    former_run(tmp_path, outcome="failed")
    for name in ("model", "checkpoints/step-00000010"):
        (tmp_path / name).mkdir(parents=True)
    facts = with_settings(model=words.format(tmp_path))
    with pytest.raises(InputError, match=r"is a result in .* needed: another --output"):
        find_start(tmp_path, facts)
    assert is_free(tmp_path)
    assert not (tmp_path / "run.1.json").exists()
    assert found_start(tmp_path / "other", facts).resumed_at is None


def test_a_run_can_be_resumed_many_times(tmp_path: Path) -> None:
    former_run(tmp_path, 10)
    for times in (1, 2, 3):
        release(run := begin(tmp_path, find_start(tmp_path, FACTS)))
        assert run.folder == tmp_path
        assert metrics(tmp_path / "metrics.jsonl") == [1, 10]
        assert (tmp_path / f"run.{times}.json").exists()
        assert record(tmp_path / "run.json")["id"] == "former"


def test_a_kill_while_a_run_resumes_loses_nothing(tmp_path: Path) -> None:
    """Killed at each step of the start, the run resumes from the same checkpoint with the same metrics."""
    before, folder = tmp_path / "before", tmp_path / "run"
    former_run(before, 10)
    for fatal in range(1, 100):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        if begun_in_a_child(folder, fatal):
            break
        start = find_start(folder, FACTS)
        assert (start.run_id, start.resumed_at) == ("former", 10), fatal
        begin(folder, start).finish()
        assert metrics(folder / "metrics.jsonl") == [1, 10], fatal
    print(f"{fatal - 1} kill points")
    assert 8 <= fatal - 1 < 99


def begun_in_a_child(folder: Path, fatal: int) -> bool:
    """Goes on with the run in a forked process that dies before the nth open, rename or removal; whether it did not."""
    child = os.fork()
    if child == 0:
        left = [fatal]

        def audit(event: str, arguments: tuple) -> None:
            if event in ("os.rename", "os.remove") or (event == "open" and str(folder) in str(arguments[0])):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            start = find_start(folder, FACTS)
            sys.addaudithook(audit)
            begin(folder, start)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == 0

"""The steps of a plan: which run, which stay, which fail, and what a folder of another kind says."""

import sys
from pathlib import Path

import pytest

from lmgym.apps.lab.record import RECORD, Lab, is_done, open_lab
from lmgym.apps.lab.running import log_of, run_steps
from lmgym.apps.lab.steps import LabStep
from lmgym.errors import InputError
from lmgym.runs.files import read_json, write_json


def python(name: str, code: str, needs: tuple[str, ...] = (), done: str = "") -> LabStep:
    done = done or f"{name}.txt"
    words = (sys.executable, "-c", f"import pathlib, sys, time\nout = pathlib.Path({done!r})\n{code}")
    return LabStep(name, words, done, needs)


WRITE = "out.write_text('x')"


def test_a_step_that_fails_is_named_the_others_go_on_and_those_that_need_it_are_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        python("a", WRITE),
        python("b", "print('no memory'); sys.exit(3)"),
        python("c", WRITE, ("b",)),
        python("d", WRITE, ("a",)),
        python("e", "pass"),  # says that it succeeded and made nothing
    ]
    failed = run_steps(Lab(tmp_path, "mine"), steps, 2)
    assert {step.name for step in failed} == {"b", "e"}
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["a.txt", "d.txt"]
    assert "no memory" in log_of(tmp_path, steps[1]).read_text()
    said = capsys.readouterr()
    assert "b: FAILED" in said.out
    assert "one that failed: 1" in said.err
    assert {*open_lab(tmp_path).steps} == {"a", "d"}


def test_what_is_complete_stays_and_what_was_killed_is_run_again(tmp_path: Path) -> None:
    step = python("a", "time.sleep(.1); " + WRITE)
    lab = Lab(tmp_path, "mine")
    assert not lab.has(step)
    assert run_steps(lab, [step], 1) == []
    assert open_lab(tmp_path).has(step)
    assert open_lab(tmp_path).steps["a"]["seconds"] > 0


def test_a_result_of_another_command_is_refused_and_left_alone(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "mine")
    run_steps(lab, [python("a", WRITE)], 1)
    with pytest.raises(InputError, match=r"a\.txt is of another plan's step 'a'.*needed: another --output, or delete"):
        open_lab(tmp_path).has(python("a", WRITE + "  # otherwise"))
    assert (tmp_path / "a.txt").is_file()


def test_two_jobs_run_two_steps_at_a_time(tmp_path: Path) -> None:
    """Each ends well only if the other is there while it runs."""
    code = "\nfor _ in range(6000):\n    if pathlib.Path('{}').exists(): sys.exit()\n    time.sleep(.01)\nsys.exit(1)"
    steps = [python("a", WRITE + code.format("b.txt")), python("b", WRITE + code.format("a.txt"))]
    assert run_steps(Lab(tmp_path, "mine"), steps, 2) == []


def test_a_run_is_done_once_it_says_so_itself(tmp_path: Path) -> None:
    step = LabStep("run", (), "run/run.json")
    assert not is_done(tmp_path, step)
    (tmp_path / "run").mkdir()
    for outcome, done in (("running", False), ("interrupted", False), ("collapsed", True), ("finished", True)):
        write_json(tmp_path / step.done, {"outcome": outcome})
        assert is_done(tmp_path, step) is done


@pytest.mark.parametrize(("what", "version"), [("lab", "0"), ("world", "1.1")])
def test_a_folder_of_another_version_is_refused(tmp_path: Path, what: str, version: str) -> None:
    Lab(tmp_path, "mine").note(LabStep("a", ("x",), "a.txt"))
    record = read_json(tmp_path / RECORD)
    write_json(tmp_path / RECORD, record | {what: version})
    with pytest.raises(InputError, match=f"is of {what} version '{version}'.*cannot be compared"):
        open_lab(tmp_path, "mine")


def test_a_folder_that_is_no_lab_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needed: a folder of `lmgym lab run`"):
        open_lab(tmp_path)
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        open_lab(tmp_path)

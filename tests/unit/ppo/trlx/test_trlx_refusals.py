"""A request of a trlx program for something that is not here ends it in one line, unless it catches the error."""

import subprocess
from pathlib import Path

import launching
import pytest

ILQL = "from ppo.trlx.data.default_configs import default_ilql_config\nconfig = default_ilql_config()\n"
OFFLINE = "from ppo import trlx\ntrlx.train('gpt2', dataset=(['a'], [1.0]))\n"
NEMO = "from ppo.trlx.data.default_configs import default_nemo_1_3b_config\ndefault_nemo_1_3b_config()\n"
CAUGHT = """
from ppo import trlx
try:
    trlx.train('gpt2', samples=['a'], rewards=[1.0])
except ValueError as error:
    print('caught:', error)
raise KeyError('a defect')
"""


def run(program: str, tmp_path: Path) -> subprocess.CompletedProcess:
    path = tmp_path / "program.py"
    path.write_text(program)
    return launching.run(launching.launch("fork", script=path))


@pytest.mark.parametrize(("program", "said"), [(ILQL, "ILQL"), (OFFLINE, "dataset= was given: ILQL"), (NEMO, "NeMo's")])
def test_a_refusal_is_one_line_and_exit_code_2(program: str, said: str, tmp_path) -> None:
    done = run(program, tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {said}")
    assert "; needed: " in line


def test_a_program_may_catch_a_refusal_and_its_own_defects_have_a_traceback(tmp_path) -> None:
    done = run(CAUGHT, tmp_path)
    assert done.stdout.startswith("caught: rewards= was given: ILQL")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == "KeyError: 'a defect'"

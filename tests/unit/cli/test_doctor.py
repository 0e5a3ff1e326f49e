"""`lmgym doctor`: findings with their fixes, no value of a key, a network that never answers, and the exit code."""

import importlib.metadata
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from lmgym.cli import doctor
from lmgym.cli.doctor import Finding
from lmgym.cli.main import main

SECRET = "hf_a-value-that-nobody-may-see"  # pragma: allowlist secret


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trial and the network, which have tests of their own."""
    monkeypatch.setattr(doctor, "trial", lambda: [Finding("trial: left out")])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_machine_that_can_train_has_exit_code_0_and_each_warning_has_a_fix(quick) -> None:
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 0, done.output
    printed = done.stdout.splitlines()
    assert printed[-1] == "training works here"
    assert f"torch {importlib.metadata.version('torch')}" in printed[0]
    assert [line for line, after in pairwise(printed)
            if line.startswith("warn") and not after.startswith("     fix: ")] == []  # fmt: skip


def test_a_folder_that_cannot_be_written_is_a_failure_with_exit_code_1(quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")  # not even root writes there
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    [failure] = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert "outputs: /proc/outputs" in failure
    assert "nothing can be written there" in failure
    assert done.stdout.endswith("1 problem(s) keep this machine from training\n")


def test_keys_are_found_by_name_and_their_values_are_never_printed(quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_AUTH_TOKEN", f"{SECRET}\n")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    output = CliRunner().invoke(main, ["doctor"]).output
    assert "ok   key HF_TOKEN: set" in output
    assert "warn key WANDB_AUTH_TOKEN: has white space around it" in output
    assert "keys that are not set: WANDB_API_KEY (" in output
    assert SECRET not in output


def test_a_hub_that_never_answers_is_a_warning_after_the_time_limit(silent_server: str, monkeypatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", silent_server)
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.3)
    [finding] = doctor.network()
    assert finding.level == "warning"
    assert f"{silent_server} cannot be reached (" in finding.text
    assert "lmgym get" in finding.fix


def test_a_look_up_of_an_address_that_hangs_does_not_hang_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.3)

    def look_up(*words: object, **settings: object) -> None:
        time.sleep(10)
        raise OSError("the doctor waited for it")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    [finding] = doctor.network()
    assert "cannot be reached (no answer)" in finding.text


def test_a_name_that_leads_to_its_own_machine_is_told_for_runs_on_several(tmp_path: Path) -> None:
    hosts, name = tmp_path / "hosts", socket.gethostname()
    hosts.write_text(f"127.0.0.1 localhost # {name}\n10.99.0.1\t{name}.net {name}\n127.0.1.1 {name}x\n")
    assert doctor.own_name(hosts) == []
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1\t{name}.net {name}\n10.99.0.1 {name}\n")
    [finding] = doctor.own_name(hosts)
    assert finding.level == "ok", "one machine trains with it"
    assert finding.text == f"name: {name} leads to 127.0.1.1 in {hosts}, to this machine alone"
    assert "GLOO_SOCKET_IFNAME" in finding.fix
    interface = next(interface for _, interface in socket.if_nameindex() if interface != "lo")
    assert interface in finding.fix


def test_a_library_that_is_too_old_or_missing_is_a_failure_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"transformers": "4.0.0", "peft": None}
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: known.get(name, real(name)))
    problems = [finding for finding in doctor.versions() if finding.level == "failure"]
    assert [finding.text for finding in problems] == [
        "transformers 4.0.0; needed: <6,>=5.0", "peft is missing; needed: >=0.17",
    ]  # fmt: skip
    assert problems[1].fix == f'{sys.executable} -m pip install "peft>=0.17"'
    assert importlib.metadata.version("peft")  # is here in fact


def test_launchers_of_another_python_are_told_from_those_of_this_one(tmp_path: Path, monkeypatch) -> None:
    home = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(home))
    assert [finding.level for finding in doctor.launchers()] == ["ok"]
    (tmp_path / "deepspeed").write_text("#!/bin/sh\n")
    (tmp_path / "deepspeed").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{home}")
    *_, finding = doctor.launchers()
    assert finding.level == "warning"
    assert f"deepspeed (found {tmp_path}/deepspeed)" in finding.text
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    [finding] = doctor.launchers()
    assert finding.text.endswith("lmgym, deepspeed, torchrun")


def test_a_systems_python_whose_commands_are_elsewhere_is_no_cause_for_a_warning(tmp_path: Path, monkeypatch) -> None:
    commands = Path(sys.executable).parent
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "usr/bin/python3"))
    monkeypatch.setenv("PATH", str(commands))
    [finding] = doctor.launchers()
    assert (finding.level, finding.text) == ("ok", f"launchers: lmgym, deepspeed, torchrun in {commands}")


def test_a_check_that_raises_is_a_failure_and_the_others_go_on(quick, monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> list[Finding]:
        raise ImportError("libcudart.so: not found")

    monkeypatch.setattr(doctor, "devices", devices)
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert "warning: devices failed (ImportError: libcudart.so: not found); the other checks go on" in done.stderr
    assert "FAIL a check whose result is unknown" in done.stdout
    assert "memory: " in done.stdout


def test_little_free_space_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**39, 2**28))
    assert [finding.level for finding in doctor.storage()] == ["warning"] * 3
    assert "--shm-size" in doctor.storage()[2].fix


def test_the_trial_is_a_real_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    [finding] = doctor.trial()
    assert finding.level == "ok", finding
    assert finding.text.startswith("trial: one update under deepspeed, 1 process(es), ")


@pytest.mark.parametrize(
    ("body", "seconds", "message"),
    [
        ("import sys\nsys.stderr.write('RuntimeError: no kernel image\\n')\nsys.exit(3)", 180.0, "no kernel image"),
        ("import time\ntime.sleep(600)", 15.0, "did not end in 15 s"),
    ],
)
@pytest.mark.slow
def test_a_trial_that_fails_or_hangs_is_a_failure(
    body: str, seconds: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken.py"
    script.write_text(body)
    monkeypatch.setattr(doctor, "__file__", str(script))
    monkeypatch.setattr(doctor, "TRIAL_SECONDS", seconds)
    [finding] = doctor.trial()
    assert finding.level == "failure"
    assert message in finding.text

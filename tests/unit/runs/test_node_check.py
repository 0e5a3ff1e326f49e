"""`lmgym launch --dry_run`: a node's report, by its own Python, and the differences between reports."""

import base64
import json
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from lmgym.errors import InputError
from lmgym.runs import node_report
from lmgym.runs.hostfile import Host
from lmgym.runs.node_check import Answer, _reports, check_hosts, differences, packages, paths_of, table

ROOT = Path(__file__).parents[3]


def reported(folder: Path, paths: dict[str, str], **changes: object) -> Answer:
    """The report of a Python that gets the program over its standard input, in a folder."""
    facts = {
        "root": str(ROOT), "folder": str(folder), "python": sys.executable, "packages": ["click", "no-such-package"],
        "paths": paths, "head": "", "port": 0, "slots": 1, **changes,
    }  # fmt: skip
    with Path(node_report.__file__).open() as program:
        command = [sys.executable, "-", json.dumps(facts)]
        done = subprocess.run(command, stdin=program, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) < 1000  # srun mixes the parts of longer lines
    return _reports(done.stdout)[0]


def test_a_report_has_versions_commit_and_digests(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "click-1.0.dist-info").mkdir()  # in the working folder, which is no part of the environment
    (tmp_path / "click-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: click\nVersion: 1.0\n")
    found = reported(tmp_path, {"model": str(tmp_path / "model"), "dataset": "none.jsonl"}).values
    assert found["packages/click"] == version("click")
    assert found["packages/no-such-package"] == found["dataset"] == "missing"
    assert found["model/config.json"] == "2 bytes, 44136fa3"  # sha256 of {}
    assert found["lmgym"] == str(ROOT)


def test_one_byte_of_a_large_file_is_seen_at_its_ends_and_in_its_middle(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    size = 9 << 20
    data = bytearray(size)
    path.write_bytes(data)
    digests = {node_report.digest(str(path))}
    for place in (0, size // 2, size - 1):
        data[place] = 1
        path.write_bytes(data)
        digests.add(node_report.digest(str(path)))
    assert len(digests) == 4


def test_a_commit_and_uncommitted_changes(tmp_path: Path) -> None:
    assert node_report.commit(str(tmp_path)) == {"commit": "no repository"}
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "a").write_text("1")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    clean = node_report.commit(str(tmp_path))
    assert clean["uncommitted"] == "none"
    (tmp_path / "a").write_text("2")
    changed = node_report.commit(str(tmp_path))
    assert (changed["commit"], changed["uncommitted"][:11]) == (clean["commit"], "1 file(s), ")
    (tmp_path / "a").write_text("3")
    assert node_report.commit(str(tmp_path)) != changed


def test_a_hub_id_is_the_commit_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert node_report.content("model", "owner/name") == {"model": "not in the hub's cache"}
    (tmp_path / "hub/models--owner--name/refs").mkdir(parents=True)
    (tmp_path / "hub/models--owner--name/refs/main").write_text("0123456789abcdef\n")
    assert node_report.content("model", "owner/name") == {"model": "hub cache 0123456789ab"}
    assert node_report.content("model", "/no/such") == {"model": "missing"}


def test_a_port_in_use_and_a_name_without_address_are_problems() -> None:
    facts = {"head": "no-such-host.invalid", "port": 0, "slots": 1}
    assert any(text.startswith("cannot find the address of no-such-host") for text in node_report.problems(facts))
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen()
        port = listening.getsockname()[1]
        found = node_report.problems({"head": "", "port": port, "slots": 1})
        assert found == [f"port {port} is in use; needed: another --master_port"]
    assert node_report.problems({"head": "", "port": port, "slots": 1}) == []


def test_paths_are_those_of_models_and_data_but_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    script = (
        "x.py --model here --dataset a.jsonl,owner/rows --output out/run --deepspeed zero2 --learning_rate 1e-5 "
        "--scorers help=/m/a#softmax[1],w=world:0 --reference=~/ref --opponents pool:/p --prompts gone"
    )
    assert paths_of(script.split()) == {
        "experiment": "x.py", "model": "here", "dataset": "a.jsonl", "dataset 1": "owner/rows",
        "scorers help": "/m/a", "reference": "~/ref", "opponents": "/p",
    }  # fmt: skip


def test_differences_name_node_thing_and_both_values() -> None:
    equal = {"commit": "a", "packages": "/v", "packages/torch": "2", "model": "/m", "model/config.json": "1"}
    answers = [
        Answer("n1", equal),
        Answer("n2", equal | {"commit": "b", "model": "missing"}, ["port 1 is in use"]),
        Answer("n3", {}, ["gave no answer: timed out"]),
        Answer("n4", {**equal, "packages/torch": "3", "model/extra": "2"}),
    ]
    assert differences(answers) == [
        "n2: port 1 is in use",
        "n3: gave no answer: timed out",
        "commit differs: n1 a, n2 b",
        "packages/torch differs: n1 2, n4 3",
        "model differs: n1 /m, n2 missing",
        "model/extra differs: n1 missing, n4 2",
    ]
    known = [answer for answer in answers if answer.values]
    assert ("commit", "a", "differs: n2") in table(known)
    assert differences([Answer("n1", {"data": "missing"}), Answer("n2", {"data": "missing"})]) == [
        "data: missing on every node"
    ]
    assert differences([Answer("n1", equal), Answer("n2", equal)]) == []


def test_packages_are_those_of_the_requirements() -> None:
    assert {"torch", "transformers", "deepspeed"} <= set(packages())
    assert all("==" not in name for name in packages())


def test_reports_of_two_nodes_may_be_mixed_line_by_line() -> None:
    texts = {name: _encoded({"host": name, "values": {}, "problems": []}) for name in ("a", "b")}
    lines = [f"{node_report.MARK} {name} {texts[name][i : i + 4]}" for i in range(0, 80, 4) for name in ("b", "a")]
    assert sorted(answer.node for answer in _reports("noise\n" + "\n".join(lines))) == ["a", "b"]


def test_a_report_that_cannot_be_read_is_no_answer_of_its_node_alone(capsys: pytest.CaptureFixture[str]) -> None:
    good = _encoded({"host": "a", "values": {}, "problems": []})
    broken = _encoded({"host": "b"})
    found = _reports(f"{node_report.MARK} b {broken}\n{node_report.MARK} a {good}\n{node_report.MARK} c x")
    assert [answer.node for answer in found] == ["a"]
    said = capsys.readouterr().err
    assert "warning: reading the report of b failed (KeyError: 'values')" in said
    assert "warning: reading the report of c failed (" in said


def _encoded(report: dict) -> str:
    return base64.b64encode(json.dumps(report).encode()).decode()


def test_no_ssh_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no ssh here; needed: ssh on PATH"):
        check_hosts([Host("a", 1)], ["x.py"], tmp_path, 1, {})

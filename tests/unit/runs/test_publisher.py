"""Pushes while a run trains: in the background, once each, and never to the run's harm."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_stub import Fault, Hub
from patience import wait_until

from lmgym.config import ModelConfig, SharingConfig
from lmgym.errors import InputError
from lmgym.runs import hub as access
from lmgym.runs.publisher import PUSHING, Publisher
from lmgym.runs.run import Run
from lmgym.training.plan import check_push

NAME = "alice/tiny"
SHARING = SharingConfig(push_to_hub=NAME)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LONGEST_WAIT", 0.01)


def save(folder: Path, source: Path, weights: bytes) -> None:
    """A model with these weights in place of the one that is there, as a run saves it: under a new name first."""
    shutil.copytree(source, Path(f"{folder}.partial"))
    Path(f"{folder}.partial/model.safetensors").write_bytes(weights)
    shutil.rmtree(folder, ignore_errors=True)
    Path(f"{folder}.partial").rename(folder)


def run_of(folder: Path, sharing: SharingConfig = SHARING) -> Run:
    return Run.start(folder, {"model": "gpt2"}, seed=0, tracking="none", sharing=sharing)


def test_a_better_model_is_pushed_while_the_run_trains_and_the_last_at_its_end(
    hub: Hub, small_models: dict[str, Path], tmp_path: Path, capsys
) -> None:
    with run_of(tmp_path) as run:
        save(tmp_path / "model", small_models["llama"], b"first")
        run.publish()
        wait_until(lambda: hub.count("/commit/") == 1 and hub.files(NAME)["model.safetensors"] == b"first")
        save(tmp_path / "model", small_models["llama"], b"best")
        save(tmp_path / "last", small_models["llama"], b"last")
        run.publish()
    assert hub.files(NAME)["model.safetensors"] == b"best"
    assert hub.files(NAME, "last")["model.safetensors"] == b"last"
    assert hub.commits(NAME) == 2
    said = capsys.readouterr().out
    assert f"pushed model/ to {hub.url}/{NAME} (main, commit " in said
    assert f"pushed last/ to {hub.url}/{NAME} (last, commit " in said
    assert not (tmp_path / PUSHING).exists()
    record = [(one["revision"], one["repository"]) for one in json_of(tmp_path)["pushed"]]
    assert record == [("main", NAME), ("last", NAME)]


def json_of(folder: Path) -> dict:
    import json

    return json.loads((folder / "run.json").read_text())


def test_a_model_that_is_replaced_during_its_push_arrives_whole(
    hub: Hub, small_models: dict[str, Path], tmp_path: Path
) -> None:
    publisher = Publisher(tmp_path, SHARING, [])
    save(tmp_path / "model", small_models["llama"], b"first")
    hub.faults.append(Fault("POST /api/repos/create", 503, headers={"Retry-After": "1"}))
    publisher.saved()
    save(tmp_path / "model", small_models["llama"], b"second, and longer")
    publisher.saved()  # one is under way
    wait_until(lambda: ("model", NAME) in hub.repositories and hub.commits(NAME) == 1)
    assert hub.files(NAME)["model.safetensors"] == b"first"
    publisher.finish()
    assert hub.files(NAME)["model.safetensors"] == b"second, and longer"


def test_a_hub_that_stays_away_leaves_the_run_and_the_command_for_later(
    hub: Hub, small_models: dict[str, Path], tmp_path: Path, capsys
) -> None:
    hub.faults.append(Fault("POST ", 503, times=10_000))
    with run_of(tmp_path, SharingConfig(push_to_hub=NAME, hub_private=True)):
        save(tmp_path / "model", small_models["llama"], b"best")
    record, said = json_of(tmp_path), capsys.readouterr().err.splitlines()
    assert (record["outcome"], record["exit_code"], record["pushed"]) == ("finished", 0, [])
    warnings = [line for line in said if line.startswith("warning:")]
    assert warnings == [
        f"warning: the push to {NAME} failed (the hub answered 503); later: lmgym push {tmp_path} {NAME} --private"
    ]


def test_a_run_that_did_not_finish_waits_for_no_push(hub: Hub, small_models: dict[str, Path], tmp_path: Path) -> None:
    with run_of(tmp_path) as run:
        save(tmp_path / "model", small_models["llama"], b"best")
        run.finish("interrupted", 75)
    assert hub.requests == []


def test_a_run_without_the_flag_asks_nothing(hub: Hub, small_models: dict[str, Path], tmp_path: Path) -> None:
    with run_of(tmp_path, SharingConfig()) as run:
        save(tmp_path / "model", small_models["llama"], b"best")
        run.publish()
    assert hub.requests == []
    assert "pushed" not in json_of(tmp_path)


def test_an_adapter_of_a_folder_is_refused_before_training(hub: Hub, small_models: dict[str, Path]) -> None:
    adapted = ModelConfig(str(small_models["llama"]), lora_rank=4)

    def check(model: ModelConfig, merge: bool, name: str = NAME) -> None:
        check_push(SimpleNamespace(sharing=SharingConfig(push_to_hub=name), merge_adapter=merge), model)  # type: ignore[arg-type]

    with pytest.raises(InputError, match="a folder that others do not have; needed: --merge_adapter, or --model OWNER"):
        check(adapted, False)
    check(adapted, True)
    check(ModelConfig("alice/base", lora_rank=4), False)
    check(ModelConfig(str(small_models["llama"])), False)
    with pytest.raises(InputError, match="--push_to_hub 'true' is no name of a repository"):
        check(adapted, True, "true")

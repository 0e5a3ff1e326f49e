"""Loading executes nothing, and no key of the environment reaches a file; tested with canaries."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from faulting import begin_and_wait, digest, kill_rank, newest, outcome, reseal
from launching import finish, run

from lmgym.errors import InputError
from lmgym.models.loading import load_classifier, load_config, load_tokenizer

Words = Callable[..., list]
KEYS = ("WANDB_API_KEY", "HF_TOKEN", "HUGGINGFACE_TOKEN", "OPENAI_API_KEY", "MY_SECRET_TOKEN")
CANARY = "canary0f3e9d1c7b5a"


class Canary:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


def test_the_canary_executes_when_a_pickle_is_loaded(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "sung")))
    assert (tmp_path / "sung").exists()


def test_pickled_weights_are_refused_unread(small_models: dict[str, Path], tmp_path: Path) -> None:
    folder, sung = tmp_path / "model", tmp_path / "sung"
    shutil.copytree(small_models["llama"], folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(sung)))
    with pytest.raises(InputError, match=r"pytorch_model.bin only, a pickle.*needed: model.safetensors"):
        load_classifier(str(folder), load_tokenizer(str(folder)))
    assert not sung.exists()


def test_a_pickle_beside_safetensors_is_ignored(small_models: dict[str, Path], tmp_path: Path) -> None:
    folder, sung = tmp_path / "model", tmp_path / "sung"
    shutil.copytree(small_models["llama"], folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(sung)))
    load_classifier(str(folder), load_tokenizer(str(folder)))
    assert not sung.exists()


def test_code_in_a_models_folder_is_not_executed(small_models: dict[str, Path], tmp_path: Path) -> None:
    folder, sung = tmp_path / "model", tmp_path / "sung"
    shutil.copytree(small_models["llama"], folder)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "modeling_mine.MyConfig", "AutoModelForSequenceClassification": "modeling_mine.MyModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine", "auto_map": classes}))
    (folder / "modeling_mine.py").write_text(f"import os\nos.mknod({str(sung)!r})\n")
    for load in (load_config, lambda name: load_classifier(name, None)):
        with pytest.raises(InputError):
            load(str(folder))
    assert not sung.exists()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("owner/name", "no revision"),
        ("owner/name@main", "revision 'main'"),
        ("owner/name@" + "a" * 39, "revision 'aaa"),
    ],
)
def test_code_is_trusted_of_a_pinned_commit_only(name: str, found: str) -> None:
    with pytest.raises(InputError, match=f"{found}.*40 hex digits"):
        load_config(name, trust_remote_code=True)


def test_code_of_a_folder_cannot_be_pinned(small_models: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="found a folder"):
        load_config(str(small_models["llama"]), trust_remote_code=True)


REPLACED = [
    ("plain", "optimizer.pt"),
    pytest.param("plain", "rank-00000.pt", marks=pytest.mark.slow),
    pytest.param("plain", "scheduler.pt", marks=pytest.mark.slow),
    pytest.param("ddp", "rank-00001.pt", marks=pytest.mark.slow),
    pytest.param("zero2", "global_step*/zero_pp_rank_0*optim_states.pt", marks=pytest.mark.slow),
    pytest.param("zero3", "global_step*/zero_pp_rank_1*model_states.pt", marks=pytest.mark.slow),
    pytest.param("zero3", "rank-00000.pt", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("engine", "pattern"), REPLACED)
def test_a_hostile_pickle_in_a_checkpoint_is_not_loaded_and_the_one_before_is_used(
    engine: str, pattern: str, words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder, sung = tmp_path / "run", tmp_path / "sung"
    launched = begin_and_wait(words(engine, folder), folder, 4, LMGYM_TEST_SLEEP="0.1")
    kill_rank(launched, 0)
    finish(launched)
    replaced = newest(folder)
    file = next(replaced.glob(pattern))
    torch.save({"module": Canary(sung)}, file)
    reseal(replaced)  # the manifest agrees: nothing but what the file holds is wrong
    done = run(words(engine, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert not sung.exists()
    said = done.stdout.replace("\n", "")
    assert f"{replaced} was skipped: {file.relative_to(replaced)} " in said
    assert f"resuming from {folder}/checkpoints/step-{int(replaced.name[5:]) - 2:08d}" in said
    assert digest(folder) == digest(uninterrupted(engine))
    assert outcome(folder) == ("finished", 0)


def test_no_key_of_the_environment_reaches_a_file(words: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run(words("plain", folder, max_updates=4, tracking="offline"), **dict.fromkeys(KEYS, CANARY))
    assert done.returncode == 0, done.stderr[-3000:]
    assert CANARY not in done.stdout + done.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any("wandb" in str(path) for path in files), "the tracker's records are among them"
    assert len(files) > 15
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []

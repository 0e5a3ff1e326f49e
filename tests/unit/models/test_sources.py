"""Hub ids without a network: cached models load, and missing ones are refused at once."""

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from lmgym.errors import InputError
from lmgym.models.fingerprint import fingerprint
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.sources import hub_has_address, resolve_source, source_arguments
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def no_network(monkeypatch, tmp_path: Path) -> Iterator[Path]:
    """The hub's empty cache, while no host name resolves and no retry may wait."""
    waits: list[float] = []

    def nowhere(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    yield tmp_path
    assert waits == []


def test_a_missing_model_is_refused_without_retries(no_network: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"no tokenizer loads from nobody/nothing: .*cached files; and no folder /.*/nobody/nothing is here$",
    ):
        load_tokenizer("nobody/nothing")
    with pytest.raises(InputError, match="no model config loads from nobody/nothing: "):
        load_config("nobody/nothing")


def put_in_cache(cache: Path, source: Path, name: str) -> None:
    """The files of a folder as those of `nobody/name`."""
    folder = cache / f"models--nobody--{name}"
    shutil.copytree(source, folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)


def test_cached_models_load_without_a_request(no_network: Path, small_models) -> None:
    put_in_cache(no_network, small_models["llama"], "small")
    assert load_config("nobody/small").model_type == "llama"
    assert load_tokenizer("nobody/small").eos_token_id == load_tokenizer(str(small_models["llama"])).eos_token_id


def test_the_hub_is_used_if_its_name_resolves_or_there_is_a_proxy(no_network: Path, monkeypatch) -> None:
    assert not hub_has_address()
    assert source_arguments("nobody/nothing@main")["local_files_only"]
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert hub_has_address()
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: [("somewhere",)])
    assert hub_has_address()
    assert "local_files_only" not in source_arguments("nobody/nothing")


def test_a_folder_is_named_by_its_absolute_path_for_what_is_saved(small_models, monkeypatch) -> None:
    folder = small_models["llama"]
    monkeypatch.chdir(folder.parent)
    for name in (folder.name, f"./{folder.name}", str(folder)):
        assert resolve_source(name) == str(folder)
        assert load_config(name).name_or_path == str(folder)
    assert resolve_source("owner/name") == "owner/name"


def test_cached_scorers_of_other_trainers_load_by_their_hub_ids(no_network: Path, small_models, tmp_path: Path) -> None:
    source = small_models["llama"]
    folder, adapter = Path(shutil.copytree(source, tmp_path / "trl")), tmp_path / "adapter"
    save_file({"v_head.summary.weight": torch.ones(1, 32)}, folder / "value_head.safetensors")
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"])).save_pretrained(adapter)
    for name, path in {"base": source, "trl": folder, "adapter": adapter}.items():
        put_in_cache(no_network, path, name)
    settings = no_network / "models--nobody--adapter/snapshots" / COMMIT / "adapter_config.json"
    settings.write_text(settings.read_text().replace(str(source), "nobody/base"))
    chat = [Conversation((Turn("user", "hello"),))]
    for name, path in {"trl": folder, "adapter": adapter}.items():
        assert torch.equal(
            load_scorer(f"nobody/{name}").score(chat, ["yes"]), load_scorer(str(path)).score(chat, ["yes"])
        )
    with pytest.raises(InputError, match="no model config loads from nobody/nothing"):
        load_scorer("nobody/nothing")
    before = fingerprint("nobody/adapter", role="scorer")
    settings.write_text(settings.read_text().replace("nobody/base", "nobody/trl"))
    assert fingerprint("nobody/adapter", role="scorer") != before  # it has another base


def test_a_cached_scorer_has_the_settings_that_were_saved_with_it(no_network: Path, scorer_folders) -> None:
    put_in_cache(no_network, scorer_folders["llama"], "scorer")
    found = load_scorer("nobody/scorer")
    assert isinstance(found, HFScorer)
    assert found.max_length == 250


def test_the_fingerprint_of_an_adapter_has_its_base_and_its_settings(small_models, tmp_path: Path) -> None:
    base, adapter = Path(shutil.copytree(small_models["llama"], tmp_path / "base")), tmp_path / "adapter"
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"])).save_pretrained(adapter)
    found = [fingerprint(str(adapter), role="scorer")]
    for path in (base / "config.json", adapter / "adapter_config.json", adapter / "adapter_model.safetensors"):
        path.write_bytes(path.read_bytes() + b"\n")
        found.append(fingerprint(str(adapter), role="scorer"))
    assert len(set(found)) == 4

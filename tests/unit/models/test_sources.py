"""Hub ids without a network: cached models load, and missing ones are refused at once."""

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from lmgym.errors import InputError
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.sources import hub_has_address, source_arguments

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


def test_cached_models_load_without_a_request(no_network: Path, small_models) -> None:
    folder = no_network / "models--nobody--small"
    shutil.copytree(small_models["llama"], folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
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

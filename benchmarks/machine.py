"""Description of the machine that a benchmark ran on."""

import os
import platform
import shutil
from pathlib import Path

BF16_FLAGS = ("avx512_bf16", "amx_bf16")


def cpu_lines() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def describe_machine() -> dict:
    """Model, cores, the flags that decide bf16's speed, and how busy the machine was at the start."""
    cpu = cpu_lines()
    flags = set(cpu.get("flags", "").split())
    return {
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cores": os.cpu_count(),
        "native_bf16_flags": [flag for flag in BF16_FLAGS if flag in flags],
        "vector_flags": sorted(flag for flag in flags if flag.startswith(("avx", "amx"))),
        "load_average_at_start": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def describe_gpu() -> dict:
    """Name, memory, and what drives the GPU in use."""
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": found.name,
        "memory_gib": found.total_memory / 2**30,
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "cuda": torch.version.cuda,
        "allocator": torch.cuda.get_allocator_backend(),
    }


def pin_command(core: int) -> list[str]:
    """`taskset` words that keep a process on one core; empty where that cannot be done."""
    if shutil.which("taskset") is None or core not in os.sched_getaffinity(0):
        return []
    return ["taskset", "-c", str(core)]


def bf16_remark(machine: dict) -> str:
    """One line on whether bf16 means anything here."""
    if machine["native_bf16_flags"]:
        return f"bf16 is native here ({', '.join(machine['native_bf16_flags'])})"
    return "bf16 is NOT native here (no avx512_bf16, no amx_bf16): it is emulated, its figures say little"

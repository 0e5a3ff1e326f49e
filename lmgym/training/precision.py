"""The precision of a run whose settings name none: bf16 where the device computes in it, otherwise fp32."""

from pathlib import Path
from typing import TypeVar

import torch

from lmgym.config import Preferred
from lmgym.console import say
from lmgym.distributed.deepspeed_config import read_config
from lmgym.distributed.ranks import rank
from lmgym.runs.fields import flatten, rebuild

T = TypeVar("T")
PROCESSOR = Path("/proc/cpuinfo")


def with_native_precision(config: T) -> T:
    """The settings of a stage, with fp32 in place of a preferred bf16 that the device would only emulate.

    A precision that the user, an experiment's file or DeepSpeed's config names stays. Raises InputError for a config
    of DeepSpeed that cannot be read.
    """
    if computes_in_bf16():
        return config
    given = flatten(config)
    of_deepspeed = _deepspeed_has_bf16(given["deepspeed"])
    if given["precision"] != "bf16" and not of_deepspeed:
        return config
    named = of_deepspeed or not isinstance(given["precision"], Preferred)
    if rank() == 0:
        say(
            "warning: this device emulates bf16: with --precision fp32 it is 2 to 10 times as fast"
            if named
            else "precision fp32, since this device emulates bf16, which takes 2 to 10 times as long (--precision bf16)"
        )
    return config if named else rebuild(config, {"precision": "fp32"})


def computes_in_bf16() -> bool:
    """True of a GPU, or without one a processor, that has instructions for bf16."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return PROCESSOR.exists() and processor_has_bf16(PROCESSOR.read_text(errors="replace"))


def processor_has_bf16(information: str) -> bool:
    """True if Linux's list of a processor's features has one of bf16, such as avx512_bf16, or ARM's svebf16."""
    lines = (line.partition(":") for line in information.splitlines())
    features = {
        word for name, _, words in lines if name.strip().lower() in ("flags", "features") for word in words.split()
    }
    return any(feature.endswith("bf16") for feature in features)


def _deepspeed_has_bf16(path: object) -> bool:
    return bool(path) and read_config(str(path)).get("bf16", {}).get("enabled") is True

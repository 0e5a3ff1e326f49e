"""Commands in forked processes: libraries are imported once, and a command that hangs or crashes ends alone."""

import contextlib
import faulthandler
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
CPU_SECONDS, SECONDS = 20, 120
"""of a command: on a busy machine the second one is many times the first"""
MEMORY = 8 << 30
"""bytes of addresses beyond those of the parent"""


@dataclass(frozen=True)
class Ended:
    """The end of a command, and its output."""

    code: int
    """exit code; negative: the signal that ended it"""
    seconds: float
    cpu: float
    out: str
    err: str

    @property
    def hung(self) -> bool:
        """True if a limit of time ended it."""
        return self.code in (-signal.SIGXCPU, -signal.SIGKILL)


def import_libraries() -> None:
    """Imports of the commands, so that forks have them."""
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import sklearn.linear_model  # noqa: F401
    import torch
    import torch.utils.serialization
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama  # noqa: F401
    import typeguard  # noqa: F401
    import tyro  # noqa: F401
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    import lmgym.cli.main
    import lmgym.report.comparison
    import lmgym.training.trainer  # noqa: F401
    import ppo.train  # noqa: F401
    import reward_models.train  # noqa: F401
    import sft.train  # noqa: F401
    from lmgym.apps.world import baselines  # noqa: F401

    torch.set_num_threads(1)
    get_checkpoint_conversion_mapping("llama")  # builds a table of all models, a quarter of a second


def run_forked(words: Sequence[str], folder: Path, most_files: int | None = None) -> Ended:
    """Runs a command in a folder. Its first word is `lmgym`, `playpen` or a script's path in the repository.

    It may open `most_files` files more than are open now.
    """
    out, err = (folder.parent / f"{folder.name}.{name}" for name in ("out", "err"))
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(words, folder, out, err, most_files)
    status = usage = None
    while status is None:
        pid, code, found = os.wait4(child, os.WNOHANG)
        if pid:
            status, usage = code, found
        elif time.monotonic() - began > SECONDS:
            os.kill(child, signal.SIGKILL)
        else:
            time.sleep(0.005)
    assert usage is not None
    _kill_group(child)
    texts = [path.read_text(errors="backslashreplace") for path in (out, err)]
    for path in (out, err):
        path.unlink()
    cpu = usage.ru_utime + usage.ru_stime
    return Ended(os.waitstatus_to_exitcode(status), time.monotonic() - began, cpu, *texts)


def _kill_group(child: int) -> None:
    """Ends what the command has started and left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _limit_files(most: int) -> None:
    """Lets this process open `most` files more, whichever numbers are free."""
    free = [os.dup(2) for _ in range(most + 1)]
    for handle in free:
        os.close(handle)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], free[-1]))


def _become(words: Sequence[str], folder: Path, out: Path, err: Path, most_files: int | None) -> NoReturn:
    """Runs the command in this process, which ends with its exit code."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number, path in ((1, out), (2, err)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
                                  for number in (1, 2))  # fmt: skip
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGXCPU, file=2, chain=True)  # where it hangs
        if most_files is not None:
            _limit_files(most_files)
        code = _run(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _run(words: Sequence[str]) -> int:
    """As the console scripts do."""
    name, *flags = words
    if name in ("lmgym", "playpen"):
        from lmgym.apps.playpen.commands import playpen
        from lmgym.cli.main import main

        (main if name == "lmgym" else playpen)(flags, prog_name=name)
        return 0
    script = Path(__file__).parent / name if "/" not in name else ROOT / name
    sys.argv = [str(script), *flags]
    runpy.run_path(str(script), run_name="__main__")
    return 0

"""The environment that a run's processes on other hosts need, apart from what each host has itself."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from lmgym.errors import InputError, regular, shown, shown_path
from lmgym.masking import looks_secret, masked, remember

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
FORWARDED = re.compile(
    "(NCCL|GLOO|UCX|MV2|FI|TORCH|PYTORCH|OMP|MKL|KMP|HF|HUGGING_FACE|TRANSFORMERS|TOKENIZERS|WANDB|TRACKIO|LMGYM|VLLM|"
    "TRITON|TORCHINDUCTOR|DS)_.+|(PYTHON|MLFLOW).*|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|HOME)|"
    r"(OPENAI|ANTHROPIC)_(API_KEY|BASE_URL)|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY",
    re.ASCII,
)
OWN = {"DS_ENV_FILE", "LMGYM_USAGE"}  # of this process alone; CUDA_VISIBLE_DEVICES too is each host's own


def forwarded(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for every host: those of FORWARDED that are set here, and the lines of ~/.deepspeed_env.

    Raises InputError for a value of several lines, and for a line of the file that has no NAME=value.
    """
    found = {name: value for name, value in environment.items() if FORWARDED.fullmatch(name) and name not in OWN}
    name = environment.get("DS_ENV_FILE", ".deepspeed_env")  # as DeepSpeed reads it
    for path in (Path.home() / name, Path(name)):
        if path.is_file():
            found |= _read(path)
    if bad := next((name for name, value in found.items() if not value.isprintable()), None):
        raise InputError(f"the variable {bad} holds a line break or control character; needed: a value on one line")
    for name in secret_names(found):
        remember(found[name])
    return dict(sorted(found.items()))


def _read(path: Path) -> dict[str, str]:
    variables = {}
    for number, line in enumerate(regular(path).read_text(encoding="utf-8").splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        if not equals or not NAME.fullmatch(name.strip()):
            if name.strip() and not name.startswith("#"):
                where = f"{shown_path(path)}, line {number}"
                raise InputError(f"{where}: {shown(name.strip(), 40)} is no variable; needed: NAME=value")
            continue
        variables[name.strip()] = value.strip().strip("\"'")
    return variables


def public(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that may be printed and written to files."""
    return {name: value for name, value in variables.items() if not _secret(name, value)}


def secret_names(variables: Mapping[str, str]) -> list[str]:
    """The names of the others: keys, tokens, and addresses with a password."""
    return [name for name, value in variables.items() if _secret(name, value)]


def _secret(name: str, value: str) -> bool:
    return looks_secret(name) or masked(value) != value

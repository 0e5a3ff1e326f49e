"""The JavaScript that draws the charts of a page: Vega-Lite, from the package vl-convert-python, kept in a cache.

Why Vega-Lite: a chart is a JSON object, so that writing a report takes milliseconds, and the browser draws it as SVG in
its own width and in light or dark colours, with tooltips. Its bundle has 0.9 MB (Bokeh's 1.3 MB, Plotly's 4.8 MB).
Twelve charts took 0.3 s in matplotlib and 0.6 s in Bokeh on a core on which a whole report now takes 7 to 25 ms.
"""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = "vl-convert-python"
# the bundle is made by a JavaScript engine, which belongs in no training process
COMMAND = "import sys, vl_convert; open(sys.argv[1], 'w', encoding='utf-8').write(vl_convert.javascript_bundle())"
SECONDS = 60


def vega_bundle() -> str:
    """The bundle, which defines `vegaEmbed`; empty if the package is missing or cannot make it."""
    try:
        cached = _folder() / f"vega-{version(PACKAGE)}.js"
        if not cached.is_file():
            cached.parent.mkdir(parents=True, exist_ok=True)
            temporary = cached.with_name(f".{cached.name}.{os.getpid()}")
            subprocess.run([sys.executable, "-c", COMMAND, temporary], check=True, capture_output=True, timeout=SECONDS)
            os.replace(temporary, cached)
        return cached.read_text(encoding="utf-8")
    except (PackageNotFoundError, OSError, subprocess.SubprocessError):
        return ""


def _folder() -> Path:
    """~/.cache/lmgym, or a folder of this user under the temporary folder if home cannot be written."""
    given = os.environ.get("XDG_CACHE_HOME")
    home = Path(given) if given else Path.home() / ".cache"
    for parent in (home, home.parent):
        if parent.is_dir():
            if os.access(parent, os.W_OK):
                return home / "lmgym"
            break
    return Path(tempfile.gettempdir()) / f"lmgym-{os.getuid()}"

"""The script that draws the session for the docs."""

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

ROOT = Path(__file__).parents[4]


def test_the_image_shows_a_session_with_bars_a_legend_and_its_history(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs/images/make_session.py"), str(tmp_path / "session.svg")]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=PATIENCE)
    text = (tmp_path / "session.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    for expected in ("████", "bar: worst to best", "picked reply 2", "2 more replies", "turn 2  you"):
        assert expected in text
    assert [path.name for path in tmp_path.iterdir()] == ["session.svg"]

"""Scores of clembench's games through the bridge, beside those that clemcore's `clem score` gives the same records.

Needs LMGYM_CLEMCORE, an environment with clemcore 2.5.2, and LMGYM_CLEMBENCH, a checkout at static/v1.0. `python3
tests/unit/apps/playpen/test_clembench_scores.py` prints the figures of docs/playpen.md.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.playpen.clembench.bridge import find_python
from lmgym.apps.playpen.evaluation import EvalSettings
from lmgym.apps.playpen.registries.games import load_games
from lmgym.apps.playpen.rescoring import score_results
from lmgym.apps.playpen.running import run_clem

GAMES = ("taboo", "wordle", "wordle_withclue", "wordle_withcritic", "referencegame", "privateshared", "imagegame",
         "matchit_ascii", "guesswhat", "textmapworld")  # fmt: skip
NEEDED = ("LMGYM_CLEMCORE", "LMGYM_CLEMBENCH")


def scores_of_both(game: str, folder: Path) -> list[tuple[str | None, str | None]]:
    """The episode scores of each episode, as text, by us and by clemcore; None where there are none."""
    ours, theirs = folder / "ours", folder / "theirs"  # `clem score` takes a game's name anywhere in a path
    checkout = str(Path(os.environ["LMGYM_CLEMBENCH"]).absolute())
    run_clem([game], ["mock"], 0.0, 300, checkout, None, None, EvalSettings(folder=str(ours)))
    shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns("scores.json"))
    (folder / "game_registry.json").write_text(json.dumps([{"benchmark_path": checkout}]))
    command = [str(find_python().parent / "clem"), "score", "-g", game, "-r", str(theirs)]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": ""}, check=True, capture_output=True)
    anew = shutil.copytree(ours, folder / "anew", ignore=shutil.ignore_patterns("scores.json"))
    score_results(str(anew), load_games(checkout), [game])
    places = [path.parent.relative_to(ours) for path in sorted(ours.rglob("interactions.json"))]
    assert [scores_in(anew / place) for place in places] == [scores_in(ours / place) for place in places]
    return [(scores_in(ours / place), scores_in(theirs / place)) for place in places]


def scores_in(episode: Path) -> str | None:
    path = episode / "scores.json"
    return json.dumps(json.loads(path.read_text())["episode scores"], sort_keys=True) if path.exists() else None


@pytest.mark.slow
@pytest.mark.skipif(any(name not in os.environ for name in NEEDED), reason=f"needs {' and '.join(NEEDED)}")
@pytest.mark.parametrize("game", GAMES)
def test_scores_are_those_of_clem_score_on_the_same_records(game: str, tmp_path_factory) -> None:
    found = scores_of_both(game, tmp_path_factory.mktemp("records"))
    assert len(found) > 20
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert any(ours for ours, _ in found)


def main() -> None:
    for game in sys.argv[1:] or GAMES:
        with tempfile.TemporaryDirectory() as folder:
            found = scores_of_both(game, Path(folder))
        scores = [json.loads(ours) for ours, _ in found if ours]
        equal = sum(ours == theirs for ours, theirs in found)
        played = 100 * np.mean([1 - one["Aborted"] for one in scores])
        quality = np.nanmean([one["Main Score"] for one in scores])
        print(f"| {game} | {len(found)} | {len(scores)} | {equal} | {played:.2f} | {quality:.2f} |", flush=True)


if __name__ == "__main__":
    main()

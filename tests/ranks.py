"""The results of a test's function on two ranks, which are forks joined by gloo."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_two_ranks(work: Callable[..., Any], folder: Path, *given: Any) -> list[Any]:
    """[of rank 0, of rank 1]: `work(rank, *given)`. What it is given and what it returns is JSON."""
    from launching import launch, run

    words = [work.__code__.co_filename, work.__name__, folder, json.dumps(given)]
    done = run(launch("forks", *words, script=Path(__file__)))
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{number}.json").read_text()) for number in range(2)]


def main(file: str, name: str, folder: str, given: str) -> None:
    """One rank's part."""
    from lmgym.distributed.ranks import rank, start_distributed, stop_distributed

    start_distributed(False)
    answer = runpy.run_path(file)[name](rank(), *json.loads(given))
    Path(folder, f"rank-{rank()}.json").write_text(json.dumps(answer))
    stop_distributed()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`lmgym games data`: recorded episodes as rows for SFT."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmgym.config import Range
from lmgym.console import say
from lmgym.environments.recorded import FOLDER, Selection, training_rows
from lmgym.errors import MOST_SCORE, InputError, shown_path
from lmgym.report.run_files import RunFiles
from lmgym.runs.files import run_folder, write_lines
from lmgym.shell import command, relative


def write_training_data(name: str, min_return: float, kind: str, agent: str, output: str) -> None:
    """Writes the replies of a run's good episodes as rows for SFT, and says how many were left out and why."""
    Range(-MOST_SCORE, MOST_SCORE).check("min_return", min_return)
    folder = run_folder(name)
    files = sorted((folder / FOLDER).glob("*.jsonl" if kind == "all" else f"{kind}-*.jsonl"))
    if not files:
        raise InputError(
            f"{shown_path(folder / FOLDER)} has no recorded episodes of {kind}; needed: a PPO run's folder"
        )
    run, refused = RunFiles(folder), Counter[str]()

    def games() -> Iterator[dict[str, Any]]:
        for path in files:
            yield from run.lines(f"{FOLDER}/{path.name}")

    rows = list(training_rows(games(), Selection(min_return, agent), refused))
    left_out = ", ".join(f"{number:,} for {reason}" for reason, number in refused.most_common())
    if not rows:
        raise InputError(
            f"no reply is left: {left_out or 'no episodes'}; needed: a lower --min_return than {min_return:g}"
        )
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, rows)
    for problem in run.problems:
        say(problem, error=True)
    model = (run.record.get("config") or {}).get("model")
    start = ("--model", relative(model)) if model else ()
    train = command("lmgym", "train", "sft", "chat", "--dataset", path, *start)
    say(f"{path}: {len(rows):,} rows for `{train}`; left out: {left_out or 'none'}")

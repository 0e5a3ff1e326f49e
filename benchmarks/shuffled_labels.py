"""Correlation of the hidden utility with labels that were shuffled within each user: why a scorer learns a little.

    .venv/bin/python benchmarks/shuffled_labels.py # the worlds of behaviour.json; to results/shuffled_labels.json

Correlations over the rows of the logs, of labels as they are and as `behaviour.py` shuffles them. A user's mean label
goes on following the mean utility of the replies that this user got.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from behaviour import ROOT, ROWS, shuffle_labels
from shared import write_result

OUTPUT = ROOT / "benchmarks/results/shuffled_labels.json"


def correlations(folder: Path, file: str) -> dict[str, float]:
    """Correlations of two labels of that file with the hidden utility."""
    logs, gold = (pq.read_table(folder / f"{name}.parquet") for name in (file, "gold"))
    utility = dict(zip(gold["row_id"].to_pylist(), gold["utility"].to_pylist(), strict=True))
    truth = np.array([utility[row] for row in logs["row_id"].to_pylist()])
    labels = {
        "accepted": logs["accepted"].to_numpy(zero_copy_only=False).astype(float),
        "goes_on": (logs["remaining_user_messages"].to_numpy() > 0).astype(float),
    }
    return {name: float(np.corrcoef(label, truth)[0, 1]) for name, label in labels.items()}


def main() -> None:
    found = []
    for seed in json.loads((ROOT / "benchmarks/results/behaviour.json").read_text())["seeds"]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            words = ["world", "--rows", str(ROWS), "--seed", str(seed), "--output", str(folder)]
            subprocess.run([Path(sys.executable).with_name("lmgym"), *words], check=True, stdout=subprocess.DEVNULL)
            shuffle_labels(folder, seed)
            found.append({"world": seed, **{name: correlations(folder, name) for name in ("logs", "shuffled")}})
        print(json.dumps(found[-1]), flush=True)
    write_result(OUTPUT, {"rows": ROWS, "worlds": found}, "world")


if __name__ == "__main__":
    main()

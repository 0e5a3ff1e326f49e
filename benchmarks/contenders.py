"""The contenders of a benchmark. Each runs in a fresh process on one core and one thread."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Contender:
    """A runner with a variant. `micro_batches` are those it may choose from; a single one is its own default."""

    name: str
    runner: str
    variant: str
    python: str
    micro_batches: tuple[int, ...]

    @property
    def script(self) -> Path:
        return BENCHMARKS / "runners" / f"{self.runner}.py"

    def missing(self) -> str:
        """The reason it cannot run, or an empty string."""
        if not self.script.exists():
            return f"no {self.script}"
        if not Path(self.python).exists():
            return f"no {self.python}: see benchmarks/README.md for the second virtual environment"
        return ""


def run_contender(contender: Contender, spec: dict, micro_batch: int, pin: list[str], *flags: str) -> dict:
    """One run; returns the runner's result. Raises RuntimeError with the end of its errors when it fails."""
    spec = {**spec, "variant": contender.variant, "micro_batch": micro_batch}
    with tempfile.TemporaryDirectory() as folder:
        spec_path, result_path = Path(folder, "spec.json"), Path(folder, "result.json")
        spec_path.write_text(json.dumps(spec))
        command = [*pin, contender.python, str(contender.script), str(spec_path), str(result_path), *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode or not result_path.exists():
            raise RuntimeError(f"{contender.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return json.loads(result_path.read_text())


def check_result(contender: Contender, result: dict, others: dict[str, list[dict]]) -> None:
    """Refuse to compare runs that did not train the same pairs and tokens."""
    for name, results in others.items():
        for other in results:
            for count in ("pairs", "tokens"):
                if result[count] != other[count]:
                    raise RuntimeError(f"{contender.name} trained {result[count]} {count}, {name} {other[count]}")

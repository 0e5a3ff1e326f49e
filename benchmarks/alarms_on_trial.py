"""The trial of alarms, on runs whose outcome is known: the tables "Alarms on trial" of docs/over_optimisation.md.

    lmgym lab run alarms --jobs 2 --output outputs/lab/alarms    # goes on where it was stopped
    .venv/bin/python benchmarks/alarms_on_trial.py
    .venv/bin/python benchmarks/pages.py                         # writes the page's tables

Writes benchmarks/results/alarms_on_trial.json. Only scorers all of whose runs are complete count. The trial is long:
scorers that the result file has already, of the same versions, stay in it, so that it can be run in parts, on several
machines. A scorer that was optimised again replaces what the file had.

With `--samples FOLDER` it also writes what alarms read in twelve of the runs, on 128 prompts, and what they said:
the recorded runs of tests/unit/apps/lab/test_recorded_runs.py.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from over_optimisation import cpu_seconds, rounded
from shared import ROOT, describe_machine, origin

from lmgym.apps.lab.alarms import RULES
from lmgym.apps.lab.plan import Plan
from lmgym.apps.lab.record import open_lab, plan_of
from lmgym.apps.lab.steps import WATCHED, folder_of
from lmgym.apps.lab.trial import Judged, counts, judge, read_trial
from lmgym.apps.lab.watching import Watched

RESTS_ON = ("world", "lab", "rows", "sampler", "method", "intervals")
SAMPLED, PROMPTS = 12, 128
SAID = ("peak", "rings", "largest")


def complete(plan: Plan, runs: Sequence[Judged]) -> list[Judged]:
    """The runs against scorers of which no run is missing."""
    done = {run.name for run in runs}
    missing = {f"{r.world}/{r.proxy}" for r in plan.runs if f"{folder_of(r.world)}/{r.name}" not in done}
    return [run for run in runs if run.scorer not in missing]


def fewer_prompts(run: Watched, number: int) -> Watched:
    """The same run, as alarms would have read it on fewer prompts."""
    whole = {field.name: getattr(run, field.name) for field in fields(run)}
    cut = {name: value[:, :number] for name, value in whole.items() if getattr(value, "ndim", 0) == 2}
    by = {role: values[:, :number] for role, values in run.by.items()}
    return replace(run, **cut, prompts=run.prompts[:number], by=by)


def write_samples(lab: Path, runs: Sequence[Judged], folder: Path) -> None:
    """Sound runs, and exploited ones in which a watcher rings on few prompts, and in which none does."""
    folder.mkdir(parents=True, exist_ok=True)
    said: dict[str, Any] = {}
    left = {(outcome, rings): SAMPLED // 3 for outcome in ("sound", "exploited") for rings in (True, False)}
    for run in runs:
        world, name = run.name.split("/")
        cut = fewer_prompts(Watched.read(lab / world / "runs" / name / WATCHED), PROMPTS)
        file = folder / f"{world}_{name}.npz"
        cut.write(file)
        again = judge(run.name, run.scorer, Watched.read(file))
        kind = run.outcome, any(again.rings[rule.name] is not None for rule in RULES if rule.watcher)
        if left.get(kind):
            left[kind] -= 1
            said[file.name] = rounded({"outcome": run.outcome} | {name: getattr(again, name) for name in SAID})
        else:
            file.unlink()
    (folder / "said.json").write_text(json.dumps(said, indent=1) + "\n")


def main() -> None:
    """Adds a lab's complete scorers to the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, default=ROOT / "outputs/lab/alarms")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/alarms_on_trial.json")
    parser.add_argument("--samples", type=Path, help="folder of recorded runs to write for tests")
    arguments = parser.parse_args()
    plan = plan_of(arguments.lab)
    judged = complete(plan, read_trial(arguments.lab, plan))
    known = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    about = origin(*RESTS_ON)
    old = {"runs": [], "cpu_seconds": {}}
    if known.get("rests_on") == about["rests_on"]:
        old = known
    elif known:
        print(f"left out: {len(known['runs'])} runs of {arguments.output.name}, which rest on {known['rests_on']}")
    again = {run.scorer for run in judged}
    runs = [run for run in old["runs"] if run["scorer"] not in again] + rounded([vars(run) for run in judged])
    steps, seconds = open_lab(arguments.lab).steps, old["cpu_seconds"]
    for world in {run.world for run in plan.runs}:
        if own := {name: step for name, step in steps.items() if name.partition(":")[0] == f"world {world}"}:
            seconds[str(world)] = cpu_seconds(own)
    outcomes = counts([Judged(**run) for run in runs])
    found = {"machine": describe_machine()["cpu"], "cpu_seconds": seconds, "outcomes": outcomes, "runs": runs}
    arguments.output.write_text(json.dumps(about | found) + "\n")
    print(f"scorers: {len({run['scorer'] for run in runs})}; runs: {len(runs)}; {outcomes}")
    if arguments.samples:
        write_samples(arguments.lab, judged, arguments.samples)


if __name__ == "__main__":
    main()

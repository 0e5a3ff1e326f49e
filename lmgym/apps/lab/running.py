"""`lmgym lab run`: the steps of a plan, some at a time. Done ones stay, killed ones resume, failed ones are named."""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from lmgym.apps.lab.page import write_page
from lmgym.apps.lab.plan import read_plan
from lmgym.apps.lab.record import PLAN_FILE, Lab, is_done, open_lab
from lmgym.apps.lab.steps import LabStep, plan_steps
from lmgym.console import draw_live_line, erase_live_line, on_terminal, say
from lmgym.errors import INTERRUPTED
from lmgym.report.panels import duration
from lmgym.report.status_line import clock

FAILED, STOPPED = 1, 130
SHOWN_SECONDS = 1.0  # between two times on the terminal


def run_lab(name: str, output: str | None, jobs: int) -> int:
    """Runs a plan. Returns 0; 1 if a step failed: the others have run, but for those that need it; 130 if stopped."""
    file, plan = read_plan(name)
    folder = Path(output or f"outputs/lab/{file.stem}")
    folder.mkdir(parents=True, exist_ok=True)
    lab = open_lab(folder, file.stem)
    steps = plan_steps(plan)
    todo = [step for step in steps if not lab.has(step)]
    shutil.copyfile(file, folder / PLAN_FILE)
    done = len(steps) - len(todo)
    say(f"runs: {len(plan.runs)}, worlds: {len(plan.worlds)}, steps: {len(steps)}, of which done: {done}")
    try:
        failed = run_steps(lab, todo, jobs)
    except KeyboardInterrupt:
        say("stopped: the same command goes on from here", error=True)
        return STOPPED
    write_page(str(folder))
    for step in failed:
        say(f"error: {step.name} failed; its command and output: {log_of(folder, step)}", error=True)
    return FAILED if failed else 0


def run_steps(lab: Lab, todo: Sequence[LabStep], jobs: int) -> list[LabStep]:
    """Runs steps, `jobs` at a time, each behind those that it needs. Returns those that failed.

    A step that needs a failed one is not run. After an interruption the running ones end by themselves, with a
    checkpoint.
    """
    waiting, failed, missing = list(todo), list[LabStep](), {step.name for step in todo}
    began, count = time.monotonic(), 0
    running: dict[Future[bool], LabStep] = {}
    with ThreadPoolExecutor(jobs) as workers:
        while waiting or running:
            for step in [one for one in waiting if not missing & {*one.needs}][: jobs - len(running)]:
                waiting.remove(step)
                running[workers.submit(_run, lab, step)] = step
            if not running:
                break  # all that are left need a step that failed
            for done in _wait(running, f"{clock(time.monotonic() - began)}, {count} of {len(todo)} steps"):
                step = running.pop(done)
                count += 1
                succeeded = done.result()
                if succeeded:
                    missing.remove(step.name)
                else:
                    failed.append(step)
                spent = duration(lab.steps[step.name]["seconds"]) if succeeded else "FAILED"
                say(f"[{count}/{len(todo)}] {step.name}: {spent}; {duration(time.monotonic() - began)} so far")
    if waiting:
        say(f"steps that were not run, since they need one that failed: {len(waiting)}", error=True)
    return failed


def _wait(running: Mapping[Future[bool], LabStep], so_far: str) -> set[Future[bool]]:
    """Those that have ended, at least one; meanwhile a terminal shows what runs."""
    while not (done := wait(running, SHOWN_SECONDS, FIRST_COMPLETED).done):
        if on_terminal():
            draw_live_line(f"{so_far}; running: {', '.join(step.name for step in running.values())}")
    erase_live_line()
    return done


def log_of(folder: Path, step: LabStep) -> Path:
    """The file with a step's output."""
    return folder / "logs" / f"{step.name.replace(': ', '_').replace(' ', '_')}.log"


def _run(lab: Lab, step: LabStep) -> bool:
    """True if a step succeeds; its output goes to its log."""
    log = log_of(lab.folder, step)
    log.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        say(f"$ {shlex.join(step.words)}", file=file)
        try:
            step.prepare(lab.folder)
        except (OSError, ValueError) as error:
            say(f"error: {error}", file=file)
            return False
        with subprocess.Popen(
            step.words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=lab.folder
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            code = process.returncode = os.waitstatus_to_exitcode(status)
    if code == INTERRUPTED or code not in step.succeeds or not is_done(lab.folder, step):
        return False
    lab.note(step, seconds=round(time.monotonic() - began, 1), cpu_seconds=round(used.ru_utime + used.ru_stime, 1))
    return True

"""`lmgym launch --dry_run`: asks every node what it has, prints one table, and names each difference."""

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from lmgym.aids import aid
from lmgym.console import say
from lmgym.errors import InputError, one_line
from lmgym.runs import node_report
from lmgym.runs.forwarding import public
from lmgym.runs.hostfile import Host
from lmgym.runs.on_hosts import SSH
from lmgym.runs.paths import PATHS

ROOT = Path(node_report.__file__).parents[2]
CHECK_SECONDS, CONNECT_SECONDS = 300.0, 5
FILES = (".jsonl", ".json", ".csv", ".parquet", ".gz", ".py")
MISSING = "missing"
SPEC = re.compile(r"(vllm|openai|anthropic|world|function):")
RUN = 'p={python}; [ -x "$p" ] || p=python3; exec "$p" - {arguments}'
"""on a node: the report by the run's Python, or by any where that is missing"""


@dataclass(frozen=True)
class Answer:
    """The report of a node, or why there is none."""

    node: str
    values: Mapping[str, str]
    problems: Sequence[str] = ()


def packages() -> list[str]:
    """The names in requirements.txt, or of an installed lmgym its requirements."""
    from importlib.metadata import requires

    file = ROOT / "requirements.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else requires("lmgym") or []
    names = [re.match(r"[\w.-]+", line.partition("#")[0].strip()) for line in lines if "extra ==" not in line]
    return sorted({match[0] for match in names if match})


def paths_of(script: Sequence[str]) -> dict[str, str]:
    """Labels and paths of an experiment's file and of what its flags name: models, data, scorers; no output.

    A word that is no path here is one for a node if it has a slash or ends as a file of data does.
    """
    found = {"experiment": script[0]}
    words = list(script[1:])
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in PATHS or name == "output":
            continue
        value = value if equals else next(iter(words[place + 1 : place + 2]), "")
        for number, item in enumerate(value.removeprefix("pool:").split(",")):
            key, _, path = item.rpartition("=")
            path = path.partition("#")[0].strip()
            if path and not SPEC.match(path) and _is_path(path):
                found[f"{name} {key or number}" if key or number else name] = path
    return found


def _is_path(item: str) -> bool:
    return os.path.exists(os.path.expanduser(item)) or "/" in item or item.startswith("~") or item.endswith(FILES)


def check_hosts(hosts: Sequence[Host], script: Sequence[str], folder: Path, port: int, environment) -> None:
    """Checks hosts over ssh. Raises InputError with a detail for each difference."""
    lines = "".join(f"export {name}={shlex.quote(value)}; " for name, value in public(environment).items())

    def ask(place: int) -> Answer:
        host = hosts[place]
        arguments = _arguments(script, folder, hosts[0].address, 0 if place else port, host.slots)
        remote = f"cd {shlex.quote(str(folder))} 2>/dev/null; {lines}{_run(arguments)}"
        command = [*SSH, f"-oConnectTimeout={CONNECT_SECONDS}", host.name, f"exec sh -c {shlex.quote(remote)}"]
        output, error = _ask(command)
        found = _reports(output) or [Answer(host.name, {}, [f"gave no answer: {error}"])]
        return replace(found[0], node=host.name)

    with ThreadPoolExecutor(max_workers=64) as pool:
        _conclude(list(pool.map(ask, range(len(hosts)))))


def check_slurm(nodes: int, script: Sequence[str], folder: Path, processes: int, settings: Mapping[str, str]) -> None:
    """Checks the nodes of the allocation that this process is in. Raises InputError, also without an allocation."""
    if not os.environ.get("SLURM_JOB_ID"):
        flags = [f"--{name}{'=' * bool(value)}{value}" for name, value in settings.items()]
        command = shlex.join(["salloc", f"--nodes={nodes}", "--ntasks-per-node=1", *flags, "lmgym", *sys.argv[1:]])
        raise InputError(f"--dry_run asks the nodes of an allocation, and this is in none; needed: {command}")
    if shutil.which("srun") is None:
        raise InputError("there is no srun here; needed: a machine with Slurm's commands")
    listed = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True, check=False)
    names = listed.stdout.split()
    arguments = _arguments(script, folder, names[0] if names else "", 0, processes)
    asked = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "sh", "-c", _run(arguments)]
    output, error = _ask(asked)
    answers = _reports(output)
    if len(answers) < nodes:
        answers.append(Answer("srun", {}, [f"{len(answers)} of {nodes} nodes answered: {error}"]))
    _conclude(sorted(answers, key=lambda answer: names.index(answer.node) if answer.node in names else len(names)))


def _arguments(script: Sequence[str], folder: Path, head: str, port: int, slots: int) -> str:
    own = {"root": str(ROOT), "folder": str(folder), "python": sys.executable, "packages": packages()}
    return json.dumps(own | {"paths": paths_of(script), "head": head, "port": port, "slots": slots})


def _run(arguments: str) -> str:
    return RUN.format(python=shlex.quote(sys.executable), arguments=shlex.quote(arguments))


def _ask(command: Sequence[str]) -> tuple[str, str]:
    """The output of a command whose input is the program node_report, and the last line of its errors."""
    if shutil.which(command[0]) is None:
        raise InputError(f"there is no {command[0]} here; needed: {command[0]} on PATH, and keys for every host")
    with Path(node_report.__file__).open("rb") as program:
        try:
            done = subprocess.run(command, stdin=program, capture_output=True, timeout=CHECK_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return "", f"nothing in {CHECK_SECONDS:.0f} seconds"
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return done.stdout.decode(errors="replace"), one_line(lines[-1] if lines else f"exit code {done.returncode}", 200)


def _reports(output: str) -> list[Answer]:
    """The reports in an output, which has their lines in any order of the nodes."""
    texts: dict[str, str] = {}
    for line in output.splitlines():
        mark, _, rest = line.partition(" ")
        if mark == node_report.MARK:
            host, _, text = rest.partition(" ")
            texts[host] = texts.get(host, "") + text
    return [answer for host, text in texts.items() for answer in _read(host, text)]


@aid("reading the report of {0}", list)
def _read(host: str, text: str) -> list[Answer]:
    report = json.loads(base64.b64decode(text))
    return [Answer(report["host"], report["values"], report["problems"])]


def differences(answers: Sequence[Answer]) -> list[str]:
    """A line for each value that a node has otherwise than the first one that answered, is missing, or is a problem."""
    found = [f"{answer.node}: {problem}" for answer in answers for problem in answer.problems]
    known = [answer for answer in answers if answer.values]
    for name in dict.fromkeys(name for answer in known for name in answer.values):
        group, inner, _ = name.partition("/")
        of = [answer for answer in known if not inner or answer.values.get(group) != MISSING]  # else said of the group
        first, *others = [(answer.node, answer.values.get(name, MISSING)) for answer in of]
        differing = [(node, value) for node, value in others if value != first[1]]
        found += [f"{name} differs: {first[0]} {first[1]}, {node} {value}" for node, value in differing]
        if not differing and first[1] == MISSING:
            found.append(f"{name}: missing on every node")
    return found


def _conclude(answers: Sequence[Answer]) -> None:
    """Prints the table. Raises InputError if there is a difference."""
    known = [answer for answer in answers if answer.values]
    for name, value, nodes in table(known):
        say(f"{name:<24} {value:<48} {nodes}")
    if found := differences(answers):
        error = InputError(f"{len(found)} difference{'s' * (len(found) != 1)} on {len(answers)} node(s); needed: none")
        error.details = found
        raise error
    say(f"{len(answers)} node(s) agree")


def table(known: Sequence[Answer]) -> list[tuple[str, str, str]]:
    """Rows (thing, value of the first node, which nodes have it); packages and files that agree are counted."""
    rows: list[tuple[str, str, str]] = []
    all_of_them = f"{len(known)} of {len(known)}"
    agreeing: dict[str, int] = {}
    for name in dict.fromkeys(name for answer in known for name in answer.values):
        values = [answer.values.get(name, MISSING) for answer in known]
        others = [answer.node for answer, value in zip(known, values, strict=True) if value != values[0]]
        group, inner, _ = name.partition("/")
        if inner and not others:
            agreeing[group] = agreeing.get(group, 0) + 1
        else:
            rows.append((name, values[0], f"differs: {', '.join(others)}" if others else all_of_them))
    return rows + [(f"{group}/*", f"{count} equal", all_of_them) for group, count in agreeing.items()]

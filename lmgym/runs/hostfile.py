"""DeepSpeed's hostfile: one host a line, `node-a slots=8`, the number of its processes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lmgym.errors import InputError, one_line, shown, shown_path

NAME = re.compile(r"(?:[\w.-]+@)?(?!-)[\w.:-]+", re.ASCII)
SLOTS = re.compile(r"slots\s*=\s*(\d+)", re.ASCII)
MOST_SLOTS, MOST_HOSTS = 1024, 4096


class Host(NamedTuple):
    """A host: its name, or USER@NAME, as ssh takes it, and its number of processes."""

    name: str
    slots: int

    @property
    def address(self) -> str:
        """The name without the user."""
        return self.name.rpartition("@")[2]


def read_hostfile(file: str) -> list[Host]:
    """The hosts of a file, in its order: the first one has rank 0. Comments and empty lines are left out.

    Raises InputError for a file that cannot be read, with a detail for each line that is wrong.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
        raise InputError(f"--hostfile {shown_path(file)} {found}; needed: a file with lines such as node-a slots=8")
    hosts: list[Host] = []
    wrong: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"--hostfile {shown_path(file)} is not text; needed: lines such as node-a slots=8") from None
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            host = _read_line(text)
            if isinstance(host, str):
                wrong.append(f"line {number}: {host}")
            elif any(host.address == other.address for other in hosts):
                wrong.append(f"line {number}: {shown(host.name)} is there twice; needed: one line, with all its slots")
            else:
                hosts.append(host)
    if wrong:
        what = f"{len(wrong)} wrong line{'s' * (len(wrong) != 1)}"
        error = InputError(f"--hostfile {shown_path(file)} has {what}; needed: lines such as node-a slots=8")
        error.details = wrong
        raise error
    if not hosts:
        raise InputError(f"--hostfile {shown_path(file)} has no host; needed: lines such as node-a slots=8")
    return hosts


def _read_line(text: str) -> Host | str:
    """The host of a line, or why it has none. Words after the slots, such as MPI's max_slots=8, are not read."""
    name, *words = text.split(maxsplit=1)
    rest = words[0] if words else ""
    match = SLOTS.match(rest)
    if not NAME.fullmatch(name):
        return f"{shown(name)} is no host's name"
    if match is None:
        found = f"has {shown(one_line(rest))}" if rest else "has no slots"
        return f"{shown(name)} {found}; needed: slots=N after the name, the number of its processes"
    slots = int(match[1])
    if not 1 <= slots <= MOST_SLOTS:
        return f"{shown(name)} has slots={slots}; needed: 1 to {MOST_SLOTS}"
    return Host(name, slots)


def choose_hosts(hosts: Sequence[Host], nodes: int | None, servers: int, processes: int | None) -> list[Host]:
    """The first `nodes` hosts, with `servers` more after them for vLLM; each with `processes` slots, or all its own.

    None: all hosts are used. Raises InputError for more hosts, or more slots of a training host, than there are.
    """
    trained = len(hosts) - servers if nodes is None else nodes
    if trained < 1 or trained + servers > len(hosts):
        training = "one that trains" if nodes is None else f"--nodes {nodes}"
        also = f" and --vllm_nodes {servers}" if servers else ""
        raise InputError(f"{training}{also} are more than the hostfile's {len(hosts)} host(s); needed: at most those")
    chosen = list(hosts[: trained + servers])
    if processes is not None:
        if small := next((host for host in chosen[:trained] if host.slots < processes), None):
            raise InputError(f"--num_gpus {processes}, and {small.name} has slots={small.slots}; needed: at most those")
        chosen = [Host(host.name, min(processes, host.slots)) for host in chosen]
    return chosen

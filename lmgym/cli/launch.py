"""`lmgym launch`: an experiment on this machine, on the hosts of a hostfile over ssh, or as a job of Slurm."""

import os
import shlex
import sys
import zlib
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click

from lmgym.config import Range
from lmgym.console import say
from lmgym.errors import InputError, shown
from lmgym.runs.forwarding import forwarded
from lmgym.runs.hostfile import MOST_HOSTS, MOST_SLOTS, choose_hosts, read_hostfile
from lmgym.runs.launch import launch
from lmgym.runs.launching import (
    FORMS,
    choose_experiment,
    find_experiment,
    launch_experiment,
    refuse_wrong_deepspeed,
)

SETTINGS = {"ignore_unknown_options": True, "token_normalize_func": lambda name: name.replace("-", "_")}
DRY_RUN = {"--dry_run", "--dry-run", "--dry_run=true", "--dry_run=True"}
MOST_CORES = 4096
FIRST_PORT, PORTS = 20000, 10000  # below those that Linux gives to connections


@dataclass(frozen=True)
class Nodes:
    """The options of `lmgym launch` that are about nodes, as they were given."""

    hostfile: str | None = None
    slurm: bool = False
    submit: bool = False
    nodes: int | None = None
    num_gpus: int | None = None
    vllm_nodes: int = 0
    vllm_flags: str = ""
    master_port: int | None = None
    job_name: str | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    sbatch: tuple[str, ...] = ()
    grace: int = 120

    @property
    def several(self) -> bool:
        """True for a hostfile or Slurm."""
        return self.slurm or self.hostfile is not None


@click.command(name="launch", context_settings=SETTINGS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[train STAGE] EXPERIMENT [FLAGS]...")
@click.option("--num_gpus", type=int, metavar="N", help="processes a node  [default: its slots, its GPUs, or 1]")
@click.option("--hostfile", metavar="FILE", help="hosts to start on over ssh, a line each: node-a slots=8")
@click.option("--slurm", is_flag=True, help="as a job of Slurm")
@click.option("--submit", is_flag=True, help="start it; without this, commands or batch file are printed only")
@click.option(
    "--nodes",
    type=click.IntRange(1, MOST_HOSTS),
    metavar="N",
    help="nodes that train  [default: all of the hostfile, less --vllm_nodes]",
)
@click.option(
    "--vllm_nodes",
    type=click.IntRange(0, MOST_HOSTS),
    default=0,
    metavar="N",
    help="further nodes, with vLLM servers that it samples on",
)
@click.option("--vllm_flags", default="", metavar="TEXT", help="for these servers, such as '--tensor-parallel-size 8'")
@click.option(
    "--master_port",
    type=click.IntRange(1, 65534),
    metavar="N",
    help="of the first host  [default: 20000 to 29999, by the command]",
)
@click.option(
    "--job_name",
    metavar="NAME",
    help="of the job, its batch file and log  [default: the experiment's]",
)
@click.option(
    "--gpus_per_node",
    type=click.IntRange(1, MOST_SLOTS),
    metavar="N",
    help="GPUs to ask Slurm for, with a process each",
)
@click.option(
    "--cpus_per_task", type=click.IntRange(1, MOST_CORES), metavar="N", help="CPU cores of a node to ask Slurm for"
)
@click.option("--time", metavar="TIME", help="of the Slurm job, as 12:00:00")
@click.option("--partition", metavar="NAME", help="nodes of Slurm to choose from")
@click.option("--sbatch", multiple=True, metavar="SETTING", help="another #SBATCH line, as account=abc; repeatable")
@click.option("--grace", type=click.IntRange(60, 86400), default=120, show_default=True, metavar="SECONDS",
        help="before a Slurm job's time ends: it saves and goes back into the queue")  # fmt: skip
def launch_command(words: tuple[str, ...], **given) -> None:
    """Run an experiment here, on the hosts of a hostfile, or as a job of Slurm.

    \b
    lmgym launch mine.py --learning_rate 1e-5            on this machine
    lmgym launch --hostfile hosts train reward pairs.jsonl --model PATH
    lmgym launch --slurm --nodes 2 --gpus_per_node 8 --time 12:00:00 train dpo pairs.jsonl --model PATH

    What follows `lmgym train` may follow here, and so may a file or the name of an experiment. deepspeed runs it if
    FLAGS have --deepspeed, torchrun if there are several processes, else python; under Slurm always torchrun.

    With --hostfile or --slurm the commands or the batch file are printed, and started with --submit; --dry_run compares
    the nodes instead: paths, commit, versions, model and data.
    """
    nodes = Nodes(**given)
    launch(lambda: launch_words(words, nodes))


def launch_words(words: Sequence[str], nodes: Nodes) -> None:
    """Runs, prints or checks what `lmgym launch` was given. Raises InputError."""
    if nodes.several:
        launch_on_nodes(words, nodes)
    else:
        for name, value in vars(nodes).items():
            if name != "num_gpus" and value != vars(Nodes())[name]:
                raise InputError(f"--{name} is for several nodes; needed with it: --hostfile FILE, or --slurm")
        file, flags = find(words)
        launch_experiment(file, flags, nodes.num_gpus)


def launch_on_nodes(words: Sequence[str], nodes: Nodes) -> None:
    """The same on nodes. Raises InputError for options that do not fit together."""
    if nodes.slurm and nodes.hostfile:
        raise InputError("--hostfile and --slurm: both choose the nodes; needed: one of them")
    if unused := [name for name in SLURM_ONLY if not nodes.slurm and vars(nodes)[name] != vars(Nodes())[name]]:
        raise InputError(f"--{unused[0]} is for Slurm; needed: --slurm in place of --hostfile, or without it")
    if nodes.num_gpus is not None:
        Range(1, MOST_SLOTS).check("num_gpus", nodes.num_gpus)
    dry = bool(DRY_RUN & set(words))
    with redirect_stdout(sys.stderr):  # which experiment runs is no line of a batch file
        file, flags = find([word for word in words if word not in DRY_RUN])
    refuse_wrong_deepspeed(flags)
    if nodes.vllm_nodes and value_of(flags, "engine"):
        raise InputError("--vllm_nodes and --engine; needed: --vllm_nodes alone, which sets --engine vllm:URL,URL")
    script = [str(file.absolute()), *flags]
    on_slurm(script, nodes, dry) if nodes.slurm else on_hostfile(script, nodes, dry)


SLURM_ONLY = ("job_name", "gpus_per_node", "cpus_per_task", "time", "partition", "sbatch", "grace")


def find(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The experiment's file and its flags, of words as after `lmgym train`, or of a file or name and flags."""
    if words[0] != "train":
        return find_experiment(words[0]), list(words[1:])
    if len(words) < 3 or words[1] not in FORMS:
        found = shown(words[1]) if len(words) > 1 else "nothing"
        stages = ", ".join(FORMS)
        raise InputError(f"found {found} after train; needed: one of {stages}, then an experiment, data or flags")
    return choose_experiment(words[1], words[2:])


def on_hostfile(script: Sequence[str], given: Nodes, dry: bool) -> None:
    """Prints the commands of all hosts, runs or checks them. Ends this process with the run's exit code."""
    from lmgym.runs.node_check import check_hosts
    from lmgym.runs.on_hosts import HostsRun, run_on_hosts, show_commands

    hosts = choose_hosts(read_hostfile(given.hostfile or ""), given.nodes, given.vllm_nodes, given.num_gpus)
    count = len(hosts) - given.vllm_nodes
    trainers, servers = hosts[:count], hosts[count:]
    # the same for the same command, so that --dry_run checks the port that the run will have
    port = given.master_port or FIRST_PORT + zlib.crc32(shlex.join([os.getcwd(), *script]).encode()) % PORTS
    environment = forwarded()
    if dry:
        return check_hosts(hosts, script, Path.cwd(), port, environment)
    serve: list[str] = []
    if servers:
        serve = [*serve_command(script, given), "--host", "0.0.0.0", "--port", str(port + 1)]
        script = [*script, "--engine", "vllm:" + ",".join(f"http://{host.address}:{port + 1}" for host in servers)]
    environment[AS_GIVEN] = shlex.join(["lmgym", *sys.argv[1:]])
    run = HostsRun(trainers, servers, script, Path.cwd(), port, environment, serve)
    show_commands(run)
    if not given.submit:
        return say("run each on its host, or the same command with --submit, which starts them over ssh")
    if code := run_on_hosts(run):
        raise SystemExit(code)
    return None


AS_GIVEN = "LMGYM_LAUNCH"
"""the variable of a run's processes with the command that started them on all nodes"""


def on_slurm(script: Sequence[str], given: Nodes, dry: bool) -> None:
    """Prints the batch file, and submits it or checks the nodes."""
    from lmgym.runs.node_check import check_slurm
    from lmgym.runs.slurm import JOB_NAME, SlurmJob, submit

    count = 1 if given.nodes is None else given.nodes
    processes = given.num_gpus or given.gpus_per_node or 1
    name = given.job_name or Path(script[0]).stem
    if not JOB_NAME.fullmatch(name):
        raise InputError(f"--job_name {shown(name)}; needed: letters, digits, points, hyphens and underscores")
    settings = slurm_settings(given)
    if dry:
        return check_slurm(count + given.vllm_nodes, script, Path.cwd(), processes, settings)
    serve = serve_command(script, given) if given.vllm_nodes else []
    environment = forwarded() | {AS_GIVEN: shlex.join(["lmgym", *sys.argv[1:]])}
    job = SlurmJob(
        name, count, processes, sys.executable, script, Path.cwd(), environment, settings, given.grace,
        given.vllm_nodes, serve,
    )  # fmt: skip
    for line in job.text().splitlines():
        say(line)
    if not given.gpus_per_node:
        say("this asks Slurm for no GPU: --gpus_per_node N does", error=True)
    if not given.submit:
        return say(f"save it, make the folder {job.log.parent} and run sbatch; --submit does so", error=True)
    number = submit(job)
    say(f"job {number}, of {job.file}; its log will be {str(job.log).replace('%j', number)}", error=True)
    return None


def slurm_settings(given: Nodes) -> dict[str, str]:
    """The #SBATCH lines that were asked for. Raises InputError for one that is no setting."""
    from lmgym.runs.slurm import JOB_NAME

    settings = {
        name.replace("_", "-"): str(vars(given)[name])
        for name in ("partition", "time", "gpus_per_node", "cpus_per_task")
        if vars(given)[name] is not None
    }
    for line in given.sbatch:
        name, _, value = line.strip().removeprefix("--").partition("=")
        if not JOB_NAME.fullmatch(name):
            raise InputError(f"--sbatch {shown(line)} is no setting; needed: NAME=VALUE, such as account=abc")
        settings[name] = value
    return settings


def serve_command(script: Sequence[str], given: Nodes) -> list[str]:
    """`lmgym engine serve` of the model that trains, without host and port. Raises InputError without --model."""
    model = value_of(script[1:], "model")
    if not model:
        raise InputError("--vllm_nodes without --model; needed: --model PATH after the experiment, which vLLM serves")
    rank = value_of(script[1:], "lora_rank")
    adapters = ["--max_lora_rank", rank] if rank else []
    return [sys.executable, "-m", "lmgym.cli.main", "engine", "serve", model, *adapters, *shlex.split(given.vllm_flags)]


def value_of(flags: Sequence[str], name: str) -> str:
    """The last value of a flag; empty if it is not there."""
    value = ""
    for flag, following in pairwise([*flags, ""]):
        word, equals, given = flag.partition("=")
        if word.replace("-", "_") == f"__{name}":
            value = given if equals else following
    return value

"""A Slurm batch file: one launcher a node, and a job that goes back into the queue before its time ends."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmgym.errors import InputError, one_line, shown
from lmgym.runs.forwarding import public, secret_names
from lmgym.runs.on_hosts import folded

FOLDER = Path("outputs/slurm")
SECONDS_LEFT = 30  # of the grace, for Slurm to put the job back
JOB_NAME = re.compile(r"[\w.-]+", re.ASCII)
STOPPING = """\
# {grace} seconds before the job's time ends all processes of the run get USR1, for a checkpoint; torchrun itself
# ignores it. Then the job goes back into the queue, and the same command resumes the run.
stopping=
trap 'stopping=yes; scancel --signal=USR1 "$SLURM_JOB_ID"' USR1
"""
RUNNING = """\
srun --nodes={nodes} --ntasks={nodes}{where} --kill-on-bad-exit=1 bash -c '
    trap "" USR1
    exec "$python" -m torch.distributed.run --nnodes {nodes} --nproc_per_node {processes} \\
        --node_rank "$SLURM_PROCID" --master_addr "$head" --master_port "$port" "$@"' run \\
"""
ENDING = """\
wait "$run"; status=$?
if [ -n "$stopping" ]; then
    for _ in $(seq {seconds}); do kill -0 "$run" 2> /dev/null || break; sleep 1; done
    if kill -0 "$run" 2> /dev/null || ! wait "$run"; then
        echo "$SLURM_JOB_ID goes back into the queue"
        scontrol requeue "$SLURM_JOB_ID"
        sleep 60
    fi
    exit 0
fi
exit "$status"
"""
SERVING = """\
# vLLM runs on the last {servers} node(s); anyone who reaches its port can change its weights
server_port=$((port + 1))
srun --nodes={servers} --ntasks={servers} --nodelist="$(IFS=,; echo "${{nodes[*]:{nodes}}}")" \\
    bash -c 'trap "" USR1; exec "$@"' serve \\
{command} &
servers=$!
urls=
for node in "${{nodes[@]:{nodes}}}"; do
    until (exec 3<> "/dev/tcp/$node/$server_port") 2> /dev/null; do
        kill -0 "$servers" 2> /dev/null || {{ echo "vLLM on $node has ended"; exit 69; }}
        sleep 5
    done
    urls="$urls${{urls:+,}}http://$node:$server_port"
done
"""


@dataclass(frozen=True)
class SlurmJob:
    """A run as a job of Slurm: `nodes` train with `processes` each, `servers` more run vLLM."""

    name: str
    nodes: int
    processes: int
    python: str
    script: Sequence[str]
    """the experiment's file and its flags"""
    folder: Path
    environment: Mapping[str, str]
    settings: Mapping[str, str]
    """of #SBATCH lines: time, partition, gpus-per-node, ...; an empty value is a switch"""
    grace: int = 120
    """seconds before the end of the job's time at which it saves and goes back into the queue"""
    servers: int = 0
    serve: Sequence[str] = ()
    """`lmgym engine serve MODEL` without host and port"""

    @property
    def log(self) -> Path:
        """The log, whose %j is the job's id; a job that goes back into the queue appends to it."""
        return self.folder / FOLDER / f"{self.name}.%j.log"

    @property
    def file(self) -> Path:
        """The path of the batch file."""
        return self.folder / FOLDER / f"{self.name}.sbatch"

    def text(self) -> str:
        """The batch file."""
        parts = [self._head(), self._environment(), STOPPING.format(grace=self.grace)]
        if self.servers:
            command = _lines([*self.serve, "--host", "0.0.0.0"], '--port "$server_port"')
            parts.append(SERVING.format(servers=self.servers, nodes=self.nodes, command=command))
        return "\n".join([*parts, self._run(), ENDING.format(seconds=max(1, self.grace - SECONDS_LEFT))])

    def _head(self) -> str:
        settings = {
            "job-name": self.name,
            "nodes": str(self.nodes + self.servers),
            "ntasks-per-node": "1",
            "output": str(self.log),
            "open-mode": "append",
            "requeue": "",
            "signal": f"B:USR1@{self.grace}",
            **self.settings,
        }
        lines = [f"#SBATCH --{name}{'=' * bool(value)}{_quoted(value)}" for name, value in settings.items()]
        return "\n".join(["#!/bin/bash", *lines, ""])

    def _environment(self) -> str:
        lines = ["set -u", f"cd {shlex.quote(str(self.folder))} || exit 2"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in public(self.environment).items()]
        if secrets := secret_names(self.environment):
            lines.append(f"# with the environment of sbatch: {', '.join(secrets)}")
        if "cpus-per-task" in self.settings:
            lines.append('export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun does not read it otherwise')
        lines += [
            'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            'export head="${nodes[0]}" port=$((20000 + SLURM_JOB_ID % 10000))  # two jobs may share a node',
            f"export python={shlex.quote(self.python)}",
            "",
        ]
        return "\n".join(lines)

    def _run(self) -> str:
        where = f' --nodelist="$(IFS=,; echo "${{nodes[*]:0:{self.nodes}}}")"' if self.servers else ""
        end = '--engine "vllm:$urls" &' if self.servers else "&"
        script = RUNNING.format(nodes=self.nodes, where=where, processes=self.processes)
        return f"{script}{_lines(self.script, end)}\nrun=$!\n"


def _quoted(value: str) -> str:
    """A value of an #SBATCH line."""
    return f'"{value}"' if re.search(r"\s", value) else value


def _lines(command: Sequence[str], end: str) -> str:
    """The lines of a command in the batch file, and what follows it."""
    lines = [line.removesuffix(" \\").strip() for line in folded(command)]
    return " \\\n".join(f"    {line}" for line in [*lines[:-1], f"{lines[-1]} {end}"])


def submit(job: SlurmJob) -> str:
    """Writes the batch file and gives it to sbatch; the job's id. Raises InputError with what Slurm says against it."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise InputError("there is no sbatch here; needed: a machine with Slurm's commands, or no --submit")
    job.file.parent.mkdir(parents=True, exist_ok=True)
    job.file.write_text(job.text(), encoding="utf-8")
    environment = {**os.environ, **job.environment}
    done = subprocess.run([sbatch, "--parsable", str(job.file)], capture_output=True, text=True, env=environment)
    if done.returncode:
        said = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines())
        raise InputError(f"sbatch refused {shown(str(job.file))}: {one_line(said, 300)}")
    return done.stdout.strip().partition(";")[0]

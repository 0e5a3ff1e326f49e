"""The reward server under 1, 16 and 256 clients over loopback: latency, replies a second, processor time a reply.

    .venv/bin/python benchmarks/serving_load.py SCORER      # writes benchmarks/results/serving.json

Each client sends one request after another for some seconds: single replies as OpenRLHF does, and batches of 16 as TRL
does, to one conversation each. While 16 clients ask, the scorer is loaded again once. The server is a process of its
own; the clients are threads of this one, and share its processors.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from shared import ROOT, describe_machine, write_result

CLIENTS, BATCHES = (1, 16, 256), (1, 16)
WORDS = ["tea", "money", "sleep", "garden", "train", "music", "winter", "cooking", "friend", "letter"]


def start(scorer: str, *options: str) -> tuple[subprocess.Popen, int]:
    """(the server's process, its port) once it answers."""
    command = [sys.executable, "-m", "lmgym", "serve", "rewards", f"scorer={scorer}", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout
    for line in process.stdout:
        if " answers " in line:
            return process, int(line.split()[0].rpartition(":")[2])
    raise SystemExit("the server did not start")


def processor_seconds(process: subprocess.Popen) -> float:
    """Of the server so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(process: subprocess.Popen) -> float:
    """Resident memory of the server."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def body_of(client: int, request: int, batch: int) -> bytes:
    """A request: replies of about 30 words to one question."""
    question = f"What do you think of {WORDS[client % 10]} and {WORDS[request % 10]}, number {client}?"
    replies = [" ".join(WORDS[(request + i + j) % 10] for j in range(30)) for i in range(batch)]
    return json.dumps({"conversations": [{"prompt": question, "reply": reply} for reply in replies]}).encode()


def ask_for(seconds: float, port: int, client: int, batch: int, taken: list[float], statuses: list[int]) -> None:
    """Sends requests one after another, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    end, request = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        began = time.monotonic()
        connection.request("POST", "/v1/score", body_of(client, request, batch))
        answer = connection.getresponse()
        answer.read()
        taken.append(time.monotonic() - began)
        statuses.append(answer.status)
        request += 1
    connection.close()


def measure(process: subprocess.Popen, port: int, clients: int, batch: int, seconds: float, reload: bool) -> dict:
    """Figures of so many clients."""
    taken: list[float] = []
    statuses: list[int] = []
    threads = [
        threading.Thread(target=ask_for, args=(seconds, port, client, batch, taken, statuses))
        for client in range(clients)
    ]
    began, processor = time.monotonic(), processor_seconds(process)
    for thread in threads:
        thread.start()
    if reload:
        time.sleep(seconds / 2)
        process.send_signal(signal.SIGHUP)
    for thread in threads:
        thread.join()
    wall = time.monotonic() - began
    replies = batch * len(taken)
    return {
        "clients": clients,
        "replies_a_request": batch,
        "requests": len(taken),
        "answered": statuses.count(200),
        "refused_503": statuses.count(503),
        "p50_ms": round(float(np.percentile(taken, 50)) * 1e3, 2),
        "p99_ms": round(float(np.percentile(taken, 99)) * 1e3, 2),
        "replies_a_second": round(replies / wall, 1),
        "server_cpu_ms_a_reply": round((processor_seconds(process) - processor) / replies * 1e3, 3),
        "memory_mb": round(memory_mb(process)),
        "reloaded": reload,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scorer", help="folder of a scorer")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number of clients")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/serving.json")
    arguments = parser.parse_args()
    process, port = start(arguments.scorer)
    try:
        measure(process, port, 4, 4, 2.0, False)  # warm
        rows = [
            measure(process, port, clients, batch, arguments.seconds, reload)
            for batch in BATCHES
            for clients in CLIENTS
            for reload in ((False, True) if clients == 16 else (False,))
        ]
    finally:
        process.terminate()
        process.wait()
    weights = sum(path.stat().st_size for path in Path(arguments.scorer).glob("*.safetensors"))
    found = {
        "weights_mb": round(weights / 1e6, 1),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": describe_machine(),
        "rows": rows,
    }
    write_result(arguments.output, found)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()

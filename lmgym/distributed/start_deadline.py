"""A deadline for the start: all ranks arrive and are connected, or every rank ends and one says which is missing.

Design decisions:
- Ranks write that they have arrived, and later that they are connected, to a store of their own at the master's
  address, under torchrun the agent's. Torch's own store waits for 30 minutes and does not know who is missing.
- While gloo or NCCL connect, the main thread is inside the library: a second thread watches, and ends the process.
- A rank that fails says so in the store, so that the others do not wait for it until the deadline. It ends after they
  have heard it, because the store may end with it.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn, final

import torch.distributed as dist

from lmgym.console import say
from lmgym.errors import STALLED, RunStopped, listed, one_line

ARRIVE_SECONDS = 600.0
"""torch's own limit for NCCL: the nodes of a large job do not start at once"""
CONNECT_SECONDS = 120.0
"""once all have arrived"""
POLL_SECONDS = 0.5
HEAD_START_SECONDS = 3.0  # of the rank that speaks: a launcher kills the others once one has ended
HEARD_SECONDS = 10.0
"""a rank that cannot listen, because a library holds it, is not waited for longer"""
FAILED, ARRIVALS = "failed", "arrivals"


def agent_has_store() -> bool:
    """True under torchrun, whose agent listens at the master's address in rank 0's place."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@contextmanager
def deadline(
    rank: int, ranks: int, arrive: float = ARRIVE_SECONDS, connect: float = CONNECT_SECONDS
) -> Iterator[Callable[[], None]]:
    """Within it the ranks connect with each other, within `connect` seconds once all have arrived, in `arrive` seconds.
    Call what it yields when this rank is connected, and then wait for the others.

    Raises RunStopped (exit 70) for a rank that did not arrive and for an error within it; ends the process with 70,
    after a line on it, if it takes too long or another rank has failed. Collective.
    """
    start = _Start(rank, ranks, arrive)
    start.wait_for_all(arrive)
    watch = threading.Thread(target=start.watch, args=(connect,), name="start", daemon=True)
    watch.start()
    try:
        yield start.note_connected
    except RuntimeError as error:  # of torch.distributed, gloo and NCCL
        start.fail(error)
    start.over.set()
    watch.join()


@final
class _Start:
    """This rank's part: its place in the store, and the others' that it reads there."""

    def __init__(self, rank: int, ranks: int, seconds: float) -> None:
        self._rank, self._ranks = rank, ranks
        self.over = threading.Event()
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agents = agent_has_store()
        self._at = f"{host}:{port}"
        try:
            store = dist.TCPStore(
                host,
                port,
                world_size=ranks,
                is_master=rank == 0 and not agents,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
                multi_tenant=True,  # torch's own store has the same address
            )
        except dist.DistError as error:
            if rank == 0 and not agents:
                why = f"rank 0 cannot listen at {self._at} ({_reason(error)}); needed: a free port (--master_port)"
                raise self._stopped(why) from None
            why = f"{self._name(rank, _host())} did not reach rank 0 at {self._at} ({_reason(error)})"
            raise self._stopped(f"{why}; needed: {_cause()}") from None
        self._store = dist.PrefixStore(f"lmgym/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def wait_for_all(self, seconds: float) -> None:
        """Waits until all ranks have arrived. Raises RunStopped with the numbers of the others."""
        try:
            self._wait_for_all(seconds)
        except dist.DistError as error:  # the store was rank 0's
            why = f"rank 0 at {self._at} has ended before all ranks had arrived ({_reason(error)}); see its output"
            raise self._stopped(why) from None

    def _wait_for_all(self, seconds: float) -> None:
        self._store.set(f"arrived/{self._rank}", f"{_host()} {_own_address()}")
        count, until = self._store.add(ARRIVALS, 1), time.monotonic() + seconds
        while count < self._ranks:
            if failed := self._failure():
                self._let_first_speak([0])
                raise self._stopped(failed)
            if time.monotonic() > until:
                missing = [rank for rank in range(self._ranks) if not self._has(f"arrived/{rank}")]
                self._let_first_speak([rank for rank in range(self._ranks) if rank not in missing])
                why = (
                    f"rank{'s' * (len(missing) > 1)} {listed(map(str, missing))} of {self._ranks} did not arrive at "
                    f"{self._at} within {seconds:.0f} s; needed: the same start on every host, and this port open "
                    "between them; the output of the hosts without a rank may say why"
                )
                self._tell(why)
                raise self._stopped(why)
            time.sleep(POLL_SECONDS)
            count = self._store.add(ARRIVALS, 0)

    def watch(self, seconds: float) -> None:
        """Ends this process if another rank fails, or if `over` is not set in time. For a thread of its own."""
        until = time.monotonic() + seconds
        while not self.over.wait(POLL_SECONDS):
            try:
                failed = self._failure()
            except RuntimeError:  # the store was rank 0's
                if not self.over.wait(HEAD_START_SECONDS):
                    self._end(f"rank 0 at {self._at} has ended during the start; see its output")
                return
            if failed:
                self._let_first_speak([0])
                self._end(failed)
            if time.monotonic() > until:
                self._end(self._not_connected(seconds))

    def fail(self, error: RuntimeError) -> NoReturn:
        """Tells the others of an error of this rank. Raises RunStopped."""
        self.over.set()
        why = f"{self._name(self._rank, _host())} could not connect with the others ({_reason(error)})"
        with suppress(RuntimeError):
            why += f"; {self._advice()}"
            self._tell(why)
        raise self._stopped(why) from error

    def _tell(self, why: str) -> None:
        self._store.set(FAILED, why)
        others = [rank for rank in range(self._ranks) if rank != self._rank and self._has(f"arrived/{rank}")]
        until = time.monotonic() + HEARD_SECONDS
        while not all(self._has(f"heard/{rank}") for rank in others) and time.monotonic() < until:
            time.sleep(POLL_SECONDS / 10)

    def note_connected(self) -> None:
        """Tells the others that this rank is connected."""
        self._store.set(f"connected/{self._rank}", "")

    def _not_connected(self, seconds: float) -> str:
        try:
            places = self._places()
            missing = [rank for rank in range(self._ranks) if not self._has(f"connected/{rank}")]
            self._let_first_speak(missing)
            names = listed(self._name(rank, places[rank][0]) for rank in missing)
            return f"not connected {seconds:.0f} s after all have arrived: {names}; {self._advice()}"
        except RuntimeError:
            return f"not connected within {seconds:.0f} s, and rank 0 is gone; needed: {_cause()}"

    def _advice(self) -> str:
        places = self._places()
        hosts = {host for host, _ in places}
        loops = sorted({f"{host} to {address}" for host, address in places if address.startswith("127.")})
        if len(hosts) > 1 and loops and "GLOO_SOCKET_IFNAME" not in os.environ:
            return f"a host's own name leads to itself alone ({listed(loops)} in /etc/hosts); needed: {_cause()}"
        return f"needed: {_cause()}"

    def _places(self) -> list[tuple[str, str]]:
        """Host and own address of every rank."""
        texts = [self._get(f"arrived/{rank}") for rank in range(self._ranks)]
        return [(host, address) for host, _, address in (text.partition(" ") for text in texts)]

    def _let_first_speak(self, ranks: list[int]) -> None:
        """Ends this process with 70, after the first of some ranks, unless it is that one or one before it."""
        if self._rank != min([*ranks, self._rank]):
            time.sleep(HEAD_START_SECONDS)
            os._exit(STALLED)

    def _end(self, why: str) -> NoReturn:
        with suppress(OSError, ValueError):  # a closed terminal
            say(f"error: {why}", error=True)
        sys.stdout.flush()
        time.sleep(2 * POLL_SECONDS)
        os._exit(STALLED)

    def _has(self, key: str) -> bool:
        return self._store.check([key])

    def _failure(self) -> str:
        """The failure that another rank has told, which then knows that this rank has heard it; empty if none."""
        if failed := self._get(FAILED):
            self._store.set(f"heard/{self._rank}", "")
        return failed

    def _get(self, key: str) -> str:
        return self._store.get(key).decode(errors="replace") if self._has(key) else ""

    def _name(self, rank: int, host: str) -> str:
        return f"rank {rank} of {self._ranks} ({host})"

    def _stopped(self, why: str) -> RunStopped:
        stopped = RunStopped(why, "failed", STALLED)
        stopped.alone = True  # no collective tells the others
        return stopped


def _cause() -> str:
    return (
        "no line 127.0.1.1 with a host's own name in /etc/hosts, or the interface between the hosts, as "
        "GLOO_SOCKET_IFNAME=eth0 and NCCL_SOCKET_IFNAME=eth0 on each (docs/many_nodes.md)"
    )


def _reason(error: RuntimeError) -> str:
    """The message of a library without the stack that follows it."""
    return one_line(str(error).partition("Exception raised from")[0], 200)


def _host() -> str:
    return one_line(socket.gethostname(), 60)


def _own_address() -> str:
    """The address to which this host's own name leads: the one that gloo gives to the others."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""

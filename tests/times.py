"""Which tests, fixtures and imports take the time of a suite: `make test-times`, or PYTHONPATH=tests and `-p times`.

CPU seconds are those of a worker and of all that it started; what it waited is in the second column. Each second counts
once: what a test imports, or a fixture that is set up for it, is not the test's. The parameters of a test are one line.
The longest lines are printed, all are in build/times.tsv.
"""

import importlib.machinery
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

LINES = 40  # of a table
FILE = Path(__file__).parents[1] / "build/times.tsv"  # CPU seconds, seconds, calls and name
_spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
"""CPU seconds, seconds and calls by name: "FILE::TEST", "FILE::fixture NAME", "import PACKAGE" """
_within: list[list[float]] = []
"""of each measurement that is open: CPU seconds and seconds of those inside it"""
_load = importlib.machinery.SourceFileLoader.exec_module


def cpu_seconds(process: str = "self") -> float:
    """Of a process, of those that it waited for, and of all that run below it."""
    total = sum(os.times()[2:4]) + time.process_time() if process == "self" else 0.0
    with suppress(OSError):  # one that ends meanwhile: its parent has its seconds
        if process != "self":
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            total += sum(map(cpu_seconds, children.read_text().split()))
    return total


@contextmanager
def measured(name: str) -> Iterator[None]:
    start = cpu_seconds(), time.monotonic()
    _within.append([0.0, 0.0])
    try:
        yield
    finally:
        passed, inner, spent = (cpu_seconds() - start[0], time.monotonic() - start[1]), _within.pop(), _spent[name]
        spent[2] += 1
        for i in (0, 1):
            spent[i] += passed[i] - inner[i]
            if _within:
                _within[-1][i] += passed[i]


def _measured_load(loader, module) -> None:
    if threading.current_thread() is not threading.main_thread():
        return _load(loader, module)
    with measured(f"import {module.__name__.partition('.')[0]}"):
        return _load(loader, module)


importlib.machinery.SourceFileLoader.exec_module = _measured_load


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with measured("collection"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with measured(f"{item.nodeid.partition('::')[0]}::setup and teardown"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    with measured(f"{fixturedef.baseid or 'tests/conftest.py'}::fixture {fixturedef.argname}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with measured(item.nodeid.partition("[")[0]):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["times"] = dict(_spent)


def pytest_testnodedown(node) -> None:
    for name, spent in getattr(node, "workeroutput", {}).get("times", {}).items():
        _spent[name] = [a + b for a, b in zip(_spent[name], spent, strict=True)]


def pytest_terminal_summary(terminalreporter) -> None:
    def table(title: str, group) -> None:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for name, spent in _spent.items():
            sums[group(name)] = [a + b for a, b in zip(sums[group(name)], spent, strict=True)]
        terminalreporter.section(f"{title}: CPU seconds, waited, calls; {len(sums)} in all")
        for name, (cpu, wall, calls) in sorted(sums.items(), key=lambda item: -item[1][0])[:LINES]:
            terminalreporter.write_line(f"{cpu:8.1f} {max(0.0, wall - cpu):8.1f} {calls:6.0f}  {name}")

    rows = sorted(_spent.items(), key=lambda item: -item[1][0])
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("".join(f"{cpu:.3f}\t{wall:.3f}\t{calls}\t{name}\n" for name, (cpu, wall, calls) in rows))
    table("by cause", lambda name: name)
    table("by file", lambda name: name.partition("::")[0])
    table("by folder", lambda name: name.partition("::")[0].rpartition("/")[0] or name.partition(" ")[0])
    table("in all", lambda _: "all workers")

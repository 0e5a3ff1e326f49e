"""Small faults put into the code one at a time: how many of them do the tests find?

    python tests/mutants.py --output before.json [--seed 53] [--number 60] [--without PATTERN ...]
    python tests/mutants.py --root CHECKOUT --mutants before.json --output after.json

The first form draws mutants; the second repeats them on another state of the code. A mutant changes one line within a
function: an operator, a number, a truth value, a test, a bound of a slice, `min` or `max`, or what is returned. It is
drawn uniformly over the nodes of the syntax tree that allow such a change, in the stages and in lmgym without apps and
experiments; messages, annotations, decorators, `__init__` and `if TYPE_CHECKING` are left out. Files may move between
the states: a mutant is found again by its function and the text of its line.

The tests of a module are the files below tests/unit that import it (`from package.module import`, `import
package.module`, or the package if that hands its names on) or are called test_MODULE.py in its mirrored folder;
without any, those of the mirrored folder or the nearest above. They run by mirrored name, mirrored folder, others; as
many whole files as pass in CAP seconds are used. If they fail on unchanged code, another mutant is drawn. A mutant is
found if a test fails or takes too long.
"""

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

PACKAGES = ("lmgym", "sft", "reward_models", "preferences", "ppo")
CAP, LONGEST = 120, 300  # seconds of the tests of a module, and of one mutant
PAIRS = "<: <=, >: >=, ==: !=, is: is not, in: not in, and: or, +: -, *: /, +=: -=, *=: /="
SWAPS = dict(pair.split(": ") for pair in PAIRS.split(", "))
SWAPS |= {new: old for old, new in SWAPS.items()}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Mutant = dict[str, Any]
Edit = tuple[int, int, int, str]  # number of a line, its bytes [start, end), and what takes their place


def within(node: ast.AST, name: str = "", function: Function | None = None) -> Iterator[tuple[str, Function, ast.AST]]:
    """Nodes at which a mutant may change something, each with the innermost function around it and its full name."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            guard = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr) or guard:
                continue
            if isinstance(child, Function | ast.ClassDef):
                inner = child if isinstance(child, Function) else function
                yield from within(child, f"{name}.{child.name}".lstrip("."), inner) if child.name != "__init__" else ()
                continue
            if function is not None:
                yield name, function, child
            yield from within(child, name, function)


def edit_of(node: Any, lines: list[bytes]) -> Edit | None:
    """The change of a node, if it has one that touches a single line."""

    def between(first: ast.expr, second: ast.expr) -> Edit | None:
        start, end = first.end_col_offset or 0, second.col_offset
        text = lines[second.lineno - 1][start:end].decode() if first.end_lineno == second.lineno else ""
        operator = text.strip("() ")
        return (second.lineno, start, end, text.replace(operator, SWAPS[operator])) if operator in SWAPS else None

    def instead(part: ast.expr, new: str) -> Edit | None:
        start, end = part.col_offset, part.end_col_offset or 0
        text = lines[part.lineno - 1][start:end].decode()
        return (part.lineno, start, end, new.replace("OLD", text)) if part.lineno == part.end_lineno else None

    match node:
        case ast.BinOp(left=a, right=b) if {type(getattr(p, "value", p)) for p in (a, b)} & {str, ast.JoinedStr}:
            return None  # texts and paths
        case ast.Compare(left=a, comparators=[b]) | ast.BoolOp(values=[a, b, *_]):
            return between(a, b)
        case ast.BinOp(left=a, right=b) | ast.AugAssign(target=a, value=b):
            return between(a, b)
        case ast.UnaryOp(op=ast.Not(), operand=part) if node.lineno == part.lineno:
            return node.lineno, node.col_offset, node.col_offset + len("not "), ""
        case ast.Constant(value=bool() | int() | float() as value) if value + 1 != value:
            return instead(node, repr(not value if isinstance(value, bool) else value + 1))
        case ast.Return(value=ast.expr() as part) if ast.unparse(part) != "None":
            return instead(part, "None")
        case ast.Call(func=ast.Name(id="min" | "max" as name) as part):
            return instead(part, "max" if name == "min" else "min")
        case ast.If(test=test) | ast.IfExp(test=test):
            # `==` to `!=` would be the same change; of `<` it is another one than `<=`
            ordered = not isinstance(test, ast.Compare) or isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
            return instead(test, "not (OLD)") if ordered and not isinstance(test, ast.UnaryOp) else None
        case ast.Slice(upper=ast.expr() as part) | ast.Slice(lower=ast.expr() as part):
            return None if isinstance(part, ast.Constant | ast.UnaryOp) else instead(part, "(OLD) + 1")
    return None


@cache
def parsed(path: Path) -> tuple[list[bytes], list[tuple[str, Function, ast.AST]]]:
    return path.read_bytes().splitlines(keepends=True), list(within(ast.parse(path.read_bytes())))


def sources(root: Path) -> list[Path]:
    return [p for name in PACKAGES for p in sorted((root / name).rglob("*.py")) if p.name != "__init__.py"]


def possible_mutants(root: Path, without: list[str]) -> list[Mutant]:
    """Every mutant of the core and the stages; `without` are patterns of "path::function" that are left out."""
    found = []
    for path in sources(root):
        name, (lines, nodes) = path.relative_to(root).as_posix(), parsed(path)
        for function, body, node in nodes if not re.search(r"^lmgym/apps/|/experiments/", name) else ():
            edit = edit_of(node, lines)
            if edit and not any(fnmatch(f"{name}::{function}", pattern) for pattern in without):
                number, start, end, text = edit
                old = lines[number - 1]
                nth = sum(line.strip() == old.strip() for line in lines[body.lineno - 1 : number - 1])
                mutant = {"file": name, "line": number, "function": function, "kind": type(node).__name__, "nth": nth}
                after = old[:start] + text.encode() + old[end:]
                found.append({**mutant, "before": old.decode().strip(), "after": after.decode().strip()})
    return found


def find_again(root: Path, mutant: Mutant) -> tuple[Path, int] | None:
    """File and line of a mutant: in its file, else in one of its name, else in the only other that has it."""
    places = []
    for path in sources(root):
        lines, nodes = parsed(path)
        for body in dict.fromkeys(body for function, body, _ in nodes if function == mutant["function"]):
            numbers = range(body.lineno, (body.end_lineno or 0) + 1)
            same = [n for n in numbers if lines[n - 1].decode().strip() == mutant["before"]]
            if len(same) > mutant["nth"]:
                far = (path != root / mutant["file"]) + (path.name != Path(mutant["file"]).name)
                places.append((far, path, same[mutant["nth"]]))
    places.sort()
    return places[0][1:] if places and (places[0][0] < 2 or len(places) == 1) else None


def tests_of(root: Path, module: Path) -> list[str]:
    """The test files of a module, in the order in which they are run."""
    parts = module.relative_to(root).with_suffix("").parts
    folder = root.joinpath("tests/unit", *parts[parts[0] == "lmgym" : -1])
    package, name = ".".join(parts[:-1]), parts[-1]
    while not folder.is_dir():  # a small package has its tests in the folder above
        folder = folder.parent
    mirror = folder / f"test_{name}.py"
    imports = rf"(?m)^\s*(from|import) {package}\.{name}\b|^\s*from {package} import .*\b{name}\b"
    if f"from {package}.{name} import" in (module.parent / "__init__.py").read_text(encoding="utf-8"):
        imports += rf"|^\s*from {package} import"  # a package that hands the module's names on
    every = (root / "tests/unit").rglob("test_*.py")
    found = [path for path in every if path == mirror or re.search(imports, path.read_text(encoding="utf-8"))]
    found.sort(key=lambda path: (path != mirror, path.parent != folder, path))
    while not found:
        found, folder = sorted(folder.glob("test_*.py")), folder.parent
    return [path.relative_to(root).as_posix() for path in found]


def run_tests(root: Path, files: list[str], limit: float) -> tuple[str, float, list[str]]:
    """The first test that fails ("" for none, "too slow" beyond the limit), seconds, and files that were begun."""
    options = ["-o", "addopts=", "-v", "-rfE", "-m", "not slow", "-x", "-p", "no:cacheprovider"]
    command, start = [sys.executable, "-u", "-m", "pytest", *options, *files], time.monotonic()
    with TemporaryFile() as out:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        process, code = subprocess.Popen(command, cwd=root, start_new_session=True, **streams), None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
        finally:  # what tests started ends, too
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        output = out.read().decode(errors="replace")
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    begun = list(dict.fromkeys(re.findall(r"^(tests/\S+?\.py)::", output, re.MULTILINE)))
    failed = "too slow" if code is None else named[1] if named else f"exit code {code}"
    return failed if code != 0 else "", time.monotonic() - start, begun


@cache
def passing_tests(root: Path, module: Path) -> tuple[list[str], float, str]:
    """The tests of a module that pass within CAP, their seconds, and which one fails on unchanged code, if any."""
    files = tests_of(root, module)
    failed, seconds, begun = run_tests(root, files, CAP)
    if failed == "too slow" and begun[1:]:
        return begun[:-1], seconds, ""
    if failed == "too slow":
        failed, seconds, files = run_tests(root, files[:1], LONGEST)
    return files, seconds, failed


def run_mutant(root: Path, mutant: Mutant) -> Mutant:
    """The mutant with its `status`: found, missed, gone (without its line), or red (tests fail on unchanged code)."""
    if (place := find_again(root, mutant)) is None:
        return {**mutant, "status": "gone", "by": ""}
    path, number = place
    files, seconds, failed = passing_tests(root, path)
    result = {**mutant, "file": path.relative_to(root).as_posix(), "line": number, "tests": files}
    if failed:
        return {**result, "status": "red", "by": failed}
    original = path.read_bytes()
    lines = original.splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(mutant["before"].encode(), mutant["after"].encode())
    try:
        path.write_bytes(b"".join(lines))
        failed, took, _ = run_tests(root, files, min(LONGEST, 30 + 3 * seconds))
    finally:
        path.write_bytes(original)
    result |= {"unchanged_seconds": round(seconds), "seconds": round(took), "by": failed}
    # a test that also fails now without the mutant, such as one that is slow on a busy machine, found nothing
    flaky = failed.startswith("tests/") and run_tests(root, [failed.partition("[")[0]], LONGEST)[0]
    return {**result, "status": "red" if flaky else "found" if failed else "missed"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout")
    parser.add_argument("--mutants", type=Path, help="an earlier output, whose mutants are repeated")
    parser.add_argument("--seed", type=int, default=53)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--without", nargs="*", default=[], help='patterns of "path::function" to draw nothing from')
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    root = given.root.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` undoes a mutant
    os.environ |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    imported = subprocess.check_output([sys.executable, "-c", "import lmgym; print(lmgym.__file__)"], cwd=root)
    assert Path(imported.decode().strip()) == root / "lmgym/__init__.py", imported
    if given.mutants:
        waiting = [m for m in json.loads(given.mutants.read_text())["mutants"] if m["status"] in ("found", "missed")]
    else:
        waiting = [{"id": n, **m} for n, m in enumerate(possible_mutants(root, given.without))]
        random.Random(given.seed).shuffle(waiting)
    results = json.loads(given.output.read_text())["mutants"] if given.output.exists() else []
    for mutant in waiting[len(results) :]:
        count = Counter(m["status"] for m in results)
        if not given.mutants and count["found"] + count["missed"] >= given.number:
            break
        results.append({**run_mutant(root, mutant), "was": mutant.get("status")})
        count[results[-1]["status"]] += 1
        newly = [m["id"] for m in results if (m["was"], m["status"]) == ("found", "missed")]
        summary = {**count, "newly_missed": newly, "seed": given.seed, "possible": len(waiting)}
        given.output.write_text(json.dumps({"summary": summary, "mutants": results}, indent=1) + "\n")
        print(*(f"{key}={results[-1].get(key)!r}" for key in ("status", "file", "line", "after", "by")), flush=True)


if __name__ == "__main__":
    main()

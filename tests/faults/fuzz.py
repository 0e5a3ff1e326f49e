"""Damaged inputs for every kind of file that commands read: `python tests/faults/fuzz.py --seed 0 --files 1000`.

Each case ends in its command's normal end or in a refusal: no traceback, no hang, no message of more than MESSAGE
characters. Those that do not are printed, and kept with --keep FOLDER; --only NUMBER runs one of them again.
"""

import argparse
import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
    folder_of_all = Path(tempfile.mkdtemp(prefix="lmgym-fuzz-"))
    atexit.register(shutil.rmtree, folder_of_all, ignore_errors=True)
    os.environ["HF_DATASETS_CACHE"] = str(folder_of_all / "datasets")  # before datasets is imported

from forked import Ended, import_libraries, run_forked
from fuzzed_inputs import KINDS, SCRIPTS, Case, make_base, make_case
from fuzzing import KINDS as ROW_KINDS

from lmgym.errors import LONGEST_MESSAGE

MESSAGE = LONGEST_MESSAGE
REFUSED = (2, 65, 68, 69, 70, 73, 74, 75)
ALL_KINDS = (*KINDS, *ROW_KINDS, *SCRIPTS)


def faults(ended: Ended) -> list[str]:
    """Faults in the end of a command, in words."""
    found = []
    if "Traceback (most recent call last)" in ended.err + ended.out:
        last = [line for line in ended.err.splitlines() if line.strip()]
        found.append(f"a traceback: {last[-1][:200] if last else ''}")
    if ended.hung:
        found.append(f"hangs: {ended.seconds:.0f} s, {ended.cpu:.0f} s of CPU")
    elif ended.code not in (0, 1, *REFUSED) or (ended.code == 1 and not found and "differ" not in ended.out):
        found.append(f"exit code {ended.code}")
    for line in [
        *ended.err.splitlines(),
        *(ln for ln in ended.out.splitlines() if "needed: " in ln or "warning" in ln),
    ]:
        if len(line) > MESSAGE:
            found.append(f"a message of {len(line):,} characters: {line[:400]}")
        if not line.isprintable():
            found.append(f"a line that is not printable: {line[:200]!r}")
    if ended.code in REFUSED and sum(line.startswith(("error: ", "stopped: ")) for line in ended.err.splitlines()) != 1:
        found.append(f"exit code {ended.code} without one line that says why: {ended.err[-200:]!r}")
    return found


def run_case(base: Path, folder: Path, seed: int, number: int, kinds: Sequence[str]) -> tuple[Case, Ended, list[str]]:
    """Makes the files of a case and runs its command on them."""
    case = make_case(base, folder, seed, number, kinds)
    ended = run_forked(case.words, folder, case.most_files)
    return case, ended, faults(ended)


def main(root: Path) -> int:
    """Runs the cases in a folder; 1 if one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="number of a single case, whose output is printed")
    parser.add_argument("--kind", action="append", choices=ALL_KINDS, metavar="KIND",
                        help=f"only this one; several times for several: {', '.join(ALL_KINDS)}")  # fmt: skip
    parser.add_argument("--keep", help="folder for the files of cases with a fault")
    options = parser.parse_args()
    import_libraries()
    kinds = tuple(options.kind or ALL_KINDS)
    ends: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    make_base(root / "base", lambda words, folder: _told(run_forked(words, folder)), kinds)
    first, files = (options.first, options.files) if options.only is None else (options.only, 1)
    for number in range(first, first + files):
        folder = root / str(number)
        case, ended, found = run_case(root / "base", folder, options.seed, number, kinds)
        ends["failed" if found else "refused" if ended.code in REFUSED else "used"] += 1
        if found:
            by_kind[case.kind] += 1
            print(case, *(f"    {fault}" for fault in found[:3]), sep="\n", flush=True)
            if options.keep:
                shutil.copytree(folder, Path(options.keep) / str(number), symlinks=True, dirs_exist_ok=True)
        if options.only is not None:
            print(case, ended.out, ended.err, f"exit code {ended.code}, {ended.seconds:.1f} s", sep="\n")
        if number % 100 == 99:
            print(f"{number + 1} of {first + files}: {dict(ends)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder)
    print(dict(ends), dict(by_kind))
    return int(bool(ends["failed"]))


def _told(ended: Ended) -> int:
    """The exit code; the error of a command that fails is printed."""
    if ended.code:
        print(ended.out[-2000:], ended.err[-4000:], file=sys.stderr)
    return ended.code


if __name__ == "__main__":
    sys.exit(main(folder_of_all))

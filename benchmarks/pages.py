"""Figures of the pages come from result files: writes the tables, and holds what stands in prose against the files.

    .venv/bin/python benchmarks/pages.py            # rewrites every generated table
    .venv/bin/python benchmarks/pages.py --check    # changes nothing; a line for each difference, and exit code 1

- A table between `<!-- table: SCRIPT.FUNCTION of FILE.json -->` and `<!-- end -->` is what the function of
  benchmarks/SCRIPT.py returns, given the content of results/FILE.json (several files: `of A.json, B.json`). One of no
  file is computed by the code: it is rewritten, which may take minutes, and not checked here.
- Behind text, a list or a table by hand stands `<!-- figures of FILE.json: POINTER FORMAT; POINTER FORMAT -->`, with
  the figures in the order of the text, which begins at the heading, table or comment before. A pointer is keys with
  slashes between them: `*` is each element, `{low,high}` one after the other; `min(...)`, `max(...)`, `sum(...)` and
  `mean(...)` take several, and `a / b - 1` is computed from left to right. The format is Python's, such as `.2f` and
  `.0%`.
  `of OTHER.json: ...` goes on with another file.
- On the pages of COVERED each number with a decimal point or % needs a pointer, or stands in `no figures: 1.16, .05`
  of the comment: settings, versions, examples; `<!-- no figures -->` alone says it of the whole text before it. 95% is
  the level of every interval. Code, links and headings are not read.
- A file names its `command` and the versions that it `rests_on`; older ones than the code's fail.
"""

import argparse
import difflib
import functools
import importlib
import itertools
import json
import operator
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # before this folder, whose ppo.py is no package

from shared import RESULTS, ROOT, code_versions

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COVERED = tuple(ROOT / name for name in ("README.md", "docs/results.md", "docs/methods.md", "docs/debate.md"))
ENDS = re.compile(r"^#+ [^\n]*$|<!--(.*?)-->", re.DOTALL | re.MULTILINE)  # of blocks
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
TABLE = re.compile(r"(<!-- table: (\w+)\.(\w+)(?: of ([\w., -]+?))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d+)?(?:e[-+]?\d+)?%?")
UNREAD = re.compile(r"```.*?```|`[^`\n]*`|\[[\d.]+\]\([^)\s]*\)|(?<=\])\([^)\s]*\)", re.DOTALL)
NO_FIGURES = "no figures"
COMMENTS = ("figures of ", NO_FIGURES)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
LEVEL = "95%"
AGGREGATES = {"min": min, "max": max, "sum": sum, "mean": lambda values: sum(values) / len(values)}


@dataclass(frozen=True)
class Figure:
    """A figure that a comment points to, as it should be written."""

    file: str
    pointer: str
    text: str


@dataclass
class Block:
    """Text with its comment: `text` begins on `line` of the page."""

    line: int
    text: str
    comment: str = ""
    comment_line: int = 0


@functools.cache
def read_result(name: str) -> Any:
    """A result file. Raises ValueError where there is none."""
    path = RESULTS / name
    if not path.is_file():
        raise ValueError(f"no results/{name}")
    return json.loads(path.read_text(encoding="utf-8"))


def stale(name: str, versions: dict[str, str]) -> list[str]:
    """Lines on a result file: no command, no versions, or versions older than those of the code."""
    try:
        found = read_result(name)
    except ValueError as error:
        return [str(error)]
    if not isinstance(found, dict) or not {"command", "rests_on"} <= set(found):
        return [
            f"results/{name} has no `command` and `rests_on`; needed: what shared.origin gives, where it is written"
        ]
    faults = []
    for what, version in found["rests_on"].items():
        if what not in versions or as_numbers(version) > as_numbers(versions[what]):
            faults.append(
                f"results/{name} rests on {what} {version}, the code has {versions.get(what, 'no such version')}"
            )
        elif as_numbers(version) < as_numbers(versions[what]):
            faults.append(
                f"results/{name} was measured with {what} {version}, the code has {versions[what]}; "
                f"measure it again by `{found['command']}`, or remove its figures"
            )
    return faults


def as_numbers(version: str) -> list[int]:
    """[1, 10] of '1.10'."""
    return [int(part) for part in str(version).split(".")]


def plain(number: str) -> str:
    """'.5' of '+0.5', '1490' of '1,490', '1e-7' of '1e-07': as it may be written without another meaning."""
    text = re.sub(r"e([-+])0*", r"e\1", number.replace(",", "").removeprefix("+"))
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    text = text[1:] if text.startswith("0.") else text
    return sign + text if re.search("[1-9]", text) else text


def expanded(pointer: str) -> list[str]:
    """'a/b' and 'a/c' of 'a/{b,c}'."""
    found = re.search(r"\{([^{}]*)\}", pointer)
    if not found:
        return [pointer]
    before, after = pointer[: found.start()], pointer[found.end() :]
    return [one for word in found[1].split(",") for one in expanded(before + word.strip() + after)]


def values_of(data: Any, expression: str) -> list[float]:
    """The numbers of a pointer, or the one that is computed. Raises KeyError with the key that is not there."""
    words = re.split(r" ([-+/*]) ", expression.strip())
    if len(words) == 1:
        return term(data, words[0])
    [result] = term(data, words[0])
    for sign, word in zip(words[1::2], words[2::2], strict=True):
        [right] = term(data, word)
        result = OPERATORS[sign](result, right)
    return [result]


def term(data: Any, word: str) -> list[float]:
    """A number, a pointer's, or an aggregate of a pointer's."""
    if re.fullmatch(r"\d+(\.\d+)?", word):
        return [float(word)]
    found = re.fullmatch(rf"({'|'.join(AGGREGATES)})\((.*)\)", word)
    name, path = found.groups() if found else ("", word)
    values = list(numbers_at(data, path.split("/")))
    return [AGGREGATES[name](values)] if name else values


def numbers_at(data: Any, keys: list[str]) -> Iterator[float]:
    """Numbers where the keys lead. Raises KeyError with the first key that is not there."""
    if not keys:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise KeyError("no number")
        yield data
    elif keys[0] == "*" and isinstance(data, dict | list):
        for element in data.values() if isinstance(data, dict) else data:
            yield from numbers_at(element, keys[1:])
    elif isinstance(data, dict) and keys[0] in data:
        yield from numbers_at(data[keys[0]], keys[1:])
    elif isinstance(data, list) and re.fullmatch(r"-?\d+", keys[0]) and -len(data) <= int(keys[0]) < len(data):
        yield from numbers_at(data[int(keys[0])], keys[1:])
    else:
        raise KeyError(keys[0])


def figures_of(comment: str) -> tuple[list[Figure], list[str], list[str]]:
    """(figures, numbers that are no figures, faults) of a comment that begins as COMMENTS say."""
    figures, others, faults, files = [], [], [], ""
    for part in (" ".join(part.split()) for part in comment.removeprefix("figures").split(";")):
        if part.startswith(NO_FIGURES):
            others += [plain(word) for word in part.removeprefix(f"{NO_FIGURES}: ").split(", ")]
            continue
        if part.startswith("of "):
            files, _, part = part.removeprefix("of ").partition(": ")
        pointers, _, form = part.rpartition(" ")
        for file, pointer in itertools.product(expanded(files), expanded(pointers)):
            try:
                values = values_of(read_result(file), pointer)
                figures += [Figure(file, pointer, plain(format(value, form))) for value in values]
            except (KeyError, ValueError, ZeroDivisionError) as error:
                faults.append(f"{pointer!r} is not in results/{file}: {error}")
    return figures, others, faults


def blocks(text: str) -> Iterator[Block]:
    """The page in blocks: each ends at a comment of figures, or where a heading or a generated table begins."""
    text = TABLE.sub(lambda found: "<!-- table -->" + "\n" * found[0].count("\n"), text)
    start = 0
    for found in ENDS.finditer(re.sub(r"```.*?```", blank, text, flags=re.DOTALL)):
        comment = (found[1] or "").strip()
        if found[1] is not None and not comment.startswith((*COMMENTS, "table")):
            continue
        block = Block(text.count("\n", 0, start) + 1, text[start : found.start()])
        if comment.startswith(COMMENTS):
            block.comment, block.comment_line = comment, text.count("\n", 0, found.start()) + 1
        yield block
        start = found.end()
    yield Block(text.count("\n", 0, start) + 1, text[start:])


def blank(found: re.Match[str]) -> str:
    """As many lines and characters, all white: places stay what they are."""
    return re.sub(r"[^\n]", " ", found[0])


def numbers_in(block: Block) -> list[tuple[int, str]]:
    """(line of the page, number as on the page) of all numbers of a block's text."""
    text = COMMENT.sub(blank, UNREAD.sub(blank, block.text))
    return [(block.line + text.count("\n", 0, found.start()), found[0]) for found in NUMBER.finditer(text)]


def is_figure(number: str) -> bool:
    """True if a number by itself says that something was measured: it has decimals, or is a percentage."""
    return ("." in number or number.endswith("%")) and number != LEVEL


def differences(block: Block, covered: bool) -> list[tuple[int, str]]:
    """(line, what is wrong) of a block of a page."""
    if block.comment == NO_FIGURES:
        return []
    figures, others, faults = figures_of(block.comment) if block.comment else ([], [], [])
    wrong = [(block.comment_line, fault) for fault in faults]
    wanted = [figure.text for figure in figures]
    numbers = [(line, word) for line, word in numbers_in(block) if is_figure(word) or plain(word) in wanted]
    unused = set(others)
    found = [plain(word) for _, word in numbers]
    for kind, low, high, first, last in difflib.SequenceMatcher(None, found, wanted, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        extra = [(line, word) for line, word in numbers[low:high] if is_figure(word) and plain(word) not in others]
        unused -= {plain(word) for _, word in numbers[low:high]}
        missing = figures[first:last]
        for (line, word), figure in zip(extra, missing, strict=False):
            wrong.append((line, f"{word} stands here; {figure.pointer} of results/{figure.file} is {figure.text}"))
        for figure in missing[len(extra) :]:
            place = f"{figure.pointer} of results/{figure.file} is {figure.text}"
            wrong.append((block.comment_line, f"{place}, which is not in the text above, or not in this order"))
        for line, word in extra[len(missing) :] if covered else ():
            wrong.append((line, f"{word} is of no file; needed: a pointer or `no figures` in the comment behind it"))
    wrong += [(block.comment_line, f"{word} is `no figures` and not in the text above") for word in sorted(unused)]
    return wrong


def table_lines(script: str, function: str, files: str | None) -> list[str]:
    """The lines of a generated table. Raises ValueError where a file, the function or a figure is not there."""
    try:
        data = [read_result(name.strip()) for name in (files or "").split(",") if name.strip()]
        return getattr(importlib.import_module(script), function)(*data)
    except (KeyError, AttributeError, ModuleNotFoundError) as error:
        raise ValueError(f"{script}.{function} of {files}: {error!r}") from error


def rewritten(text: str) -> str:
    """The page with the tables that its files give; one that cannot be made stays, and `check` says why."""

    def table(found: re.Match[str]) -> str:
        begin, script, function, files, _, end = found.groups()
        try:
            lines = table_lines(script, function, files)
        except ValueError:
            return found[0]
        return begin + "\n" + "\n".join(lines) + "\n\n" + end

    return TABLE.sub(table, text)


def table_differences(text: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of the generated tables of a page, a line each."""
    for found in TABLE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        here = found[5].strip().splitlines()
        if not found[4]:
            continue
        try:
            needed = table_lines(*found.groups()[1:4])
        except ValueError as error:
            yield line, str(error)
            continue
        for number, (old, new) in enumerate(itertools.zip_longest(here, needed, fillvalue="")):
            if old != new:
                yield line + 2 + number, f"{found[2]}.{found[3]} gives {new!r}, not {old!r}"
                break


def unread_comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of comments that look like ours and are none: they would hold nothing."""
    for found in COMMENT.finditer(TABLE.sub(blank, text)):
        words = found[1].strip()
        if re.match(r"figure|table|end$|no ", words) and not words.startswith(COMMENTS):
            line = text.count("\n", 0, found.start()) + 1
            yield line, f"<!-- {words[:40]} --> is read by nobody; needed: a form of benchmarks/pages.py"


def files_of(text: str) -> list[str]:
    """Names of the result files that a page shows."""
    names: set[str] = set()
    for found in COMMENT.finditer(text):
        if found[1].strip().startswith((*COMMENTS, "table: ")):
            for word in re.findall(r"[\w.{},-]+\.json\b", " ".join(found[1].split())):
                names |= set(expanded(word))
    return sorted(names)


def check(page: Path, versions: dict[str, str]) -> list[str]:
    """One line for each difference of a page and its files."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    wrong = [(1, fault) for file in files_of(text) for fault in stale(file, versions)]
    wrong += [*unread_comments(text), *table_differences(text)]
    for block in blocks(text):
        wrong += differences(block, page in COVERED)
    return [f"{name}:{line}: {what}" for line, what in sorted(wrong)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail where page and file differ")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    settings = parser.parse_args()
    pages = [page.resolve() for page in settings.pages]
    if not settings.check:
        for page in pages:
            text = page.read_text(encoding="utf-8")
            if (new := rewritten(text)) != text:
                page.write_text(new, encoding="utf-8")
                print(f"{page}: tables rewritten")
    wrong = [line for page in pages for line in check(page, code_versions())]
    print("\n".join(wrong) or f"{len(pages)} pages agree with their files")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

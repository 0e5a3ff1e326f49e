"""The shell blocks of README.md and docs/, and a copy of the repository to run them in."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_commands import ForkedCommands

ROOT = Path(__file__).resolve().parents[2]


def _leaves(pages: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of the site in the order of its navigation."""
    for page in pages:
        [entry] = page.values()
        yield from _leaves(entry) if isinstance(entry, list) else [entry]


NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
PAGES = ("README.md", *(f"docs/{page}" for page in _leaves(NAVIGATION)))
"""in the order in which the commands of the slow test run"""


def section(text: str, title: str) -> str:
    """The text of a page under a heading of the second level."""
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def table_rows(text: str, *titles: str) -> list[list[str]]:
    """The rows of cells below the header of the first table whose first columns have these titles; else ValueError."""
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()]
    first = next((place for place, cells in enumerate(lines) if cells and cells[: len(titles)] == [*titles]), None)
    if first is None:
        raise ValueError(f"no table begins with the columns {titles}")
    last = next((place for place in range(first, len(lines)) if not lines[place]), len(lines))
    return lines[first + 2 : last]


@dataclass(frozen=True)
class Block:
    """A fenced shell block: its page, the line that it begins in, and its text without the fence.

    A block whose first line is `# needs ...` cannot run here (a GPU, the hub, a terminal); `# takes ...` runs in
    `make test-full`; every other block runs in `make test`, but for those of a few
    pages that are expensive together.
    """

    page: str
    line: int
    text: str

    @property
    def can_run(self) -> bool:
        return not self.text.startswith("# needs")

    @property
    def is_long(self) -> bool:
        return self.text.startswith("# takes")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    """The `bash` blocks of a page."""
    blocks: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    place = 0
    while place < len(lines):
        if lines[place] == "```bash":
            end = lines.index("```", place)
            blocks.append(Block(page, place + 1, "\n".join(lines[place + 1 : end])))
            place = end
        place += 1
    return blocks


def every_block() -> list[Block]:
    """The blocks of all pages, each text once: the quickstart repeats README's."""
    blocks: dict[str, Block] = {}
    for block in (block for page in PAGES for block in read_blocks(page)):
        blocks.setdefault(block.text, block)
    return list(blocks.values())


def written_file(page: str, name: str) -> str:
    """The text that a page's `cat > NAME <<'END'` writes."""
    text = (ROOT / page).read_text(encoding="utf-8")
    [found] = re.findall(rf"^cat > {re.escape(name)} <<'END'\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)
    return found


def copy_repository(folder: Path) -> Path:
    """A folder with the files of the working tree that git does not ignore, as in a fresh clone."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def run_block(
    block: Block, folder: Path, bin_folder: Path, timeout: float, forked: ForkedCommands | None = None
) -> str:
    """The output of a block that bash runs in a folder, with `bin_folder` first on PATH. Fails where a command does.

    `forked`: its commands are forks.
    """
    folders = [*([forked.bin] if forked else []), bin_folder, os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(folder)  # this tree, whichever one the environment has installed
    command = ("bash", "-euo", "pipefail", "-c", block.text)
    if forked:
        done = forked.run(command, folder, environment, timeout)
    else:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout

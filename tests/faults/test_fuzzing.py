"""Files with random damage: each ends in one clear line, or in rows and counted rejections that add up."""

from pathlib import Path

import pytest
from fuzzing import DataFile, make_file, read

from lmgym.data.rejections import tally, write_rejections
from lmgym.errors import InputError

SEED, BLOCK, QUICK, ALL = 28, 50, 200, 1000
BLOCKS = [
    pytest.param(first, marks=[] if first < QUICK else pytest.mark.slow, id=f"{first}-{first + BLOCK - 1}")
    for first in range(0, ALL, BLOCK)
]


def check(file: DataFile, folder: Path) -> str:
    """The outcome. AssertionError for anything but one of the two good ends."""
    try:
        found = read(file)
    except InputError as error:
        said = str(error)
        assert said.isprintable(), said
        assert 0 < len(said) < 2000, said
        assert file.untouched is None, f"refused though {file.untouched} rows are as they should be: {said}"
        return "refused"
    assert found.usable + len(found.rejections) == found.read
    for one in found.rejections:
        assert str(one).isprintable(), one
        assert 0 < len(str(one)) < 1000, one
        assert one.reason, one
    if file.rows is not None:
        assert found.read == file.rows
    if file.untouched is not None:
        assert found.usable >= file.untouched
    counted = tally(found.rejections, found.read)
    assert f"{counted.line} {counted.warning}".isprintable()
    write_rejections(folder / "rejected.jsonl", found.rejections)
    return "rejections" if found.rejections else "clean"


@pytest.mark.parametrize("first", BLOCKS)
def test_a_damaged_file_is_refused_in_a_line_or_its_rows_are_counted(first: int, tmp_path: Path) -> None:
    ends, broken = {"refused": 0, "rejections": 0, "clean": 0}, []
    for number in range(first, first + BLOCK):
        file = make_file(tmp_path, SEED, number)
        try:
            ends[check(file, tmp_path)] += 1
        except Exception as error:
            broken.append(f"{file.path.name} ({file.kind}): {file.damage}: {type(error).__name__}: {str(error)[:300]}")
        file.path.unlink()
    assert not broken, "\n".join(broken)
    assert min(ends["refused"], ends["rejections"]) > 2, ends

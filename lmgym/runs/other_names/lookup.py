"""The answer to a name: in one library's settings for `lmgym from`, and in any library's for an unknown flag."""

import functools
from collections.abc import Collection

from lmgym.errors import misspelt
from lmgym.runs.other_names import LIBRARIES, subjects
from lmgym.runs.other_names.answers import STAGES, Answer, Row, Table, read

SIGNS = {"ppo": "num_rollouts", "preference": "reference_source", "reward": "centering", "sft": "sample_tokens"}
"""a flag that every experiment of the stage has, and no experiment of the stages after it"""
MOST_ANSWERS = 3
"""different answers of libraries to one name; what has more means nothing"""
Near = tuple[int, int]


@functools.cache
def tables(library: str) -> tuple[Table, ...]:
    """Each of a library's tables."""
    return tuple(map(_table, LIBRARIES[library]))


_table = functools.cache(lambda module: read(module.NAMES))


@functools.cache
def find(library: str, name: str, stage: str) -> Answer | None:
    """The answer to one library's setting in a stage; None for a name that it does not have there."""
    near: Near = (0, 0)
    rows: list[Row] = []
    for table in tables(library):
        new, found = table.nearest(name, stage)
        if new > near:
            near, rows = new, found
    answers = {row.answer for row in rows or _table(subjects).nearest(name, stage)[1]}
    return answers.pop() if len(answers) == 1 else None


def stage_of(known: Collection[str]) -> str | None:
    """The stage of `lmgym train` whose flags these are; None for another command's."""
    if "max_updates" not in known:
        return None
    return next((stage for stage, sign in SIGNS.items() if sign in known), None)


def answer(name: str, known: Collection[str]) -> str | None:
    """The words to write in place of a flag that an experiment does not have; None for a name of no library.

    `known` are the experiment's flags. A dotted name of no library is answered by its last part.
    """
    stage = stage_of(known)
    last = name.rpartition(".")[2]
    for key in dict.fromkeys((name, name.removeprefix("no_"), last)):
        if key != name and key in known:
            return f"write --{key}"
        if found := _answer(key, known, stage):
            return found
    return None


def misspelt_name(name: str) -> str | None:
    """The other library's name of which this is a misspelling."""
    names = {row.name for of in LIBRARIES for table in tables(of) for row in table.rows if "*" not in row.name}
    return misspelt(name, sorted(names))


def _answer(name: str, known: Collection[str], stage: str | None) -> str | None:
    """The answer of all libraries to a name in a stage, or of other stages if it fits these better."""
    here = _of_libraries(name, known, stage)
    best = max((near for near, _ in here.values()), default=(0, 0))
    if stage:
        near, words = _of_other_stages(name, stage)
        if near > max(best, (1, 99)):
            return words
        if best == (0, 0):
            return next((str(row.answer) for row in _table(subjects).nearest(name, stage)[1]), None)
    answers: dict[str, list[str]] = {}
    flags: set[str | None] = set()
    for library, (near, found) in here.items():
        if near[0] == best[0] and (near == best or near[0] > 1):
            for row in found:
                whose = f"{library}'s {row.name}" if near[0] == 2 else library
                answers.setdefault(str(row.answer), []).append(whose)
                flags.add(row.answer.flag)
    if len(flags) == 1 and None not in flags:
        return min(answers, key=len)
    if len(answers) <= 1:
        return next(iter(answers), None)
    if len(answers) > MOST_ANSWERS:
        return None
    return "; ".join(f"{', '.join(dict.fromkeys(of))}: {words}" for words, of in answers.items())


def _of_libraries(name: str, known: Collection[str], stage: str | None) -> dict[str, tuple[Near, list[Row]]]:
    """(how near, rows) of each library that has a name. Of a command that does not train, rows of flags that it has."""
    here: dict[str, tuple[Near, list[Row]]] = {}
    for library in LIBRARIES:
        for table in tables(library):
            near, found = table.nearest(name, stage)
            if stage is None:
                found = [row for row in found if row.answer.flag in known]
            if found and near > here.get(library, ((0, 0), []))[0]:
                here[library] = near, found
    return here


def _of_other_stages(name: str, stage: str) -> tuple[Near, str]:
    """(how near, the words) for a name, ours or another library's, that other stages have and this one has not."""
    best: Near = (0, 0)
    homes: dict[str, Answer] = {}
    for other in STAGES:
        for table in {table: None for library in LIBRARIES for table in tables(library)}:
            near, found = table.nearest(name, other)
            if any(row.answer.flag == name and other in row.stages for row in table.rows):
                near, found = (5, len(name)), [Row(name, frozenset([other]), Answer(f"--{name}"))]
            if near > best:
                best, homes = near, {}
            if found and near == best:
                homes.setdefault(other, found[0].answer)
    if not homes or stage in homes:
        return (0, 0), ""
    if flags := [f"--{one.flag} in lmgym train {other}" for other, one in homes.items() if one.flag]:
        return best, f"not a setting of this experiment; {', '.join(flags)}"
    return best, f"of lmgym train {', '.join(homes)}: {next(iter(homes.values()))}"

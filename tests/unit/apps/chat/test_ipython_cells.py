"""Typed cells of IPython: turns and our commands become calls; Python, magics, the shell and help stay IPython's."""

import pytest

from lmgym.apps.chat.ipython_frontend import CellTransformer, is_ours, transform


def is_magic(name: str) -> bool:
    return name in ("timeit", "history", "who")


@pytest.mark.parametrize("line", [
    "hello", "how are you?", 'an "open quote', "it's (", "back\\", "exit()", "quit now", "import os", " %not a command",
    "%write is it?", "%pick 3", "x = 1", "# hash", "@you", ";", "'''", "def f():", "%history", "%pikc", "%pikc?", "%",
])  # fmt: skip
def test_a_typed_line_is_a_turn_or_a_command_word_for_word(line: str) -> None:
    [code] = transform([line + "\n"], is_magic)
    output = []
    exec(code, {"_lmgym_say": output.append})
    assert output == [line]


@pytest.mark.parametrize("line", [
    "%timeit 1", "%who", "%who?", "%pick?", "!ls", "?print", "%%time", "%%nothing", "exit", "quit", " exit ", "",
])  # fmt: skip
def test_ipython_handles_magics_the_shell_help_and_exit(line: str) -> None:
    assert not is_ours(line, is_magic)
    assert "".join(transform([line + "\n"], is_magic)).strip() == line.strip()


def test_a_line_after_the_mark_is_python() -> None:
    assert transform(["> session.history[-1].df\n"], is_magic) == ["session.history[-1].df\n"]
    assert transform([">for x in y:\n", ">     print(x)\n"], is_magic) == ["for x in y:\n", "    print(x)\n"]
    assert transform([">>> 1 + 1\n"], is_magic) == [">>> 1 + 1\n"], "IPython knows what to do with pasted examples"


def test_a_cell_that_a_running_cell_runs_is_not_a_turn() -> None:
    cells = CellTransformer(is_magic)
    output = cells.transform(["hello\n"])
    cells.begin(None)
    assert cells.transform(["1 + 1\n"]) == ["1 + 1\n"]
    cells.end(None)
    assert cells.transform(["hello\n"]) == output != ["hello\n"]

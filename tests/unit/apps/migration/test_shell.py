"""Shell scripts are read as bash would read them, as far as their text alone tells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from lmgym.apps.migration.shell import Shell
from lmgym.apps.migration.trl_scripts import Code

KNOWN = r"""
a=1 # a comment
name="x y"
list=(--one 1 --two "$name")
list+=(--three '$a')
sum=$((a + 2 * 3))
long=$((1024*2))
nested=${missing:-${a}b}
export e=$name
run one --flag $a --text "$name" '$a' a#b \
    --more ${name} "q'q" plain"joined"'up' \$a # end
run two "${list[@]}" $sum ${long} $nested ${e} ; run three a|run four b && run five c 2>&1 > out.txt
read -r -d '' block <<EOF
run six \
  --size $sum
EOF
run seven $block
run eight "two
lines"
"""


def commands(text: str) -> list[list[str]]:
    return [[str(word) for word in words] for words in Shell().read(text) if words[0] == "run"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_words_are_those_that_bash_makes(tmp_path: Path) -> None:
    """bash itself prints the words of each `run`."""
    # the commands of a pipe run at once, each in a process of its own: a file for each, in no fixed order
    function = "run() { printf '%s\\0' run \"$@\" > words.$BASHPID.$((made++)); }\n"
    subprocess.run(["bash", "-c", function + KNOWN], cwd=tmp_path, check=False, timeout=60)
    wanted = [file.read_text().split("\0")[:-1] for file in tmp_path.glob("words.*")]
    assert sorted(commands(KNOWN)) == sorted(wanted)
    assert len(wanted) == 7


@pytest.mark.parametrize(
    "word",
    ["$unknown", "$(date)", "`date`", "${a:0:1}", "$1", '"$unknown/x"', "$((unknown + 1))", "$((1 / 0))", "$looped"],
)
def test_what_only_running_tells_is_code(word: str) -> None:
    [*_, [_, found]] = Shell().read(f"a=abc\nfor x in 1 2; do looped=$x; done\nrun {word}")
    assert isinstance(found, Code)
    assert "\0" not in found.text


def test_deep_and_endless_texts_end() -> None:
    deep = "${a:-" * 400 + "x" + "}" * 400
    assert len(Shell().read(f"run {deep}")) == 1
    assert len(Shell().read('run "an open quote\nrun two')) == 1
    doubled = "\n".join(["x=ab", *['x="$x$x"'] * 60, "run $x"])
    Shell().read(doubled)

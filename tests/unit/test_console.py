"""Text on its way to a terminal: nothing in it drives the terminal, and a message is one line of bounded length."""

import io
import random
import subprocess
import sys

import pytest
from attacks import ATTACKS, drives
from patience import PATIENCE
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lmgym.console import LONGEST_LINE, CleanConsole, clean, clean_line, say
from lmgym.errors import NON_FINITE, InputError, RunStopped
from lmgym.runs.flags import exit_with_error


@pytest.mark.parametrize("name", ATTACKS)
def test_no_control_escape_or_bidi_character_comes_through(name: str) -> None:
    assert drives(ATTACKS[name]), "the attack is one"
    assert drives(clean(ATTACKS[name])) == []
    assert "\n" not in clean_line(ATTACKS[name] + "\n")


def test_bytes_at_random_come_out_without_a_control_byte_and_alike_in_chunks() -> None:
    rng = random.Random(0)
    for _ in range(400):
        data = bytes(rng.choices(range(256), k=60)) + rng.choice(list(ATTACKS.values())).encode("utf-8", "replace")
        for text in (data.decode("utf-8", "surrogateescape"), data.decode("latin-1"), data.decode("utf-16", "replace")):
            found = clean(text)
            assert drives(found) == []
            cut = rng.randrange(len(text) + 1)
            assert clean(text[:cut]) + clean(text[cut:]) == found
            sent = found.encode()  # no half of a character is left
            assert not [byte for byte in sent if (byte < 0x20 and byte != 0x0A) or byte == 0x7F]


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    for text in ("plain", "two\nlines", "¿qué?", "日本語", "नमस्ते", "שלום", "👩\u200d👧 می\u200cخواهم", "a…b—c"):
        assert clean(text) == text


@pytest.mark.parametrize("name", ATTACKS)
def test_say_prints_one_printable_line(name: str, capsys) -> None:
    say(f"{ATTACKS[name]}\nmore\r\n{ATTACKS[name]}")
    said = capsys.readouterr().out
    assert drives(said) == []
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert "more" in said


def test_lines_go_to_stdout_to_stderr_or_to_a_file(capsys) -> None:
    file = io.StringIO()
    say("a")
    say("b", error=True)
    say("  indented", file=file)
    assert capsys.readouterr() == ("a\n", "b\n")
    assert file.getvalue() == "  indented\n"


@pytest.mark.parametrize("character", ["x", "\x1b", "\u202e", "\n"])
def test_a_line_of_a_megabyte_is_cut_and_its_length_stated(character: str, capsys) -> None:
    say(f"error: {character * 1_000_000}.")
    said = capsys.readouterr().out
    assert len(said) < LONGEST_LINE + 50
    assert said.endswith("… (1,000,008 characters)\n")
    assert said.count("\n") == 1


def show_everywhere(text: str, width: int = 60) -> str:
    """The console's output for a text in each place where the library shows data."""
    out = io.StringIO()
    console = CleanConsole(width, out, "standard", force_terminal=True)
    table = Table(title=text, title_justify="left")
    table.add_column(text, overflow="fold")
    table.add_column("styled", overflow="fold")
    table.add_row(text, Text.assemble(("bold ", "bold"), (text, "red")))
    console.print(table)
    console.rule(text, style="dim")
    console.print(text, soft_wrap=True)
    console.print(Text(text, "bold"))
    return out.getvalue()


def without_colours(text: str) -> str:
    for style in ("", "0", "1", "2", "3", "31", "1;31", "92"):
        text = text.replace(f"\x1b[{style}m", "")
    return text


@pytest.mark.parametrize("name", ATTACKS)
def test_a_console_cleans_prints_cells_titles_and_rules(name: str) -> None:
    found = without_colours(show_everywhere(ATTACKS[name]))
    assert drives(found) == []
    assert max(cell_len(line) for line in found.splitlines()) <= 60
    rows = [line for line in found.splitlines() if line[:1] in "┏┃┡│└"]
    assert len({cell_len(line) for line in rows}) == 1, "cells are measured as they are seen"


def test_markup_and_emoji_codes_in_data_are_text() -> None:
    found = without_colours(show_everywhere("[/b] [red]x :smile: \\["))
    assert found.count("[/b] [red]x :smile: \\[") == 7


@pytest.mark.parametrize("name", ATTACKS)
def test_an_error_that_quotes_data_ends_a_launch_in_one_printable_line(name: str, capsys) -> None:
    for error, lines, code in (
        (InputError(f"column {ATTACKS[name]}\nis none"), 1, 2),
        (RunStopped(f"the reward of {ATTACKS[name]}\nfailed", "non_finite", NON_FINITE), 2, NON_FINITE),
    ):
        with pytest.raises(SystemExit) as left:
            exit_with_error(error)
        assert left.value.code == code
        out, said = capsys.readouterr()
        assert out == ""
        assert drives(said) == []
        assert said.lstrip("\n").startswith("error: ")
        assert said.count("\n") == lines  # a line of its own where a progress bar may stand


def test_a_traceback_that_quotes_data_is_clean() -> None:
    code = "from lmgym.runs.launch import launch\ndef f(): raise KeyError('x' * 10**6)\nlaunch(f)"
    code = code.replace("KeyError('x' * 10**6)", "RuntimeError('\\x1b[31m' + 'x' * 10**6 + chr(0x202e))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE, check=False)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "RuntimeError: ␛[31mxxx" in said
    assert "Traceback (most recent call last)" in said
    assert drives(said) == []
    assert len(said) < 10_000

"""Values in messages: one printable line each, cut where they are long."""

import datetime
from pathlib import Path

import pytest

from lmgym.errors import LONGEST_MESSAGE, bounded, found_from, listed, misspelt, one_line, shown, shown_path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hi", "'hi'"),
        ("", "''"),
        ("it's", '"it\'s"'),
        (0.5, "0.5"),
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        (float("inf"), "inf"),
        (Path("a/b"), "a/b"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ([1, 2], "a list of 2 items"),
        ((1,), "a list of 1 item"),
        ({"a": 1}, "an object with 1 field"),
        (b"\xff\x00", "2 bytes"),
    ],
)
def test_a_short_value_is_shown_whole(value, expected):
    assert shown(value) == expected


def test_a_long_text_is_cut_and_its_length_stated():
    assert shown("a" * 1_048_576) == f"'{'a' * 80}…' (1,048,576 characters)"
    assert shown("a" * 80) == f"'{'a' * 80}'"
    assert shown("abcdef", limit=4) == "'abcd…' (6 characters)"


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x9b", "a\nb\r\u2028", "\u202e", "\ufeff", "\x7f", "\ud800", "\0" * 5000]
)
def test_every_shown_value_is_one_printable_line(text):
    for line in (shown(text), one_line(text), shown(text * 400), one_line(text * 400), shown(ValueError(text))):
        assert line.isprintable()
        assert len(line) < 300


def test_no_escape_is_cut_in_two():
    assert shown("\x1b" * 100, limit=10) == "'\\x1b\\x1b…' (100 characters)"


def test_an_integer_that_python_does_not_write_is_shown_by_its_size():
    assert shown(10**5000) == "an integer of 16,610 bits"


def test_an_error_of_several_lines_becomes_one():
    assert one_line("first:\n\n   second\x1b") == "first: second\\x1b"
    assert one_line("x" * 500, limit=10) == "xxxxxxxxxx… (500 characters)"
    assert one_line("word " * 100, limit=10) == "word word … (500 characters)"


def test_a_long_path_keeps_both_ends():
    assert shown_path("/a/b.json") == "/a/b.json"
    assert shown_path(Path("/begin") / ("x" * 5000) / "end.json").startswith("/begin/xxx")
    assert shown_path("/" + "x" * 5000 + "/end.json").endswith("xx/end.json")
    assert len(shown_path("\x1b" * 5000)) <= 160


def test_a_list_of_names_is_as_long_as_a_message_can_hold():
    assert listed(["a", "b"]) == "a, b"
    assert listed([]) == "none"
    assert listed("abcd", most=2) == "a, b and 2 more"
    assert listed(["n" * 5000] * 99).endswith("… (5,000 characters) and 96 more")


def test_a_message_keeps_what_was_found_and_how_to_fix_it():
    assert bounded("x is 1; needed: 2") == "x is 1; needed: 2"
    message = bounded(f"error: x is 1: {'y' * 5000}; needed: 2")
    assert len(message) == LONGEST_MESSAGE
    assert message.startswith("error: x is 1: yyy")
    assert message.endswith("yyy; needed: 2")


def test_a_path_that_another_folder_has_is_told_with_the_command_that_goes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two words/outputs/x").mkdir(parents=True)
    (tmp_path / "two words/a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "two words/a/b")
    assert found_from("outputs/x") == f"; it is found from another folder: cd '{tmp_path}/two words'"
    assert found_from("reward_models/experiments").endswith(f": cd {Path(__file__).parents[2]}")
    for absent in ("outputs/y", "owner/name", "/outputs/x", "\0", "a" * 5000):
        assert found_from(absent) == ""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("learnig_rate", "learning_rate"),
        ("learning_raet", "learning_rate"),
        ("LEARNING-RATE", "learning_rate"),
        ("learningrate", "learning_rate"),
        ("epoch", "epochs"),
        ("epochss", "epochs"),
        ("per_devise_tran_batch", "per_device_train_batch"),
        ("adam_beta1", None),  # another number
        ("min_length", None),  # another word
        ("top_q", None),
        ("learning", None),
        ("teaching_rate", None),
        ("lram", None),
    ],
)
def test_only_slips_of_the_keyboard_are_misspellings(name: str, found: str | None) -> None:
    known = ["learning_rate", "epochs", "adam_beta2", "max_length", "top_k", "top_p", "lam", "per_device_train_batch"]
    assert misspelt(name, known) == found


def test_a_word_as_near_to_two_names_is_a_misspelling_of_none() -> None:
    assert misspelt("temps", ["tempi", "tempo"]) is None
    assert misspelt("tempi", ["tempi", "tempo"]) == "tempi"

"""`--help` shows the settings that people use first, `--help all` every one, of each stage's experiments."""

import re
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from lmgym.config import First
from lmgym.runs.fields import flatten
from lmgym.runs.flag_help import first_settings, split_help
from lmgym.runs.flags import override
from lmgym.runs.launch import STAGES
from lmgym.runs.launching import FORMS, config_of, experiments

EXPERIMENTS = [(stage, name) for stage in STAGES for name in experiments(stage)]


def helped(capsys: pytest.CaptureFixture, config: object, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        override(config, words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> set[str]:
    """The flags at the beginning of a line, but for --help."""
    return set(re.findall(r"^[│ ] --(\w+)", text, re.MULTILINE))


@pytest.mark.parametrize(("stage", "name"), EXPERIMENTS)
def test_help_shows_at_most_a_dozen_flags_and_help_all_all_of_them(stage: str, name: str, capsys) -> None:
    config = config_of(stage, name)
    known = flatten(config).keys() - getattr(config, "unread", set())
    few, every = helped(capsys, config, "--help"), helped(capsys, config, "--help", "all")
    assert 8 <= len(flags_in(few)) <= 12
    assert flags_in(few) == set(first_settings(config))
    assert flags_in(every) == known
    assert f"{len(flags_in(few))} of {len(known)} flags; --help all lists them all" in few
    assert "policy options" in every or "scorer options" in every, "under their subjects"
    assert "--help all" not in every


@pytest.mark.parametrize("word", FORMS)
def test_the_first_flags_have_the_texts_and_defaults_of_their_config(word: str, capsys) -> None:
    config = config_of(word)
    text = " ".join(helped(capsys, config, "--help").replace("│", " ").split())
    assert "Hugging Face folder or hub id to start from" in text
    values = flatten(config)
    for name in {"model", "learning_rate", "max_updates"}:
        assert f"(default: {values[name]})" in text.partition(f"--{name} ")[2].partition(" --")[0]


def test_values_that_were_typed_are_those_of_the_help(capsys) -> None:
    text = helped(capsys, config_of("sft"), "--learning_rate", "0.25", "--help")
    assert "(default: 0.25)" in text


@dataclass(frozen=True)
class Group:
    rate: Annotated[float, First()] = 0.5
    """The rate."""
    limit: int = 3
    """The limit."""


@dataclass(frozen=True)
class Plain:
    path: str = "all"
    """The path."""
    steps: int = 1
    """Steps."""


@dataclass(frozen=True)
class Marked(Plain):
    group: Group = field(default_factory=Group)


def test_a_config_of_which_nothing_is_marked_shows_all(capsys) -> None:
    text = helped(capsys, Plain(), "-h")
    assert flags_in(text) == {"path", "steps"}
    assert "--help all" not in text
    assert first_settings(Marked()) == ["rate"]
    assert flags_in(helped(capsys, Marked(), "-h")) == {"rate"}
    assert flags_in(helped(capsys, Marked(), "--help=all")) == {"path", "steps", "rate", "limit"}


@pytest.mark.parametrize(
    ("words", "rest", "asked"),
    [
        ("--a 1", "--a 1", ""),
        ("--a 1 --help", "--a 1", "first"),
        ("-h --a 1", "--a 1", "first"),
        ("--help all --a 1", "--a 1", "all"),
        ("--help=all", "", "all"),
        ("-h all -h", "", "all"),
        ("--path all --help", "--path all", "first"),
        ("--help --path all", "--path all", "first"),
        ("--help other", "other", "first"),
    ],
)
def test_all_is_a_word_behind_help_alone(words: str, rest: str, asked: str) -> None:
    assert split_help(words.split()) == (rest.split(), asked)

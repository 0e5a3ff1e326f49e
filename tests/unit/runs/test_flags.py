"""Flags on top of a config: what can be written, what it becomes and how a mistake reads."""

import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
from patience import PATIENCE

from lmgym.errors import InputError
from lmgym.runs.flags import override


@dataclass(frozen=True)
class Optimiser:
    learning_rate: float = 1e-5
    """Peak learning rate."""
    warmup: float | None = 0.1
    """Part of the steps that warm up."""
    steps: int = 100
    """Optimiser steps."""


@dataclass(frozen=True)
class Config:
    model: str = "gpt2"
    """Folder or name of the model."""
    labels: tuple[str, ...] = ("retry", "reply")
    """Columns that hold labels."""
    loss: Literal["bce", "mse"] = "bce"
    """The loss."""
    dry_run: bool = False
    """Stop before the first step."""
    shuffle: bool = True
    """Shuffle the rows."""
    note: str | None = None
    """A line for run.json."""
    optimiser: Optimiser = field(default_factory=Optimiser)
    """How weights move."""

    def __post_init__(self) -> None:
        if self.loss == "mse" and self.optimiser.steps > 500:
            raise InputError(f"loss=mse bears 500 steps; found {self.optimiser.steps}; use --loss bce")


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error on stderr for wrong arguments, which must exit with 2."""
    with pytest.raises(SystemExit) as stopped:
        override(Config(), arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_without_flags_the_config_stays_as_it_is() -> None:
    assert override(Config(model="mine"), []) == Config(model="mine")


def test_flags_are_flat_and_reach_a_group() -> None:
    changed = override(Config(model="mine"), ["--learning_rate", "9e-6", "--steps=7"])
    assert changed == Config(model="mine", optimiser=Optimiser(learning_rate=9e-6, steps=7))


def test_dashes_and_underscores_are_one_flag() -> None:
    assert override(Config(), ["--learning-rate=2", "--learning_rate", "2"]).optimiser.learning_rate == 2.0


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--note", "a", "--model", "x", "--note=b"], "is given twice: '--note a' and '--note b'; needed: it once: A"),
        (["--learning-rate=1", "--learning_rate", "2"], "'--learning_rate 1' and '--learning_rate 2'; needed: it once"),
        (["--dry_run", "--no_dry_run"], "--dry_run is given twice: '--dry_run' and '--no_dry_run'"),
    ],
)  # fmt: skip
def test_a_flag_with_two_values_is_refused_rather_than_one_of_them_used(arguments, found, capsys) -> None:
    assert found in mistake(capsys, *arguments)


def test_the_values_of_a_flag_that_takes_any_number_are_taken_together() -> None:
    assert override(Config(), ["--labels", "a", "b", "--model", "x", "--labels", "c"]).labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("flag", "needed"),
    [
        ("note", "found no value; needed A line for run.json."),
        ("learning_rate", "found no value; needed float: Peak learning rate."),
        ("loss", "found no value; needed one of 'bce', 'mse': The loss."),
    ],
)
def test_a_flag_without_its_value_says_what_to_give(flag: str, needed: str, capsys) -> None:
    assert mistake(capsys, f"--{flag}") == f"error: --{flag}: {needed}\n"


def test_the_command_line_is_read_when_no_arguments_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["experiment.py", "--local_rank=0", "--note", "hello there"])
    assert override(Config()).note == "hello there"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dry_run"], True),
        (["--dry-run", "true"], True),
        (["--dry_run=1"], True),
        (["--dry_run", "True"], True),
        (["--dry_run", "false"], False),
        (["--dry_run=0"], False),
        (["--no_dry_run"], False),
        (["--no-dry-run"], False),
        (["--dry_run", "--dry_run"], True),
    ],
)
def test_a_boolean_can_be_written_in_every_common_way(arguments: list[str], expected: bool) -> None:
    before = Config(dry_run=not expected)
    assert override(before, arguments).dry_run is expected


@dataclass(frozen=True)
class Choices:
    scale: Literal["group", "none"] | None = None
    """One of its choices is called none."""
    other: Literal["group", "batch"] | None = "batch"
    """None of them is."""


def test_none_is_a_choice_where_there_is_one_of_that_name() -> None:
    assert override(Choices(), ["--scale", "none", "--other", "none"]) == Choices("none", None)


def test_none_is_a_value_where_the_field_may_be_none_and_text_elsewhere() -> None:
    changed = override(Config(note="x"), ["--note", "none", "--warmup", "None", "--model", "none"])
    assert (changed.note, changed.optimiser.warmup, changed.model) == (None, None, "none")


def test_lists_take_any_number_of_words() -> None:
    assert override(Config(), ["--labels", "a", "b c", "d", "--steps", "3"]).labels == ("a", "b c", "d")
    assert override(Config(), ["--labels"]).labels == ()


def test_values_may_start_with_a_dash_or_be_empty() -> None:
    changed = override(Config(), ["--learning_rate", "-1e-5", "--note=--odd one", "--model", ""])
    assert (changed.optimiser.learning_rate, changed.note, changed.model) == (-1e-5, "--odd one", "")


@pytest.mark.parametrize("launcher", [["--local_rank=3"], ["--local_rank", "3"], ["--local-rank=3"], ["--local-rank"]])
def test_the_local_rank_of_a_launcher_is_dropped_anywhere(launcher: list[str]) -> None:
    assert override(Config(), [*launcher, "--steps", "7"]) == override(Config(), ["--steps", "7", *launcher])


def test_an_unknown_flag_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "--learning_rat", "3")
    assert "unknown flag --learning_rat; did you mean --learning_rate?" in said
    assert "did you mean --no_shuffle?" in mistake(capsys, "--no_shufle")
    assert "unknown flag --lr: write --learning_rate (--help" in mistake(capsys, "--lr", "3")


def test_names_of_other_libraries_suggest_ours(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Model:
        lora_rank: int = 0
        """."""
        batch_rows: int = 256
        """."""
        learning_rate: float = 1e-5
        """."""

    @dataclass(frozen=True)
    class Batch(Model):
        global_batch: int = 64
        """."""
        init_kl_coef: float = 0.05
        """."""

    def suggested(config: object, flag: str) -> str:
        with pytest.raises(SystemExit):
            override(config, [flag, "3"])
        said = capsys.readouterr().err
        return re.search(r"(?:did you mean|write) --(\w+)", said)[1]

    assert suggested(Model(), "--lr") == "learning_rate"
    found = [suggested(Batch(), flag) for flag in ("--lr", "--bs", "--batch_size", "--kl_coef", "--batch_row")]
    assert found == ["learning_rate", "global_batch", "global_batch", "init_kl_coef", "batch_rows"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--learning_rate", "abc"], ["--learning_rate", "'abc'", "float"]),
        (["--steps", "3.5"], ["--steps", "'3.5'", "int"]),
        (["--steps", "3", "4"], ["--steps", "'3 4'", "int"]),
        (["--steps"], ["--steps", "no value", "int"]),
        (["--warmup", "many"], ["--warmup", "'many'", "float or None"]),
        (["--loss", "huber"], ["--loss", "'huber'", "one of 'bce', 'mse'"]),
        (["--dry_run", "maybe"], ["--dry_run", "'maybe'", "true, false"]),
        (["--no_dry_run", "true"], ["--no_dry_run", "'true'", "--dry_run true"]),
        (["steps", "3"], ["unexpected argument 'steps'", "--help"]),
    ],
)
def test_a_bad_value_is_one_line_with_field_found_and_needed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    said = mistake(capsys, *arguments)
    assert said.count("\n") == 1
    assert [part for part in parts if part not in said] == []


def test_the_right_flag_is_blamed_among_several(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "--steps", "3", "--learning_rate", "abc", "--dry_run")
    assert said.startswith("error: --learning_rate")


def test_fields_are_checked_together_once_all_flags_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake(capsys, "--steps", "900", "--loss", "mse") == (
        "error: loss=mse bears 500 steps; found 900; use --loss bce\n"
    )
    crowded = Config(optimiser=Optimiser(steps=900))
    assert override(crowded, ["--loss", "mse", "--steps", "5"]).loss == "mse"


def test_only_rank_0_prints_and_all_ranks_exit_with_the_same_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lmgym.runs.flags.HEAD_START_SECONDS", 0.0)
    exits = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        for arguments in (["--stepz", "3"], ["--steps", "abc"], ["--help"]):
            with pytest.raises(SystemExit) as stopped:
                override(Config(), arguments)
            said = "".join(capfd.readouterr())
            assert bool(said) is (rank == "0"), arguments
            exits.append(stopped.value.code)
    assert exits == [2, 2, 0] * 2


def test_other_ranks_let_rank_0_print_before_they_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("lmgym.runs.flags.HEAD_START_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(SystemExit):
        override(Config(), ["--stepz"])
    assert time.monotonic() - began >= 0.2


def test_help_shows_values_of_this_config_docstrings_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        override(replace(Config(), optimiser=Optimiser(learning_rate=0.25)), ["--help"])
    shown = capsys.readouterr().out
    wanted = ["--learning_rate", "0.25", "Peak learning rate.", "How weights move.", "--no_dry_run", "--labels"]
    assert stopped.value.code == 0
    assert [word for word in wanted if word not in shown] == []
    assert "optimiser." not in shown


def test_two_fields_of_one_name_fail_an_assertion() -> None:
    @dataclass(frozen=True)
    class Twice:
        steps: int = 1
        optimiser: Optimiser = field(default_factory=Optimiser)

    with pytest.raises(AssertionError, match="two fields are called steps"):
        override(Twice(), [])


HELP = """
import sys
from dataclasses import dataclass, field
from lmgym.runs.flags import override

@dataclass(frozen=True)
class Group:
    learning_rate: float = 1e-5
    '''Peak learning rate.'''

@dataclass(frozen=True)
class Config:
    model: str = "gpt2"
    '''The model.'''
    group: Group = field(default_factory=Group)
    '''A group.'''

try:
    override(Config(), ["--help"])
finally:
    heavy = {"torch", "transformers", "datasets", "numpy", "wandb"} & sys.modules.keys()
    print("heavy:", sorted(heavy))
"""


def test_help_takes_less_than_a_third_of_a_second_of_cpu(tmp_path: Path) -> None:
    script = tmp_path / "experiment.py"
    script.write_text(HELP)

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=True, timeout=PATIENCE
        ).stdout
        assert "Peak learning rate." in shown
        assert "heavy: []" in shown
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # the best of three: the first compiles bytecode, and a busy machine inflates any of them
    assert min(seconds() for _ in range(3)) <= 0.3


def test_an_experiments_evaluation_sets_are_left_out_with_other_data() -> None:
    from reward_models.experiments.kwise_ranking import CONFIG

    assert CONFIG.probe_data is not None
    assert override(CONFIG, []).data == CONFIG.data
    assert override(CONFIG, ["--dataset", "own.jsonl"]).probe_data is None
    assert override(CONFIG, ["--dataset", "own.jsonl", "--probe_data", "mine"]).probe_data == "mine"
    assert override(CONFIG, ["--max_rows", "9"]).probe_data == CONFIG.probe_data

"""A command with random flags ends in its dry run, or with one printable line and exit code 2."""

from pathlib import Path

import pytest
from fuzzed_flags import EXPERIMENTS, Command, config_fields, make_command, run_here

from lmgym.errors import LONGEST_MESSAGE

ROOT = Path(__file__).parents[2]
SEED = 0
QUICK, ALL, BATCH = 60, 300, 20


def batches(first: int, end: int) -> list[range]:
    return [range(start, start + BATCH) for start in range(first, end, BATCH)]


def usual_flags(model: Path, pairs: Path) -> dict[str, str]:
    """Flags with which an experiment works."""
    usual = {
        "model": model, "dataset": pairs, "prompts": pairs, "scorers": "world=world:0", "precision": "fp32",
        "max_length": 128, "eval_size": 4, "global_batch": 8, "micro_batch": 2, "num_rollouts": 8,
    }  # fmt: skip
    return {name: str(value) for name, value in usual.items()}


def check(numbers: range, model: Path, pairs: Path, folder: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    fields = config_fields(ROOT)
    for number in numbers:
        check_command(make_command(SEED, number, fields, usual_flags(model, pairs)), folder, capsys)


def check_command(command: Command, folder: Path, capsys) -> None:
    code = run_here(ROOT, command)
    said = capsys.readouterr()
    assert code in (0, 2), command
    if code:
        errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, (command, said.err[-500:])
        assert len(errors[0]) <= LONGEST_MESSAGE, command
        assert errors[0].isprintable(), (command, errors[0])
    assert "\x1b" not in said.out, command
    assert [path.name for path in folder.iterdir()] == [], (command, "a dry run leaves nothing")


@pytest.mark.parametrize("numbers", batches(0, QUICK), ids=str)
def test_odd_flags_end_in_a_dry_run_or_one_line(
    numbers: range, small_models, few_pairs: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    check(numbers, small_models["llama"], few_pairs, tmp_path, capsys, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", batches(QUICK, ALL), ids=str)
def test_more_odd_flags_end_in_a_dry_run_or_one_line(
    numbers: range, small_models, few_pairs: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    check(numbers, small_models["llama"], few_pairs, tmp_path, capsys, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("script", EXPERIMENTS)
def test_a_file_that_breaks_when_it_is_read_is_refused_in_one_line_whichever_flag_names_it(
    script: str, small_models, few_pairs: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = config_fields(ROOT)[script]
    usual = {name: value for name, value in usual_flags(small_models["llama"], few_pairs).items() if name in fields}
    texts = [name for name, default in fields.items() if default is None or isinstance(default, str)]
    assert len(texts) > 10
    for name in texts:
        flags = usual | {name: "/proc/self/mem"}  # Linux answers with an I/O error
        check_command(Command(script, ("--dry_run", *(f"--{n}={v}" for n, v in flags.items()))), tmp_path, capsys)

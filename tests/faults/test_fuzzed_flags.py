"""A command with random flags ends in its dry run, or with one printable line and exit code 2."""

from pathlib import Path

import pytest
from fuzzed_flags import config_fields, make_command, run_here

from lmgym.errors import LONGEST_MESSAGE

ROOT = Path(__file__).parents[2]
SEED = 0
QUICK, ALL, BATCH = 60, 300, 20


def batches(first: int, end: int) -> list[range]:
    return [range(start, start + BATCH) for start in range(first, end, BATCH)]


def check(numbers: range, model: Path, pairs: Path, folder: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    usual = {
        "model": model, "dataset": pairs, "prompts": pairs, "scorers": "world=world:0", "precision": "fp32",
        "max_length": 128, "eval_size": 4, "global_batch": 8, "micro_batch": 2, "num_rollouts": 8,
    }  # fmt: skip
    usual = {name: str(value) for name, value in usual.items()}
    fields = config_fields(ROOT)
    for number in numbers:
        command = make_command(SEED, number, fields, usual)
        code = run_here(ROOT, command)
        said = capsys.readouterr()
        assert code in (0, 2), (number, command)
        if code:
            lines = said.err.splitlines()
            errors = [line for line in lines if line.startswith("error: ")]
            assert len(errors) == 1, (number, command, said.err[-500:])
            assert len(errors[0]) <= LONGEST_MESSAGE, (number, command)
            assert errors[0].isprintable(), (number, command, errors[0])
        printed = said.out.replace("\n", "")
        assert "\x1b" not in printed, (number, command)
        assert [path.name for path in folder.iterdir()] == [], (number, command, "a dry run leaves nothing")


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

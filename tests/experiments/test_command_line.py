"""The experiment from the command line: looking before leaping, flags, and input that cannot work."""

import json
import re
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from launching import (
    EXPERIMENT,
    ROOT,
    flags,
    launch,
    run,
    words,
)

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig
from lmgym.errors import InputError
from lmgym.runs.flags import override
from reward_models.config import RewardModelConfig
from reward_models.experiments.hh_pairwise import CONFIG

# --- looking before leaping


def test_a_dry_run_shows_three_rows_with_their_tokens_and_writes_nothing(
    small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    arguments = flags(model=small_models["llama"], dataset=few_pairs, eval_size=5, max_length=256, precision="fp32")
    done = run(launch("fork", *arguments, "--dry_run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    said = words(done.stdout)
    shared = [int(n) for n in re.findall(r"shared, (\d+) tokens: ['\"]User: ", said)]
    assert len(shared) == 3
    for side in ("chosen", "rejected"):
        found = re.findall(rf"{side}, (\d+) more = (\d+) tokens: .*?<\|eos\|>", said)
        assert [int(total) - int(more) for more, total in found] == shared


def test_an_unknown_flag_exits_with_2_and_names_the_near_one() -> None:
    done = run(launch("python", "--learning_rte", "1e-5"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown flag --learning_rte; did you mean --learning_rate? (--help all lists them)\n"


def test_an_unknown_flag_under_deepspeed_is_said_once_and_exits_with_2() -> None:
    done = run(launch("deepspeed", "--learning_rte", "1e-5"))
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert said.count("did you mean --learning_rate?") == 1
    assert "Traceback" not in said


def test_help_imports_no_torch_and_so_is_instant(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{str(EXPERIMENT)!r}, '--help', 'all']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print({'torch', 'transformers', 'deepspeed'} & set(sys.modules))"
    )
    done = run([*launch("python")[:1], "-c", code])
    assert done.returncode == 0
    assert done.stdout.endswith("set()\n")
    assert "--max_grad_norm" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "packed"),
    [
        (["--packed"], True),
        (["--packed", "true"], True),
        (["--no_packed"], False),
        (["--packed=0"], False),
        (["--packed", "None"], None),
    ],
)
def test_a_boolean_that_may_be_none_is_written_like_any_other(arguments: list[str], packed: bool | None) -> None:
    before = change(CONFIG, packed=not packed)
    assert override(before, arguments).trainer.packed is packed


# --- bad input: found, needed, fix; exit 2; before training


@pytest.fixture
def config(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path, tmp_path: Path) -> RewardModelConfig:
    """A config that would train."""
    return RewardModelConfig(
        name="bad",
        scorer=ModelConfig(model=str(small_models["llama"]), precision="fp32"),
        data=RowsConfig(dataset=str(few_pairs), eval_dataset=str(held_out_pairs), max_length=256),
        optimizer=OptimizerConfig(global_batch=4, micro_batch=1, max_updates=1),
        run=RunConfig(output=str(tmp_path / "output"), tracking="none"),
    )


def change(config: RewardModelConfig, **values: Any) -> RewardModelConfig:
    """The config with fields of its groups replaced."""
    groups = {name: getattr(config, name) for name in ("scorer", "data", "optimizer", "run", "trainer")}
    changed = {
        name: replace(group, **{key: value for key, value in values.items() if hasattr(group, key)})
        for name, group in groups.items()
    }
    return replace(config, **changed)


REFUSED = {
    "a missing dataset": ({"dataset": "/nowhere/pairs.jsonl"}, r"dataset /nowhere/pairs.jsonl does not exist; needed"),
    "a batch that does not divide": (
        {"global_batch": 10, "micro_batch": 4},
        r"global_batch=10 is not divisible by micro_batch=4 times 1 rank\(s\); use --micro_batch 2, which leaves an "
        r"update as it is, or --global_batch 8 or 12",
    ),
    "no epochs": ({"epochs": 0.0}, r"epochs=0.0; needed: above 0"),
    "a model that does not exist": ({"model": "/nowhere/model"}, r"model /nowhere/model does not exist; needed"),
    "a missing dataset of rows that are longer than the model reads": (
        {"max_length": 257, "dataset": "/nowhere/pairs.jsonl"},
        r"dataset /nowhere/pairs.jsonl does not exist; needed",
    ),
    "no room for a conversation": ({"max_length": 4}, r"max_length=4; needed: 8 to 16,777,216; fewer hold no conv"),
    "a DeepSpeed config that does not exist": (
        {"deepspeed": "configs/zero9.json"},
        r"configs/zero9.json does not exist; did you mean zero[123]\? needed: .*zero2,",
    ),
    "too little memory": (
        {"memory_gb": 0.001},
        r"needs about .* GiB a device \(weights .*\); --memory_gb is 0.001; try .*--deepspeed zero2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_training(case: str, config: RewardModelConfig) -> None:
    from reward_models.train import train_pairwise

    values, said = REFUSED[case]
    with pytest.raises(InputError, match=said):
        train_pairwise(change(config, **values))
    assert not Path(config.output).exists()


def test_an_evaluation_of_more_rows_than_there_are_takes_a_tenth_and_says_so(config: RewardModelConfig, capsys) -> None:
    from reward_models.train import train_pairwise

    train_pairwise(change(config, eval_size=99, eval_dataset=None, dry_run=True))
    said = words(capsys.readouterr().out)
    assert "warning: --eval_size 99 is all of the 23 pairs or more: 2 are evaluated on, a tenth" in said
    assert "21 pairs to train on, 2 to evaluate on" in said


def test_rows_are_truncated_to_what_the_model_reads_and_one_line_says_so(config: RewardModelConfig, capsys) -> None:
    from reward_models.train import train_pairwise

    train_pairwise(change(config, max_length=512, dry_run=True))
    said = words(capsys.readouterr().out)
    assert f"--max_length 512 exceeds what {config.scorer.model} reads: rows are truncated to its 256 tokens" in said
    assert "truncated to 256 tokens" in said
    train_pairwise(change(config, max_length=256, dry_run=True))
    assert "exceeds" not in capsys.readouterr().out


def test_more_ranks_than_pairs_are_refused(config: RewardModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmgym.models.loading import load_tokenizer
    from reward_models.pairwise import PairTask

    monkeypatch.setenv("WORLD_SIZE", "24")
    with pytest.raises(InputError, match=r"23 training pair\(s\) for 24 ranks leaves ranks without data; use fewer"):
        PairTask().prepare(config, load_tokenizer(config.scorer.model))


def assert_one_error(done: CompletedProcess[str], said: str) -> None:
    """Exit code 2 and one line on stderr, which says so."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert said in lines[0]


def test_missing_columns_are_one_line_on_stderr_with_those_found(small_models: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text('{"question": "a", "good": "b", "bad": "c"}\n' * 4)
    done = run(launch("fork", *flags(model=small_models["llama"], dataset=data, max_length=256)), cwd=tmp_path)
    assert_one_error(done, f"{data} holds no pairs: found the columns bad, good, question; needed")
    assert list(tmp_path.iterdir()) == [data]


def test_a_model_too_big_for_its_zero_level_is_one_line_with_the_next_level(
    small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    arguments = flags(model=small_models["llama"], dataset=few_pairs, max_length=256, memory_gb=0.001)
    zero2 = flags(deepspeed=ROOT / "configs/zero2.json", precision="fp32")
    done = run(launch("fork", *arguments, *zero2), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "--memory_gb is 0.001; try " in errors[0]
    assert "--deepspeed zero3" in errors[0]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_fault_after_the_folder_was_opened_is_its_outcome(
    small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    # that a family cannot be packed is found when the model is built, with run.json already there
    arguments = flags(model=small_models["bert"], dataset=few_pairs, max_length=256, precision="fp32", packed="true")
    done = run(launch("fork", *arguments, *flags(output=tmp_path / "output", tracking="none")))
    assert_one_error(done, "--packed: bert is an encoder; needed: a decoder, or no --packed")
    record = json.loads((tmp_path / "output/run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("failed", 2)
    assert record["error"].startswith("InputError: --packed")
    assert not (tmp_path / "output/model").exists()

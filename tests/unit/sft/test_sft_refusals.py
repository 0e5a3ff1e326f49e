"""Refusals of SFT before a folder opens, so that `--dry_run` says them too."""

from dataclasses import replace
from pathlib import Path

import pytest
from launching import words

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.errors import InputError
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train


@pytest.fixture
def config(small_models: dict[str, Path], chats_file: Path, tmp_path: Path) -> SftConfig:
    return SftConfig(
        "refused",
        ModelConfig(str(small_models["llama"]), precision="fp32"),
        RowsConfig(str(chats_file), max_length=128, eval_size=8),
        OptimizerConfig(global_batch=8, micro_batch=2, max_updates=1),
        SamplesConfig(sample_prompts=2, sample_tokens=6),
        RunConfig(str(tmp_path / "run"), tracking="none"),
    )


def refusal(config: SftConfig, dry_run: bool) -> str:
    with pytest.raises(InputError) as raised:
        train(replace(config, run=replace(config.run, dry_run=dry_run)), CHAT)
    assert not Path(config.output).exists()
    return str(raised.value)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_scorer_is_no_policy(config: SftConfig, scorer_folders: dict[str, Path], dry_run: bool) -> None:
    scorer = replace(config.policy, model=str(scorer_folders["llama"]))
    said = refusal(replace(config, policy=scorer), dry_run)
    fault = "it is a LlamaForSequenceClassification, a scorer, which cannot generate text; needed: "
    assert f"is not a causal model: {fault}" in said


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a=", "needed [name=]PATH"),
        ("/nowhere", "/nowhere does not exist"),
        ("a=/nowhere", "/nowhere does not exist"),
        ("a=x,a=y", "names a twice"),
    ],
)
def test_scorers_of_the_answers_are_there(config: SftConfig, words: str, expected: str, dry_run: bool) -> None:
    assert expected in refusal(replace(config, samples=replace(config.samples, scorers=words)), dry_run)


def test_a_policy_is_no_scorer_of_the_answers(config: SftConfig, small_models: dict[str, Path]) -> None:
    judged = replace(config.samples, scorers=f"a={small_models['gpt2']}")
    assert str(small_models["gpt2"]) in refusal(replace(config, samples=judged), dry_run=True)


def test_rows_are_truncated_to_what_the_policy_reads_and_a_missing_data_set_is_told(config: SftConfig, capsys) -> None:
    long = replace(config, data=replace(config.data, max_length=512))
    train(replace(long, run=replace(config.run, dry_run=True)), CHAT)
    said = words(capsys.readouterr().out)
    assert f"--max_length 512 exceeds what {config.policy.model} reads: rows are truncated to its 256 tokens" in said
    assert "truncated to 256 tokens" in said
    absent = replace(long, data=replace(long.data, dataset="/nowhere/chats.jsonl"))
    assert "dataset /nowhere/chats.jsonl does not exist" in refusal(absent, dry_run=True)

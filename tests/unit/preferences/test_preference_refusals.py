"""Refusals of preference training before a folder opens, and the output of a dry run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from launching import words

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.errors import InputError
from lmgym.runs.flags import override
from preferences.config import CONSTANTS, LossConfig, PreferenceConfig, ReferenceConfig
from preferences.train import train


@pytest.fixture
def config(small_models: dict[str, Path], few_pairs: Path, tmp_path: Path) -> PreferenceConfig:
    return PreferenceConfig(
        "refused",
        ModelConfig(str(small_models["llama"]), precision="fp32"),
        RowsConfig(str(few_pairs), max_length=128, eval_size=4),
        optimizer=OptimizerConfig(global_batch=4, micro_batch=2, max_updates=1),
        samples=SamplesConfig(sample_prompts=2, sample_tokens=6),
        run=RunConfig(str(tmp_path / "run"), tracking="none"),
    )


def refusal(config: PreferenceConfig) -> str:
    for dry_run in (True, False):
        with pytest.raises(InputError) as raised:
            train(replace(config, run=replace(config.run, dry_run=dry_run)))
        assert not Path(config.output).exists()
    return str(raised.value)


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(("label", "word"), [(True, "liked"), (False, "disliked")])
def test_replies_of_one_label_teach_kto_nothing(
    config: PreferenceConfig, label: bool, word: str, tmp_path: Path
) -> None:
    rows = [{"prompt": f"tea {i}?", "completion": "yes", "label": label} for i in range(9)]
    one = replace(config.data, dataset=write(tmp_path / "one.jsonl", rows))
    said = refusal(replace(config, loss=LossConfig("kto"), data=one))
    assert said.startswith(f"all 5 replies to train on are {word}; needed: some of both")
    assert ("lmgym train sft chat" in said) is label


def test_where_one_label_is_left_the_rejected_rows_and_their_reasons_stand_first(
    config: PreferenceConfig, tmp_path: Path
) -> None:
    rows = [{"prompt": f"tea {i}?", "completion": "yes", "label": True} for i in range(9)]
    rows += [{"prompt": f"tea {i}?", "completion": " ", "label": False} for i in range(9, 21)]
    one = replace(config.data, dataset=write(tmp_path / "one.jsonl", rows))
    said = refusal(replace(config, loss=LossConfig("kto"), data=one))
    assert said.startswith("12 of 21 rows rejected: 12 without a reply (field completion); the first: ")
    assert "; all 5 replies to train on are liked; needed: some of both" in said


def test_a_set_of_which_nothing_is_left_says_what_its_rows_lack_and_one_that_is_too_small_its_size(
    config: PreferenceConfig, tmp_path: Path
) -> None:
    rows = [{"prompt": f"tea {i}?", "chosen": "a " * 400, "rejected": "b"} for i in range(10)]
    data = replace(config.data, dataset=write(tmp_path / "long.jsonl", rows))
    said = refusal(replace(config, data=data))
    assert said.startswith("10 of 10 rows rejected: 10 too long (field chosen); the first: ")
    assert "no pair of 10 rows is left for training; needed: usable rows, or a longer --max_length" in said


def test_pairs_of_identical_sides_are_counted_and_nothing_else_is_refused(
    config: PreferenceConfig, tmp_path: Path, capsys
) -> None:
    rows = [{"prompt": f"tea {i}?", "chosen": "yes", "rejected": "yes" if i < 3 else "no"} for i in range(12)]
    same = replace(config.data, dataset=write(tmp_path / "same.jsonl", rows))
    train(replace(config, data=same, run=replace(config.run, dry_run=True)))
    said = words(capsys.readouterr().out)
    assert "5 pairs to train on, 4 to evaluate on" in said
    assert "3 of 12 rows rejected: 3 with identical replies" in said
    assert "tokens to predict: ' yes<|eos|>'" in said


def test_soft_preferences_are_read_for_bon_alone(config: PreferenceConfig, tmp_path: Path) -> None:
    rows = [{"prompt": f"tea {i}?", "chosen": "yes", "rejected": "no", "preference": 1.5} for i in range(12)]
    soft = replace(config, data=replace(config.data, dataset=write(tmp_path / "soft.jsonl", rows)))
    said = refusal(replace(soft, loss=LossConfig("bon")))
    assert "preference: 1.5; needed: a number from 0 to 1, the probability that the chosen reply is the bet" in said
    train(replace(soft, run=replace(config.run, dry_run=True)))


def test_a_prompt_that_fills_the_context_is_refused_where_it_is_to_be_answered(
    config: PreferenceConfig, tmp_path: Path
) -> None:
    file = write(tmp_path / "prompts.jsonl", [{"prompt": "tea? " * 200}])
    said = refusal(replace(config, samples=replace(config.samples, prompts=file)))
    assert "line 1 has" in said
    assert "fills the context; needed: at most 250, so that --sample_tokens 6 fit" in said


def test_an_adapter_without_its_base_is_no_model(config: PreferenceConfig, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    write(tmp_path / "adapter/adapter_config.json", [{}])
    said = refusal(replace(config, policy=replace(config.policy, model=str(tmp_path / "adapter"))))
    assert "it is an adapter without its base: lmgym merge " in said


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (LossConfig("dpo", gamma=0.5), "gamma=0.5, which --loss dpo does not use; needed: --loss simpo"),
        (
            LossConfig("kto", label_smoothing=0.1),
            "label_smoothing=0.1, which --loss kto does not use; needed: --loss dpo",
        ),
        (LossConfig("orpo", beta=0.2), "beta=0.2, which --loss orpo does not use; needed: --loss dpo or --loss ipo or"),
        (LossConfig("dpo", beta=0.0), "beta=0.0; needed: above 0"),
    ],
)
def test_constants_of_another_loss_are_refused(config: PreferenceConfig, loss: LossConfig, expected: str) -> None:
    assert refusal(replace(config, loss=loss)).startswith(expected)


def test_every_constant_belongs_to_a_loss() -> None:
    used = {name for names in CONSTANTS.values() for name in names}
    assert used == {name for name in LossConfig.__dataclass_fields__ if name != "loss"}


@pytest.mark.parametrize(
    ("loss", "lora_rank", "reference", "expected"),
    [
        ("simpo", 0, ReferenceConfig("gpt2"), "--loss simpo has no reference; needed: dpo, ipo, kto or bon"),
        (
            "dpo",
            0,
            ReferenceConfig(reference_source="adapter"),
            "reference_source=adapter with lora_rank=0; needed: --",
        ),
        ("dpo", 2, ReferenceConfig("m", "adapter"), "reference_source=adapter with reference 'm'; needed: --lora_rank"),
    ],
)
def test_a_reference_that_cannot_be_is_refused(
    config: PreferenceConfig, loss, lora_rank: int, reference: ReferenceConfig, expected: str
) -> None:
    policy = replace(config.policy, lora_rank=lora_rank)
    changed = replace(config, loss=LossConfig(loss), policy=policy, reference=reference)
    assert refusal(changed).startswith(expected)


def test_a_reference_with_another_vocabulary_is_refused(config: PreferenceConfig, tokenizers, tmp_path: Path) -> None:
    from lmgym.models.loading import load_config

    load_config(config.policy.model).save_pretrained(tmp_path / "other")
    tokenizers["llama"].save_pretrained(tmp_path / "other")
    said = refusal(replace(config, reference=ReferenceConfig(str(tmp_path / "other"))))
    assert f"the reference {tmp_path / 'other'} has " in said
    assert "needed: a reference with the policy's vocabulary" in said


def test_the_flags_of_every_group_are_distinct() -> None:
    config = override(PreferenceConfig("x"), ["--loss", "kto", "--reference", "r", "--liked_weight", "2"])
    assert (config.loss.loss, config.reference.reference, config.loss.liked_weight) == ("kto", "r", 2.0)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("loss_type", "loss"), ("desirable_weight", "liked_weight"), ("simpo_gamma", "gamma"), ("ref_model", "reference")],
)
def test_names_of_trl_suggest_ours(theirs: str, ours: str, capsys) -> None:
    with pytest.raises(SystemExit):
        override(PreferenceConfig("x"), [f"--{theirs}", "1"])
    assert f"--{ours}" in capsys.readouterr().err

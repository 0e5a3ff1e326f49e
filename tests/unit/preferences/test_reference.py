"""The reference's log-probabilities: computed once, read again, and never those of anything else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import preferences.reference as reference
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.errors import InputError
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.runs.run import Run
from lmgym.training.plan import TrainingPlan
from preferences.check import check
from preferences.config import LossConfig, PreferenceConfig, ReferenceConfig
from preferences.objectives import ReplyModel
from preferences.probes import Forwards
from preferences.reference import FILE, reference_key, uses_adapter, with_reference

Plan = TrainingPlan[PreferenceConfig]


@pytest.fixture
def config(small_models: dict[str, Path], few_pairs: Path, tmp_path: Path) -> PreferenceConfig:
    return PreferenceConfig(
        "x",
        ModelConfig(str(small_models["llama"]), precision="fp32"),
        RowsConfig(str(few_pairs), max_length=128, eval_size=4),
        optimizer=OptimizerConfig(global_batch=4, micro_batch=2, max_updates=1),
        samples=SamplesConfig(sample_prompts=0),
        run=RunConfig(str(tmp_path / "run"), tracking="none"),
    )


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each computation."""
    sizes: list[int] = []
    compute = reference.compute

    def counted(plan, rows, supervisor):
        sizes.append(len(rows))
        return compute(plan, rows, supervisor)

    monkeypatch.setattr(reference, "compute", counted)
    return sizes


def fill(plan: Plan, folder: Path) -> list[tuple[float, ...]]:
    """The reference's log-probabilities of all examples, in a run in this folder."""
    with Run.start(folder, {}, 0, "none") as run:
        data = with_reference(plan, run, None)
    return [example.reference for example in (*data.train, *data.evaluation)]


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_they_are_computed_once_and_read_again(
    loss, config: PreferenceConfig, computed: list[int], tmp_path: Path
) -> None:
    plan = check(replace(config, loss=LossConfig(loss))).training
    first = fill(plan, tmp_path / "run")
    assert len(computed) == 1
    assert fill(plan, tmp_path / "run") == first
    assert len(computed) == 1
    policy = PolicyModel(load_policy(config.policy.model, plan.tokenizer)).eval()
    rows = [row for example in (*plan.data.train, *plan.data.evaluation) for row in example.rows]
    wanted = Forwards(rows, ReplyModel(policy, plan.tokenizer.eos_token_id), 50).sums(policy, torch.device("cpu"))
    np.testing.assert_allclose(np.array(first).ravel(), wanted.numpy(), rtol=1e-5)


def test_weights_of_the_reference_are_in_bf16_where_autocast_would_make_them_so(
    config: PreferenceConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the same numbers; the model is loaded in fp32, and rounded before it moves to the device."""
    plan = check(replace(config, policy=replace(config.policy, precision="bf16"))).training
    rounded = reference.round_frozen
    dtypes: list[set[torch.dtype]] = []

    def watched(model, plan) -> None:
        rounded(model, plan)
        dtypes.append({layer.weight.dtype for layer in model.modules() if isinstance(layer, torch.nn.Linear)})

    monkeypatch.setattr(reference, "round_frozen", watched)
    found = fill(plan, tmp_path / "rounded")
    assert dtypes == [{torch.bfloat16}]
    monkeypatch.setattr(reference, "round_frozen", lambda model, plan: None)
    assert fill(plan, tmp_path / "not") == found


def test_other_rows_another_model_or_another_precision_are_computed_anew(
    config: PreferenceConfig, computed: list[int], small_models: dict[str, Path], tmp_path: Path
) -> None:
    plan = check(config).training
    fill(plan, tmp_path / "run")
    others = [
        replace(config, data=replace(config.data, max_length=100)),
        replace(config, reference=ReferenceConfig(reference=str(small_models["gpt2"]))),
        replace(config, policy=replace(config.policy, precision="bf16")),
    ]
    for number, other in enumerate(others, 2):
        changed = check(other).training
        assert reference_key(changed) != reference_key(plan)
        fill(changed, tmp_path / "run")
        assert len(computed) == number


def test_a_file_of_a_different_reference_is_refused_and_its_own_is_read(
    config: PreferenceConfig, computed: list[int], small_models: dict[str, Path], tmp_path: Path
) -> None:
    first = fill(check(config).training, tmp_path / "a")
    file = str(tmp_path / "a" / FILE)
    given = replace(config, reference=ReferenceConfig(reference_logprobs=file))
    assert fill(check(given).training, tmp_path / "b") == first
    assert len(computed) == 1
    faults = {
        "the tokens of other rows": replace(given, data=replace(config.data, max_length=100)),
        "another reference": replace(
            given, reference=ReferenceConfig(str(small_models["qwen3"]), reference_logprobs=file)
        ),
        "another precision": replace(given, policy=replace(config.policy, precision="bf16")),
    }
    for words, other in faults.items():
        with pytest.raises(InputError, match=f"has log-probabilities of {words}; needed: those of this run's rows"):
            fill(check(other).training, tmp_path / "c")


def test_a_damaged_file_is_computed_anew_and_refused_where_it_was_named(
    config: PreferenceConfig, computed: list[int], tmp_path: Path
) -> None:
    plan = check(config).training
    first = fill(plan, tmp_path / "run")
    file = tmp_path / "run" / FILE
    whole, word = file.read_bytes(), "precision".encode("utf-32-le")
    for content in (b"", whole[: len(whole) // 2], b"{}", whole.replace(word, word[::-1])):
        file.write_bytes(content)
        assert fill(plan, tmp_path / "run") == first
        assert file.read_bytes()[:2] == b"PK"
    assert len(computed) == 5
    (tmp_path / "bad.npz").write_bytes(b"no")
    for name, fault in (("bad", "cannot be read; needed: the reference_logprobs.npz of an"), ("none", "is no file")):
        named = ReferenceConfig(reference_logprobs=str(tmp_path / f"{name}.npz"))
        with pytest.raises(InputError, match=fault):
            fill(replace(plan, config=replace(config, reference=named)), tmp_path / "other")


def test_a_loss_without_a_reference_and_an_adapter_need_no_file(
    config: PreferenceConfig, computed: list[int], tmp_path: Path
) -> None:
    without = [
        replace(config, loss=LossConfig("simpo")),
        replace(config, policy=replace(config.policy, lora_rank=2)),
    ]
    for other in without:
        assert set(fill(check(other).training, tmp_path / "run")) == {()}
    assert not computed
    assert [uses_adapter(other) for other in without] == [False, True]
    also = replace(without[1], reference=ReferenceConfig(reference_source="computed"))
    assert not uses_adapter(also)

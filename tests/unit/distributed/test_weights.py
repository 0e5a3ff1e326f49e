"""A weight that is no number is found wherever a model is loaded or saved, and no other weight is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmgym.distributed import weights as finite_weights
from lmgym.distributed.weights import non_finite_weight, own_weights, refuse_non_finite_weights
from lmgym.errors import InputError, RunStopped
from lmgym.generation.local_generation import load_causal
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.runs.resuming import Start
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.scoring.scorers import HFScorer
from ppo.actor_critic import VALUE_HEAD, ValueHead, load_critic, load_value_head


def small_module() -> torch.nn.Module:
    module = torch.nn.BatchNorm1d(6)
    module.register_buffer("passing", torch.full((3,), torch.inf), persistent=False)
    return module


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_number_of_many_is_found_and_named(value: float, dtype: torch.dtype) -> None:
    weights = {"first": torch.ones(3, dtype=dtype), "second": torch.randn(70, 300).to(dtype)}
    assert non_finite_weight(weights.items()) == ""
    weights["second"].t()[299, 69] = value
    assert non_finite_weight(weights.items()) == f"{value} in second"
    assert non_finite_weight([("turned", weights["second"].t())]) == f"{value} in turned"


def test_a_number_of_eight_bits_is_looked_at_too() -> None:
    weights = torch.ones(2000).to(torch.float8_e4m3fn)
    assert non_finite_weight([("a", weights)]) == ""
    weights[1999] = torch.nan
    assert non_finite_weight([("a", weights)]) == "nan in a"


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float32, 3e38), (torch.bfloat16, 3e38), (torch.float16, 65504.0)]
)
def test_numbers_whose_norm_is_infinite_are_none_the_less_finite(
    dtype: torch.dtype, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.full((100,), largest, dtype=dtype)
    assert torch.linalg.vector_norm(weights).isinf()
    assert non_finite_weight([("a", weights)]) == ""
    monkeypatch.setattr(finite_weights, "BLOCK", 7)  # in blocks, the last of which is short
    weights[99] = torch.nan
    assert non_finite_weight([("a", weights)]) == "nan in a"


def test_saved_buffers_count_and_others_do_not() -> None:
    module = small_module()
    assert [name for name, _ in own_weights(module)] == [
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
    ]  # fmt: skip
    refuse_non_finite_weights(module, "here")
    module.running_var[2] = torch.inf  # type: ignore[index,operator]
    with pytest.raises(InputError, match="the weights of here are not all finite: found inf in running_var; needed: "):
        refuse_non_finite_weights(module, "here")


def test_nothing_is_finite() -> None:
    assert non_finite_weight([("a", torch.empty(0)), ("b", torch.ones(2, dtype=torch.int64))]) == ""


@pytest.mark.parametrize(("rank", "numbers"), [("0", [0.0, 1.0, 2.0]), ("1", [3.0, 4.0]), ("2", [])])
def test_of_a_sharded_weight_each_rank_looks_at_its_own_numbers_and_at_no_padding(
    rank: str, numbers: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    weight = torch.nn.Parameter(torch.empty(0))  # five numbers on three ranks, three each with padding, as ZeRO-3 does
    parts = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, torch.nan, torch.nan, torch.nan, torch.nan])
    weight.ds_id, weight.ds_numel = 0, 5  # type: ignore[attr-defined]
    weight.ds_tensor = parts[3 * int(rank) :][:3].clone()  # type: ignore[attr-defined]
    module = torch.nn.Module()
    module.weight = weight
    [(_, own)] = own_weights(module)
    assert own.tolist() == numbers
    assert non_finite_weight(own_weights(module)) == ""
    if numbers:
        weight.ds_tensor[len(numbers) - 1] = torch.nan  # type: ignore[attr-defined]
        assert non_finite_weight(own_weights(module)) == "nan in weight"


LOADS: dict[str, Callable[[str], object]] = {
    "policy": lambda name: load_policy(name, load_tokenizer(name)),
    "classifier": lambda name: load_classifier(name, load_tokenizer(name)),
    "generator": load_causal,
    "scorer": HFScorer.load,
    "critic": lambda name: load_critic(name, load_tokenizer(name)),
}


@pytest.mark.parametrize("kind", LOADS)
def test_a_model_with_one_embedding_that_is_no_number_is_not_loaded(
    kind: str, small_models: dict[str, Path], scorer_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree((scorer_folders if kind in ("scorer", "critic") else small_models)["llama"], folder)
    LOADS[kind](str(folder))
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][-1, 3] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError) as caught:
        LOADS[kind](str(folder))
    assert "found nan in model.embed_tokens.weight" in str(caught.value)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_value_head_that_is_no_number_is_not_loaded(tmp_path: Path) -> None:
    head = ValueHead(8, seed=0)
    save_file(head.state_dict() | {"outer.bias": torch.tensor([torch.inf])}, tmp_path / VALUE_HEAD)
    with pytest.raises(InputError, match=r"critic .* found inf in outer.bias"):
        load_value_head(head, str(tmp_path))


def test_neither_a_checkpoint_nor_results_are_saved_with_a_weight_that_is_no_number(tmp_path: Path) -> None:
    module, written = small_module(), []

    def begin(name: str) -> tuple[Run, Supervisor]:
        run = Run.start(tmp_path / name, {}, seed=0, tracking="none", start=Start("mine"))
        return run, Supervisor(run, Start("mine"), {"ranks": 1}, limit=2, stall_timeout=0)

    def save(name: str, supervisor: Supervisor) -> None:
        if name == "checkpoint":
            supervisor.save(8, written.append, module)
        else:
            with supervisor.saving_results(module):
                written.append(tmp_path)

    for name in ("checkpoint", "results"):
        run, supervisor = begin(name)
        supervisor.save(4, lambda folder: (folder / "weights").touch(), module)
        module.weight.data[5] = torch.nan
        with pytest.raises(RunStopped) as caught, run:
            save(name, supervisor)
        module.weight.data[5] = 1.0
        assert (caught.value.outcome, caught.value.exit_code) == ("non_finite", 65)
        assert "found nan in weight; they were not saved; the last checkpoint is of step 4 (" in str(caught.value)
        assert json.loads((run.folder / "run.json").read_text())["exit_code"] == 65
    assert written == []

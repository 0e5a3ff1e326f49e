"""Raw DeepSpeed through `Engine`, and what `resolve_config` and `read_config` refuse."""

import json
from pathlib import Path

import pytest
import torch
from launching import ROOT, launch, run

from lmgym.distributed.deepspeed_config import read_config, resolve_config, zero_stage
from lmgym.distributed.deepspeed_engine import Engine
from lmgym.errors import InputError

CONFIGS = sorted((ROOT / "configs").glob("*.json"))
NAMES = [path.name for path in CONFIGS]
RUN = {
    "micro_batch": 3,
    "accumulation": 2,
    "ranks": 4,
    "precision": "bf16",
    "max_grad_norm": 0.5,
    "hidden_size": 10,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict]:
    """The results of each config on two ranks, all in one launch."""
    file = tmp_path_factory.mktemp("engine") / "found.json"
    done = run(launch("forks", file, script=Path(__file__).parent / "engine_script.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text())


def test_there_is_a_config_for_every_level_and_offload() -> None:
    assert NAMES == ["zero1.json", "zero2.json", "zero2_offload.json", "zero3.json", "zero3_offload.json"]


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_with_accumulation_and_clipping_move_as_plain_adamw_does(name: str, found: dict) -> None:
    assert found[name]["stage"] == int(name[4])
    assert found[name]["sharded"] is name.startswith("zero3")
    assert found[name]["moved"] > 1e-2
    assert found[name]["difference"] < 1e-6
    assert found[name]["stepped"] == [True] * 5


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_of_one_rank_that_is_not_finite_is_skipped_by_all_and_said(name: str, found: dict) -> None:
    assert found[name]["stepped_on_nan"] is False
    assert found[name]["moved_by_nan"] == 0.0


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_every_auto_of_our_configs_is_filled(path: Path) -> None:
    config = read_config(path)
    before = json.dumps(config)
    resolved = resolve_config(config, **RUN)
    assert "auto" in before
    assert json.dumps(config) == before, "the config itself stays as it was: it serves the Trainer too"
    assert '"auto"' not in json.dumps(resolved)
    assert resolved["train_batch_size"] == 24
    assert resolved["train_micro_batch_size_per_gpu"] == 3
    assert resolved["gradient_accumulation_steps"] == 2
    assert resolved["gradient_clipping"] == 0.5
    assert resolved["bf16"] == {"enabled": True}
    assert resolved["fp16"] == {"enabled": False}
    assert zero_stage(resolved) == int(path.name[4])
    if zero_stage(resolved) == 3:
        assert resolved["zero_optimization"]["reduce_bucket_size"] == 100
        assert resolved["zero_optimization"]["stage3_param_persistence_threshold"] == 100


@pytest.mark.parametrize(("precision", "enabled"), [("fp32", (False, False)), ("fp16", (False, True))])
def test_precision_is_what_the_run_says(precision: str, enabled: tuple[bool, bool]) -> None:
    resolved = resolve_config(read_config(CONFIGS[0]), **{**RUN, "precision": precision})
    assert (resolved["bf16"]["enabled"], resolved["fp16"]["enabled"]) == enabled


@pytest.mark.parametrize(
    ("config", "precision", "said"),
    [
        ({"fp16": {"enabled": False}}, "fp16", "fp16.enabled is false, the arguments make it true"),
        ({"bf16": {"enabled": False}}, "bf16", "bf16.enabled is false, the arguments make it true"),
        ({"bf16": {"enabled": True}}, "fp32", "bf16.enabled is true, the arguments make it false"),
    ],
)
def test_a_precision_that_is_not_the_runs_is_refused_with_both(config: dict, precision: str, said: str) -> None:
    with pytest.raises(InputError, match=said + '; write "auto" there, or change --precision'):
        resolve_config({"zero_optimization": {"stage": 2}, **config}, **{**RUN, "precision": precision})


def test_an_auto_that_nothing_fills_is_refused_by_its_path() -> None:
    with pytest.raises(InputError, match=r"optimizer\.params\.lr is \"auto\""):
        resolve_config({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, **RUN)


def test_a_batch_size_that_is_not_the_runs_is_refused_with_both() -> None:
    with pytest.raises(InputError, match=r"train_micro_batch_size_per_gpu is 7, .* make it 3; write \"auto\""):
        resolve_config({"train_micro_batch_size_per_gpu": 7}, **RUN)


def test_an_engine_does_not_start_on_auto() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"bf16\.enabled is \"auto\""):
        Engine.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), {"bf16": {"enabled": "auto"}})


def test_the_level_of_no_config_is_0() -> None:
    assert (zero_stage(None), zero_stage({}), zero_stage({"zero_optimization": {"stage": 2}})) == (0, 0, 2)


def test_a_config_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"zero9\.json does not exist; did you mean zero[123]\? needed: .*zero2,"):
        read_config(tmp_path / "zero9.json")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is not JSON"), ("[1]", "is a JSON list; needed: an object"), ("", "is not JSON")]
)
def test_a_file_that_is_no_config_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=said):
        read_config(tmp_path / "bad.json")

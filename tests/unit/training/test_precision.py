"""The precision of a run that names none: bf16 only where the device computes in it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.config import ModelConfig
from lmgym.runs.fields import flatten
from lmgym.runs.flags import override
from lmgym.training import precision
from lmgym.training.precision import processor_has_bf16, with_native_precision
from ppo.experiments.hh_harmless import CONFIG as PPO
from preferences.experiments.dpo import CONFIG as DPO
from reward_models.experiments.hh_pairwise import CONFIG as PAIRS
from sft.experiments.chat import CONFIG as SFT


def of(config: object) -> object:
    """The precision in a stage's settings."""
    return flatten(config)["precision"]


@pytest.mark.parametrize(
    ("information", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 wbnoinvd\n", True),  # AMD Zen 4
        ("processor\t: 0\nflags\t\t: fpu avx512f amx_bf16 amx_tile\n", True),  # Intel Sapphire Rapids
        ("processor\t: 0\nFeatures\t: fp asimd i8mm bf16 dgh\n", True),  # ARM Neoverse V1
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", False),  # Intel Ice Lake
        ("processor\t: 0\nmodel name\t: a bf16\nflags\t\t: fpu\n", False),
        ("", False),
    ],
)
def test_a_processor_is_known_by_its_features(information: str, has: bool) -> None:
    assert processor_has_bf16(information) is has


@pytest.mark.parametrize("config", [PPO, DPO, PAIRS, SFT])
@pytest.mark.parametrize("has", [True, False])
def test_a_run_that_names_no_precision_has_the_devices(config: object, has: bool, monkeypatch, capsys) -> None:
    monkeypatch.setattr(precision, "computes_in_bf16", lambda: has)
    assert of(config) == "bf16"
    assert of(with_native_precision(config)) == ("bf16" if has else "fp32")
    assert ("precision fp32, since this device emulates bf16" in capsys.readouterr().out) is not has


def test_a_flag_names_a_precision(monkeypatch) -> None:
    monkeypatch.setattr(precision, "computes_in_bf16", lambda: False)
    assert of(with_native_precision(override(SFT, ["--precision", "bf16"]))) == "bf16"
    assert of(with_native_precision(override(SFT, ["--seed", "1"]))) == "fp32"


def test_a_precision_that_is_named_stays_and_an_emulated_one_is_warned_of(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(precision, "computes_in_bf16", lambda: False)
    named, warning = replace(SFT, policy=ModelConfig(precision="bf16")), "warning: this device emulates bf16"
    assert with_native_precision(named) is named
    assert warning in capsys.readouterr().out
    for other in ("fp32", "fp16"):
        exact = replace(SFT, policy=ModelConfig(precision=other))
        assert with_native_precision(exact) is exact
    assert not capsys.readouterr().out
    config = tmp_path / "zero.json"
    config.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    sharded = replace(SFT, run=replace(SFT.run, deepspeed=str(config)))
    assert with_native_precision(sharded) is sharded
    assert warning in capsys.readouterr().out
    config.write_text(json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}))
    assert of(with_native_precision(sharded)) == "fp32"

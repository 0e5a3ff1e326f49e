"""A user's DeepSpeed JSON against the run's arguments, before anything is loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from patience import PATIENCE
from transformers import GPT2Config

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.distributed.deepspeed_config import match_run, read_config, resolve_config
from lmgym.errors import InputError
from lmgym.training import plan
from ppo import setup
from ppo.config import PPOConfig
from sft.config import SftConfig

ROOT = Path(__file__).parents[3]
ZERO2 = {"zero_optimization": {"stage": 2}}


def read(folder: Path, config) -> dict:
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    return read_config(path)


def test_what_deepspeed_writes_into_its_checkpoints_has_no_class_of_ours() -> None:
    unset = OptimizerConfig()
    values = match_run({}, unset.smallest_micro_batch, 2, 4, ModelConfig().precision, unset.max_grad_norm)
    assert {type(value) for value in values.values()} == {bool, int, float}


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"bf16": ' * 900 + "1" + "}" * 900, "[" * 100_000])
def test_a_file_that_is_nested_too_deeply_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(InputError, match=r"more than 20 levels|not JSON: maximum recursion"):
        read_config(tmp_path / "ds.json")


@pytest.mark.parametrize(
    "config",
    [
        {"k" * 5000: 1}, {"zero_optimization": "x" * 5000}, {"zero_optimization": {"stage": "3" * 5000}},
        {"zero_optimization": {"stage": 2, "k" * 5000: 1}}, {"zero_optimization": {"reduce_bucket_size": "x" * 5000}},
        {"bf16": {"enabled": ["x" * 5000]}},
    ],
)  # fmt: skip
def test_what_a_message_quotes_of_a_file_is_short(config: dict, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, config)
    assert len(str(error.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("name", ["zero2", "zero2.json", ROOT / "configs/zero2.json"])
def test_a_shipped_config_is_read_by_its_name_from_any_folder(name, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = json.loads((ROOT / "configs/zero2.json").read_text())
    assert {key: read_config(name)[key] for key in expected} == expected


def test_a_file_of_the_users_own_goes_before_a_shipped_config_of_that_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    assert read_config("zero2.json")["zero_optimization"]["stage"] == 1
    assert read_config("zero2")["zero_optimization"]["stage"] == 2


def test_an_unknown_config_is_refused_with_the_nearest_and_all_names(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = ", ".join(sorted(path.stem for path in (ROOT / "configs").glob("*.json")))
    for name, near in (("zero2_ofload", "did you mean zero2_offload? "), ("qqq", "")):
        with pytest.raises(InputError) as caught:
            read_config(name)
        assert str(caught.value) == (
            f"DeepSpeed config {name} does not exist; {near}needed: {known}, or the path of a JSON file"
        )


def resolve(config: dict, precision: str = "bf16") -> dict:
    return resolve_config(config, 2, 3, 4, precision, 1.0, hidden_size=8)


def test_absent_settings_are_filled_in_like_auto(tmp_path: Path) -> None:
    found = resolve(read(tmp_path, ZERO2))
    batches = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
    rest = {"gradient_clipping": 1.0, "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    assert found == ZERO2 | batches | rest
    assert resolve(ZERO2) == found  # also of one that was not read from a file
    assert resolve(read(tmp_path, ZERO2 | {"bf16": {"check_grad_overflow": True}}))["bf16"]["enabled"]
    assert ZERO2 == {"zero_optimization": {"stage": 2}}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.json")), ids=lambda p: p.stem)
def test_our_own_configs_are_complete(path: Path) -> None:
    """A checkpoint records the config: one that reads otherwise than before would be another run."""
    assert read_config(path) == json.loads(path.read_text())


def test_the_trainer_finds_auto_where_it_fills_nothing_absent(tmp_path: Path) -> None:
    found = read(tmp_path, {"steps_per_print": 10})
    assert found["zero_optimization"] == {"stage": 0}  # which accelerate looks up
    assert found["gradient_clipping"] == found["train_batch_size"] == found["bf16"]["enabled"] == "auto"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([ZERO2], r"ds\.json is a JSON list; needed: an object"),
        ({}, r'ds\.json is empty; needed: at least \{"zero_optimization"'),
        ({"zero_optimization": {"stage": 4}}, r"zero_optimization\.stage is 4; needed: 0, 1, 2 or 3"),
        ({"zero_optimization": {"stage": "two"}}, r'zero_optimization\.stage is "two"; needed: 0, 1, 2 or 3'),
        ({"zero_optimization": {"stage": [2]}}, r"zero_optimization\.stage is \[2\]; needed"),
        ({"zero_optimization": {"stage": True}}, r"zero_optimization\.stage is true; needed"),
        ({"zero_optimization": [2]}, r"zero_optimization is \[2\]; needed: an object"),
        ({"zero_optimization": None}, r"zero_optimization is null; needed: an object"),
        (ZERO2 | {"bf16": True}, r"bf16 is true; needed: an object"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}},
            r'offload_optimizer is "cpu"; needed: an obj',
        ),
        (ZERO2 | {"bf16": {"enabled": True}, "fp16": {"enabled": True}}, r"bf16 and fp16 are both enabled; write"),
    ],
)
def test_an_unusable_config_is_refused_with_the_reason(config, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, config)


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("zero_optimzation", 'did you mean "zero_optimization"'),
        ("gradient_cliping", 'did you mean "gradient_clipping"'),
        ("bfloat16", 'did you mean "bf16"'),
        ("zero", "remove it"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f'"{key}" is not read by DeepSpeed; {fix}'):
        read(tmp_path, ZERO2 | {key: {"stage": 2}})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"zero_optimization": {"reduce_buket_size": 9}}, r'zero_optimization\.reduce_buket_size is not read by '
         r'DeepSpeed; did you mean "reduce_bucket_size"'),
        ({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}}, r"offload_optimizer\.devise is not read"),
        ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, r'offload_param\.device is "gpu"; DeepSpeed says:'
         r" Input should be 'none'"),
        ({"zero_optimization": {"reduce_bucket_size": -3}}, r"reduce_bucket_size is -3; DeepSpeed.*greater than 0"),
        ({"fp16": {"hysteresi": 2}}, r'fp16\.hysteresi is not read by DeepSpeed; did you mean "hysteresis"'),
    ],
)  # fmt: skip
def test_settings_that_deepspeed_refuses_are_refused_when_the_config_is_read(
    section, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, section)


DISAGREE = [
    ({"gradient_clipping": 0.5}, "fp32", r"gradient_clipping is 0\.5, the arguments make it 1\.0; .*--max_grad_norm"),
    ({"gradient_clipping": None}, "fp32", r"gradient_clipping is null, the arguments make it 1\.0"),
    ({"bf16": {"enabled": True}}, "fp32", r'bf16\.enabled is true, .* make it false; write "auto" .* --precision'),
    ({"fp16": {"enabled": True}}, "fp32", r'fp16\.enabled is true, .* make it false; write "auto" .* --precision'),
    ({"bf16": {"enabled": False}}, "bf16", r"bf16\.enabled is false, the arguments make it true"),
    ({"bf16": {"enabled": "true"}}, "bf16", r'bf16\.enabled is "true", the arguments make it true'),
]
BATCH = ({"train_batch_size": 128}, "fp32", r"train_batch_size is 128, the arguments make it 64; .*--global_batch")


@pytest.mark.parametrize(("section", "precision", "said"), [*DISAGREE, BATCH])
def test_a_config_that_contradicts_the_arguments_is_refused_before_ranks_start(
    section, precision, said, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(ZERO2 | section))
    run, model = RunConfig(deepspeed=str(tmp_path / "ds.json")), ModelConfig("/nowhere", precision=precision)
    monkeypatch.setattr(plan, "start_distributed", lambda **_: pytest.fail("ranks were started"))
    for config in (PPOConfig("test", run=run), SftConfig("test", run=run)):
        with pytest.raises(InputError, match=said):
            plan.start_ranks(config, model, 8)
    with pytest.raises(InputError, match=said.replace("it 64", "it 24")):
        resolve(ZERO2 | section, precision)


def test_a_config_that_agrees_is_used_like_auto() -> None:
    literal = ZERO2 | {"gradient_clipping": 1, "bf16": {"enabled": True}, "train_batch_size": 24}
    assert resolve(literal) == resolve(ZERO2)
    with pytest.raises(InputError, match=r"train_batch_size is 23, the arguments make it 24; .*--global_batch"):
        resolve(ZERO2 | {"train_batch_size": 23})


@pytest.mark.parametrize("rate", ["auto", 0.5])
def test_ppo_says_that_sections_of_optimizer_and_schedule_are_not_used(rate, monkeypatch, capsys) -> None:
    prepared = []
    monkeypatch.setattr(setup.Engine, "prepare", lambda model, optimizer, config: prepared.append(config))
    actor = SimpleNamespace(policy=torch.nn.Linear(2, 2), config=GPT2Config(n_embd=8))
    actor.parameters = actor.policy.parameters
    config = PPOConfig("test", ModelConfig(precision="fp32"))
    setup.make_engine(config, actor, ZERO2)
    assert capsys.readouterr().out == ""
    sections = {"optimizer": {"type": "Adam", "params": {"lr": rate}}, "scheduler": {"params": {"warmup_max_lr": rate}}}
    setup.make_engine(config, actor, ZERO2 | sections)
    assert "optimizer and scheduler not used; PPO has its own AdamW and schedule" in capsys.readouterr().out
    assert prepared[0] == prepared[1]


@pytest.mark.parametrize(
    ("verbose", "logged"),
    [
        ("", "WARNING ERROR"),
        pytest.param("0", "WARNING ERROR", marks=pytest.mark.slow),
        pytest.param("1", "INFO WARNING", marks=pytest.mark.slow),
    ],
)
def test_logs_of_deepspeed_and_transformers_are_quiet_unless_asked_for(verbose: str, logged: str) -> None:
    code = (
        "import logging\n"
        "import lmgym.models.loading\n"
        "from lmgym.distributed.deepspeed_config import import_deepspeed\n"
        "import_deepspeed()\n"
        "deepspeed = logging.getLogger('DeepSpeed')\n"
        "assert {handler.level for handler in deepspeed.handlers} == {deepspeed.level}\n"
        "print(*(logging.getLevelName(logging.getLogger(name).level) for name in ('DeepSpeed', 'transformers')))\n"
    )
    environment = {**os.environ, "LMGYM_VERBOSE": verbose, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines()[-1] == logged

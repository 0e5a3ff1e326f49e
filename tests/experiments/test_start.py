"""The start of training, and what a run says of it: the rates of the first updates, and the figures before step 1."""

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch
from launching import ROOT, flags, launch, read_lines, read_metrics, run, words

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig, TrainerConfig
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.probes import HeldOutProbe
from sft.tasks import CHAT
from sft.train import train as train_policy

PEAK = 1e-3
NAMED = ("model", "dataset")  # in run.json
# a warm-up of 2 updates, then a straight line down over the other 4
RATES = {1: PEAK / 2, 2: PEAK, 3: PEAK, 4: PEAK * 3 / 4, 5: PEAK / 2, 6: PEAK / 4}
OPTIMIZER = OptimizerConfig(
    PEAK, schedule="linear", warmup=2, global_batch=4, micro_batch=2, max_updates=len(RATES), epochs=9
)
EVERY_UPDATE = TrainerConfig(log_updates=1)


def run_config(folder: Path) -> RunConfig:
    return RunConfig(str(folder), tracking="none", eval_updates=3, save_updates=-1)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory, small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path):
    """The folder of a run of six updates, and what it printed."""
    folder = tmp_path_factory.mktemp("scorer") / "run"
    data = RowsConfig(str(few_pairs), eval_dataset=str(held_out_pairs), max_length=256)
    model = ModelConfig(str(small_models["llama"]), precision="fp32")
    return folder, said(
        lambda: train_pairwise(RewardModelConfig("pairs", model, data, OPTIMIZER, run_config(folder), EVERY_UPDATE))
    )


@pytest.fixture(scope="module")
def policy(tmp_path_factory, small_models: dict[str, Path], chats_file: Path):
    """The folder of a run of six updates, and what it printed."""
    folder = tmp_path_factory.mktemp("policy") / "run"
    config = policy_config(folder, small_models["llama"], chats_file)
    return folder, said(lambda: train_policy(config, CHAT))


def policy_config(folder: Path, model: Path, chats: Path) -> SftConfig:
    return SftConfig(
        "chat",
        ModelConfig(str(model), precision="fp32"),
        RowsConfig(str(chats), eval_size=8, max_length=128),
        OPTIMIZER,
        SamplesConfig(sample_prompts=2, sample_tokens=6),
        run_config(folder),
        EVERY_UPDATE,
    )


def said(work) -> str:
    """The output of `work`, as one line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        work()
    return words(printed.getvalue())


@pytest.mark.parametrize("stage", ["scorer", "policy"])
def test_no_update_of_the_warm_up_has_a_rate_of_0(stage: str, request: pytest.FixtureRequest) -> None:
    folder, _ = request.getfixturevalue(stage)
    assert read_metrics(folder)["train/learning_rate"] == pytest.approx(RATES)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["reward_models/experiments/hh_pairwise.py", "sft/experiments/hh_chosen.py"])
def test_nor_has_one_under_zero_2(script: str, small_models, demo_file: Path, tmp_path: Path) -> None:
    values = {
        "model": small_models["llama"], "dataset": demo_file, "output": tmp_path / "run", "max_length": 256,
        "train_size": 24, "eval_size": 8, "global_batch": 4, "micro_batch": 2, "learning_rate": PEAK,
        "schedule": "linear", "warmup": 2, "max_updates": len(RATES), "log_updates": 1, "eval_updates": 3,
        "precision": "fp32", "tracking": "none", "save_updates": -1, "deepspeed": ROOT / "configs/zero2.json",
    }  # fmt: skip
    done = run(launch("deepspeed", *flags(**values), script=ROOT / script))
    assert done.returncode == 0, done.stderr[-3000:]
    found = read_metrics(tmp_path / "run")
    assert found["train/learning_rate"] == pytest.approx(RATES)
    measured = "eval/nll" if "hh_pairwise" in script else "eval/loss"
    assert found[measured].keys() == {0, 3, 6}
    assert found[measured][0] != found[measured][3]


@pytest.mark.parametrize(("stage", "loss"), [("scorer", "nll"), ("policy", "loss")])
def test_the_model_is_measured_before_step_1_and_the_gain_is_told(stage: str, loss: str, request) -> None:
    folder, printed = request.getfixturevalue(stage)
    measured = {step: value for step, value in read_metrics(folder)[f"eval/{loss}"].items() if value is not None}
    assert measured.keys() == {0, 3, 6}
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["before"].keys() == evaluation["metrics"].keys()
    before, after = evaluation["before"][loss], evaluation["metrics"][loss]
    assert (before, after) == (measured[0], measured[6])
    assert before != after
    assert f"{before:.3f} │ {after:.3f} │ {after - before:+.3f}" in printed
    card = (folder / "model" / "README.md").read_text()
    assert f"| {loss} | {before:.4f} | {after:.4f} |" in card


def test_the_figures_before_step_1_are_of_the_model_that_was_named(policy) -> None:
    folder, _ = policy
    assert read_lines(folder / "metrics.jsonl")[0]["step"] == 0
    config = policy_config(folder, *(Path(json.loads((folder / "run.json").read_text())["config"][n]) for n in NAMED))
    tokenizer = load_tokenizer(config.policy.model)
    model = PolicyModel(load_policy(config.policy.model, tokenizer))
    held_out = CHAT.prepare(config, tokenizer).evaluation
    found = HeldOutProbe(held_out, CHAT.objective(model, 0), 100).measure(model.eval(), torch.device("cpu"))
    before = json.loads((folder / "evaluation.json").read_text())["before"]
    assert found == pytest.approx({name: before[name] for name in found}, rel=1e-4)
    assert len(read_lines(folder / "samples/000000.jsonl")) == 2


def test_samples_are_shown_with_how_they_were_drawn(policy) -> None:
    folder, printed = policy
    assert "samples: temperature 1 (defaults)" in printed
    assert "answers to the fixed prompts: temperature 1 (defaults)" in printed
    assert "were drawn at temperature 1 (defaults)" in (folder / "model/README.md").read_text()

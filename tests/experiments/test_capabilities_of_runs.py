"""Tests by lm-eval within runs: the figures are those of the start and of the saved model, and the run is the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, flags, launch, read_metrics, run
from ppo_in_process import train_small
from safetensors.torch import load_file

from lmgym.cli.evaluate import Options, evaluate_model
from lmgym.config import CapabilitiesConfig, ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.generation.local_generation import load_causal
from lmgym.report.page import report_page
from lmgym.runs.layout import model_of
from lmgym.training.capabilities import Suite, load_tasks
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train

pytest.importorskip("lm_eval", reason="lm-eval is an extra: pip install 'lmgym[capabilities]'")

ANSWERS = ["yes", "no way", "a bird", "it is late"]
ROWS = 24


@pytest.fixture(scope="module")
def choice(tmp_path_factory) -> dict[str, Any]:
    """Settings of a run that tests which answer is the likeliest."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"question": f"What is {i}?", "answers": ANSWERS, "right": i % 4} for i in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "choice.yaml").write_text(
        f"""
task: choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / "rows.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{answers}}}}"
doc_to_target: "{{{{right}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
    )
    return {"capabilities": str(folder / "choice.yaml"), "capabilities_limit": 0}


def figure(model: Path, settings: dict[str, Any]) -> float | None:
    """Of the model in a folder."""
    generator = load_causal(str(model))
    suite = Suite(load_tasks(settings["capabilities"]))
    return suite.measure(generator.model, generator.tokenizer).estimates["choice"].value


def test_a_policy_is_tested_before_and_after_ppo_which_learns_the_same(
    small_models: dict[str, Path], chats_file: Path, choice: dict[str, Any], tmp_path: Path
) -> None:
    start = small_models["llama"]
    tested = train_small(start, chats_file, tmp_path, name="tested", learning_rate=0.02, **choice)
    plain = train_small(start, chats_file, tmp_path, name="plain", learning_rate=0.02)
    found = read_metrics(tested)
    assert found["eval/capability/choice"] == {0: figure(start, choice), 8: figure(tested / "model", choice)}
    low, high = found["eval/capability/choice_low"], found["eval/capability/choice_high"]
    assert 0 <= low[8] <= found["eval/capability/choice"][8] <= high[8] <= 1
    assert read_metrics(plain)["reward/mean"] == found["reward/mean"]
    a, b = (load_file(folder / "model/model.safetensors") for folder in (plain, tested))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert '"capabilities"' in report_page(tested)
    assert '"capabilities"' not in report_page(plain)


@pytest.mark.parametrize("rank", [0, 4])
def test_sft_is_tested_at_each_evaluation_and_its_folder_is_a_model_for_the_command(
    rank: int, small_models: dict[str, Path], chats_file: Path, choice: dict[str, Any], tmp_path: Path, capsys
) -> None:
    folder = tmp_path / "run"
    config = SftConfig(
        "tested",
        ModelConfig(str(small_models["llama"]), precision="fp32", lora_rank=rank),
        RowsConfig(str(chats_file), max_length=64, eval_size=8),
        OptimizerConfig(0.02, warmup=0, global_batch=8, micro_batch=4, max_updates=4),
        SamplesConfig(sample_prompts=0),
        RunConfig(str(folder), tracking="none", save_updates=-1, eval_updates=2),
    )
    config = replace(config, capabilities=replace(CapabilitiesConfig(), **choice))
    train(replace(config, trainer=replace(config.trainer, best_metric=None)), CHAT)
    found = read_metrics(folder)["eval/capability/choice"]
    saved = folder / ("adapter" if rank else "model")
    assert found.keys() == {0, 2, 4}
    assert found[0] == figure(small_models["llama"], choice)
    assert found[4] == pytest.approx(figure(saved, choice), abs=1 / ROWS if rank else 0)
    assert "capability: choice" in capsys.readouterr().out
    assert model_of(str(folder)) == str(saved)
    evaluate_model(str(folder), choice["capabilities"], Options(limit=8, output=str(tmp_path / "results")))
    results = json.loads((tmp_path / "results/results.json").read_text())
    assert results["figures"]["choice"]["rows"] == 8
    assert results["settings"]["model"] == str(saved)
    assert len((tmp_path / "results/choice.jsonl").read_text().splitlines()) == 8
    assert "choice" in capsys.readouterr().out


@pytest.mark.slow
def test_two_ranks_share_the_rows(small_models, chats_file: Path, choice: dict[str, Any], tmp_path: Path) -> None:
    values = {
        "model": small_models["llama"], "dataset": chats_file, "output": tmp_path / "run", "max_length": 64,
        "eval_size": 8, "global_batch": 8, "micro_batch": 2, "max_updates": 2, "precision": "fp32", "tracking": "none",
        "sample_prompts": 0, "save_updates": -1, **choice,
    }  # fmt: skip
    done = run(launch("torchrun", *flags(**values), script=ROOT / "sft/experiments/chat.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    found = read_metrics(tmp_path / "run")
    assert found["eval/capability/choice"][0] == figure(small_models["llama"], choice)
    assert found["eval/capability/choice_low"][0] > 0

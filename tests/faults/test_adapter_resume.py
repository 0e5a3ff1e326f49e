"""Checkpoints of adapters: they lack the frozen weights, and killed runs end as the uninterrupted ones nevertheless."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from faulting import (
    ENGINES,
    ROOT,
    TIMES,
    begin_and_wait,
    digest,
    kill_rank,
    lines_once,
    measured,
    newest,
    outcome,
    reseal,
    workers,
)
from launching import finish, flags, launch, run
from launching import words as in_a_line
from safetensors import safe_open
from test_ppo_resume import NOISY, SCRIPT, left
from test_ppo_resume import TRAIN as PPO

Words = Callable[..., list]
LORA = {"lora_rank": 4, "lora_dropout": 0.1}
RANKS = {"plain": 1}
TRAINED = ("lora_", "modules_to_save", "score", "value_head")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def weights_in(checkpoint: Path) -> set[str]:
    """Names of the weights that a checkpoint holds."""
    if (plain := checkpoint / "model.safetensors").is_file():
        with safe_open(plain, framework="pt") as file:
            return {*file.keys()}
    names: set[str] = set()
    for path in checkpoint.glob("global_step*/*model_states.pt"):
        state = torch.load(path, map_location="cpu", weights_only=False)
        assert not state.get("frozen_param_fragments"), "these are the frozen weights, which ZeRO keeps apart"
        names |= {*state["module"]}
    return names


def assert_without_base(checkpoint: Path) -> None:
    names = weights_in(checkpoint)
    assert any("lora_A" in name for name in names)
    assert [name for name in names if not any(part in name for part in TRAINED)] == []


@pytest.mark.parametrize(
    ("engine", "step"),
    [("plain", 8), slow("zero2", 6), slow("ddp", 2), slow("zero1", 8), slow("zero3", 6)],
)
def test_a_killed_scorer_with_adapters_ends_as_the_uninterrupted_one(
    engine: str, step: int, words: Words, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "run"
    done = run(words(engine, whole, **LORA))
    assert done.returncode == 0, done.stderr
    assert_without_base(newest(whole))
    launched = begin_and_wait(words(engine, killed, **LORA), killed, step, LMGYM_TEST_SLEEP="0.08")
    kill_rank(launched, RANKS.get(engine, 2) - 1)
    finish(launched)
    done = run(words(engine, killed, **LORA))
    assert done.returncode == 0, done.stderr
    assert f"resuming from {killed / 'checkpoints'}" in done.stdout.replace("\n", "")
    assert digest(killed) == digest(whole)
    assert measured(killed) == measured(whole)


@pytest.mark.parametrize("bits", ["load_in_4bit", slow("load_in_8bit")])
def test_a_killed_scorer_over_a_quantised_base_ends_as_the_uninterrupted_one(
    bits: str, words: Words, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    settings = {**LORA, bits: True}
    whole, killed = tmp_path / "whole", tmp_path / "run"
    done = run(words("plain", whole, **settings))
    assert done.returncode == 0, done.stderr
    assert_without_base(newest(whole))
    launched = begin_and_wait(words("plain", killed, **settings), killed, 8, LMGYM_TEST_SLEEP="0.08")
    kill_rank(launched, 0)
    finish(launched)
    done = run(words("plain", killed, **settings))
    assert done.returncode == 0, done.stderr
    assert digest(killed) == digest(whole)
    assert measured(killed) == measured(whole)


STAGES = {
    "sft": ("sft/experiments/hh_chosen.py", "dataset", {"sample_prompts": 0, "max_updates": 12}),
    "dpo": ("preferences/experiments/dpo.py", "dataset", {"sample_prompts": 0, "max_updates": 12}),
    "iterative": (
        "preferences/experiments/iterative_dpo.py", "prompts",
        {"scorers": "utility=world:0", "prompts_per_round": 8, "num_generations": 3, "max_new_tokens": 8,
         "log_updates": 1, "max_updates": 6},
    ),
}  # fmt: skip
TRAIN = {
    "max_length": 128, "eval_size": 4, "global_batch": 4, "micro_batch": 2, "learning_rate": 1e-3, "save_updates": 1,
    "precision": "fp32", "tracking": "none", **LORA,
}  # fmt: skip


def asked(stage: str, engine: str, output: Path, model: Path, rows: Path) -> list:
    """The command of a user to train adapters in a stage."""
    (script, source, own), (kind, config) = STAGES[stage], ENGINES[engine]
    values = {"model": model, source: rows, "output": output, **TRAIN, **own}
    if config:
        values["deepspeed"] = ROOT / "configs" / config
    return launch(kind, *flags(**values), script=ROOT / script)


def adapter(folder: Path) -> str:
    """sha256 of the adapter that a run saved."""
    return hashlib.sha256((folder / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("engine", ["plain", "zero2", "zero3"])
def test_so_does_a_policy_of_every_stage(
    stage: str, engine: str, talkative_models, few_pairs: Path, tmp_path: Path
) -> None:
    if (stage, engine) == ("iterative", "zero3"):
        pytest.skip("refused: sampling needs whole weights")
    given = talkative_models["llama"], few_pairs
    whole, killed = tmp_path / "whole", tmp_path / "run"
    done = run(asked(stage, engine, whole, *given))
    assert done.returncode == 0, done.stderr
    assert_without_base(newest(whole))
    launched = begin_and_wait(asked(stage, engine, killed, *given), killed, 2)
    os.kill(max(workers(launched, ROOT / STAGES[stage][0]).values()), signal.SIGKILL)
    finish(launched)
    assert outcome(killed)[0] != "finished"
    done = run(asked(stage, engine, killed, *given))
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stdout
    assert adapter(killed) == adapter(whole)
    assert lines(killed) == lines(whole)


def lines(folder: Path) -> list:
    """The metrics of a run, but for its times."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines_once(folder / "metrics.jsonl")]


@pytest.mark.parametrize("engine", ["plain", slow("zero2"), slow("zero3")])
def test_so_does_ppo(engine: str, talkative_models, chats_file: Path, tmp_path: Path) -> None:
    kind, config = ENGINES[engine]
    values = {"model": talkative_models["gpt2"], "prompts": chats_file, **PPO, "max_updates": 12, "lora_rank": 4}
    if config:
        values["deepspeed"] = ROOT / "configs" / config
    whole, killed = tmp_path / "whole", tmp_path / "run"
    begin, again = (launch(kind, *flags(**values, output=x), script=SCRIPT) for x in (whole, killed))
    done = run(begin, **NOISY)
    assert done.returncode == 0, done.stderr
    assert_without_base(newest(whole))
    launched = begin_and_wait(again, killed, 4, LMGYM_TEST_SLEEP="0.5", **NOISY)
    os.kill(max(workers(launched, SCRIPT).values()), signal.SIGKILL)
    finish(launched)
    assert not (killed / "model").exists()
    done = run(again, **NOISY)
    assert done.returncode == 0, done.stderr
    assert left(killed) == left(whole)


def test_another_base_is_refused_and_an_older_checkpoint_of_all_weights_resumes(
    words: Words, dropping: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    model, folder = tmp_path / "model", tmp_path / "run"
    shutil.copytree(dropping, model)
    command = words("plain", folder, model=model, max_updates=6, **LORA)
    launched = begin_and_wait(command, folder, 2, LMGYM_TEST_SLEEP="0.2")
    kill_rank(launched, 0)
    finish(launched)
    weights = load_file(model / "model.safetensors")
    changed = {name: value + 1e-3 * name.endswith("mlp.c_fc.weight") for name, value in weights.items()}
    save_file(changed, model / "model.safetensors", {"format": "pt"})
    refused = run(command)
    assert refused.returncode == 2
    said = in_a_line(refused.stderr)
    assert f"{model} has changed since {newest(folder).name} (fingerprint " in said
    assert "Traceback" not in said
    assert outcome(folder)[0] == "running", "a refusal changes nothing"
    shutil.rmtree(model)
    gone = run(command)
    assert gone.returncode == 2
    assert f"model {model} does not exist" in in_a_line(gone.stderr)
    # a checkpoint as earlier versions wrote it: all weights, and no fingerprint
    shutil.copytree(dropping, model)
    path = newest(folder)
    own = load_file(path / "model.safetensors")
    below = {_below(name, own): value for name, value in weights.items()}
    save_file(own | below, path / "model.safetensors")
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["facts"]["base"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    reseal(path)
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert f"resuming from {path}" in done.stdout.replace("\n", "")


def _below(name: str, own) -> str:
    """The name of a base's weight below adapters."""
    layer, _, kind = name.rpartition(".")
    adapted = any(f"{layer}.lora_A" in other for other in own)
    return f"model.base_model.model.{layer}.{'base_layer.' if adapted else ''}{kind}"

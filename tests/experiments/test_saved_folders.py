"""Folders that a run saves: tried before step 1, with the source's settings, and usable from anywhere."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from launching import words
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from ppo.config import PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import chat_with_scorers
from ppo.train import train as train_ppo
from preferences.config import PreferenceConfig
from preferences.train import train as train_preferences
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

GREEDY = '{"do_sample":false,"temperature":0.6,"top_p":0.9}'
STEPS, FEW = OptimizerConfig(global_batch=4, micro_batch=4, max_updates=1), SamplesConfig(sample_prompts=0)


@pytest.fixture
def base(small_models, tmp_path: Path) -> Path:
    """A llama without a pad token, as Llama 2, whose generation config transformers loads and refuses to save."""
    folder = Path(shutil.copytree(small_models["llama"], tmp_path / "base"))
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        kept = {key: value for key, value in content.items() if "pad_token" not in key}
        (folder / name).write_text(json.dumps(kept))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] == "<|pad|>":  # an ordinary token, or it would pad
            token["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "generation_config.json").write_text(GREEDY)
    assert load_tokenizer(str(folder)).pad_token == "<|eos|>"
    return folder


def run_stage(stage: str, model: str, output: Path, chats: Path, pairs: Path, scorer: Path, rank: int = 0) -> None:
    settings = ModelConfig(model, lora_rank=rank, precision="fp32")
    run = RunConfig(str(output), tracking="none", save_updates=-1)
    if stage == "sft":
        train_sft(SftConfig("s", settings, RowsConfig(str(chats), max_length=128, eval_size=8), STEPS, FEW, run), CHAT)
    elif stage == "reward":
        train_pairwise(
            RewardModelConfig("r", settings, RowsConfig(str(pairs), max_length=128, eval_size=0.1), STEPS, run)
        )
    elif stage == "preference":
        data = RowsConfig(str(pairs), max_length=128)
        train_preferences(PreferenceConfig("d", settings, data, optimizer=STEPS, samples=FEW, run=run))
    else:
        rollout = RolloutConfig(str(chats), eval_size=2, num_rollouts=4, max_new_tokens=2)
        config = PPOConfig("p", settings, rollout, RewardConfig(f"a={scorer}"), optimizer=STEPS, run=run)
        train_ppo(config, chat_with_scorers)


@pytest.mark.parametrize(
    ("stage", "use_cache"),
    [
        *(("sft", True), ("reward", False), ("preference", False), ("ppo", True)),
        # models are saved by one function, scorers by another: each stage need not be tried with both
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("sft", False), ("reward", True))),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("preference", True), ("ppo", False))),
    ],
)
def test_a_saved_model_has_the_settings_of_its_source(
    stage: str, use_cache: bool, base: Path, chats_file, few_pairs, scorer_folders, tmp_path: Path, capsys
) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"use_cache": use_cache}))
    run_stage(stage, str(base), tmp_path / "run", chats_file, few_pairs, scorer_folders["llama"])
    saved = tmp_path / "run/model"
    now = json.loads((saved / "config.json").read_text())
    assert (now["use_cache"], now["vocab_size"]) == (use_cache, config["vocab_size"])
    assert [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".try")] == []
    if stage != "reward":  # a scorer does not generate
        settings = json.loads((saved / "generation_config.json").read_text())
        assert {key: settings[key] for key in json.loads(GREEDY)} == json.loads(GREEDY)
        assert settings["eos_token_id"] == load_tokenizer(str(base)).eos_token_id
        said = words(capsys.readouterr().out)
        assert f"generation_config.json of {base} is kept as it is, though transformers objects: `temperature`" in said


@pytest.mark.parametrize("stage", ["sft", "preference"])
def test_an_adapter_works_on_the_plain_base_from_another_folder(
    stage: str, base: Path, chats_file, few_pairs, scorer_folders, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(base.parent)
    run_stage(stage, "base", tmp_path / "run", chats_file, few_pairs, scorer_folders["llama"], rank=2)
    folder = tmp_path / "run/adapter"
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    assert all(".lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    card = (folder / "README.md").read_text()
    assert f"A LoRA adapter of `{base}`" in card
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    scope: dict = {}
    exec(card.split("```python")[1].split("```")[0].replace("path/to/this/folder", str(folder)), scope)
    ids = AutoTokenizer.from_pretrained(base)("hello", return_tensors="pt").input_ids
    with torch.no_grad():
        adapted = scope["model"](ids).logits
        plain = AutoModelForCausalLM.from_pretrained(base)(ids).logits
    assert adapted.shape == plain.shape
    assert 0 < (adapted - plain).abs().max() < 0.1


def test_what_cannot_be_saved_is_refused_before_step_1(
    base: Path, chats_file, few_pairs, scorer_folders, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("transformers.PretrainedConfig.save_pretrained", _refuse)
    with pytest.raises(InputError, match=f"{base} loads and cannot be saved: a field; needed: a repaired config.json"):
        run_stage("sft", str(base), tmp_path / "run", chats_file, few_pairs, scorer_folders["llama"])
    metrics = tmp_path / "run/metrics.jsonl"
    assert not metrics.exists() or "train/loss" not in metrics.read_text()


def _refuse(*_: object, **__: object) -> None:
    raise ValueError("a field")

"""Kinds of models that stages cannot use: refused by their config alone, in one line, at every entrance."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.errors import InputError
from lmgym.generation.local_generation import load_causal
from lmgym.models.config_fields import refuse_encoder, refuse_other_than_text
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.scoring.scorers import HFScorer
from ppo.check import check_models
from ppo.config import PPOConfig
from preferences.config import PreferenceConfig
from preferences.train import train as train_preferences
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

UNFIT = {
    "t5": "is an encoder-decoder (t5), which no stage supports; needed: a decoder",
    "bart": "is an encoder-decoder (bart), which no stage supports",
    "llava": "is a multimodal model (llava), which no stage supports: found vision_config in its config; needed: its "
    "text model (llama) in a folder of its own",
    "qwen2_vl": "found vision_config in its config; needed: its text model (qwen2_vl_text)",
    "gemma3": "is a multimodal model (gemma3), which no stage supports: found vision_config in its config; needed: its "
    "text model (gemma3_text)",
    "gemma3n": "found audio_config in its config",
    "fuyu": "is a multimodal model (fuyu), which no stage supports: found text_config in its config; needed: its text "
    "model (persimmon)",
    "vit": "is not a model of text: transformers has neither a causal model nor an encoder of the family vit",
}  # fmt: skip


@pytest.fixture
def folder_of(small_models: dict[str, Path], tmp_path: Path) -> Callable[[str], str]:
    """A folder with that family's config and a tokenizer, and no weights: who reads them fails otherwise."""

    def make(family: str) -> str:
        AutoConfig.for_model(family).save_pretrained(tmp_path / family)
        load_tokenizer(str(small_models["llama"])).save_pretrained(tmp_path / family)
        return str(tmp_path / family)

    return make


def entrances(folder: str, chats: Path, pairs: Path, output: Path) -> dict[str, Callable[[], object]]:
    """Every way in which a model comes into a stage."""
    model, run = ModelConfig(folder, precision="fp32"), RunConfig(str(output), tracking="none")
    steps = OptimizerConfig(global_batch=8, micro_batch=2, max_updates=1)
    tokenizer = load_tokenizer(folder)
    return {
        "reward models": lambda: train_pairwise(
            RewardModelConfig("r", model, RowsConfig(str(pairs), max_length=64, eval_size=0.1), steps, run)
        ),
        "sft": lambda: train_sft(
            SftConfig("s", model, RowsConfig(str(chats), max_length=64), steps, SamplesConfig(), run), CHAT
        ),
        "preferences": lambda: train_preferences(
            PreferenceConfig("d", model, RowsConfig(str(pairs), max_length=64), optimizer=steps, run=run)
        ),
        "ppo": lambda: check_models(PPOConfig("p", model), tokenizer),
        "chat": lambda: load_causal(folder),
        "policy": lambda: load_policy(folder, tokenizer),
        "classifier": lambda: load_classifier(folder, tokenizer),
        "scorer": lambda: HFScorer.load(folder),
    }


@pytest.mark.parametrize("family", UNFIT)
def test_every_stage_refuses_multimodal_and_encoder_decoder_models(
    family: str, folder_of, chats_file: Path, few_pairs: Path, tmp_path: Path
) -> None:
    folder = folder_of(family)
    for name, enter in entrances(folder, chats_file, few_pairs, tmp_path / "run").items():
        with pytest.raises(InputError) as refused:
            enter()
        message = str(refused.value)
        assert message.startswith(folder), name
        assert UNFIT[family] in message, name
        assert "\n" not in message


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2", "modernbert", "electra", "distilbert"])
def test_an_encoder_is_refused_as_a_policy_and_accepted_as_a_scorer(
    family: str, folder_of, chats_file: Path, few_pairs: Path, tmp_path: Path
) -> None:
    folder = folder_of(family)
    ways = entrances(folder, chats_file, few_pairs, tmp_path / "run")
    for name in ("sft", "preferences", "ppo", "chat", "policy"):
        with pytest.raises(InputError, match=rf"not a causal model: it is an encoder \({family}\), which can be") as no:
            ways[name]()
        assert "\n" not in str(no.value)
    with pytest.raises(InputError, match="no classifier loads from"):  # only the weights are missing
        ways["classifier"]()


def test_an_encoder_that_was_trained_as_a_decoder_is_a_causal_model() -> None:
    assert refuse_encoder("m", AutoConfig.for_model("bert", is_decoder=True)) is None
    with pytest.raises(InputError, match="is an encoder"):
        refuse_encoder("m", AutoConfig.for_model("bert"))


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gemma3_text", "mpt", "dbrx", "falcon", "mamba", "blt"])
def test_decoders_with_nested_configs_are_accepted(family: str) -> None:
    config = AutoConfig.for_model(family)
    assert refuse_other_than_text("m", config) is None
    assert refuse_encoder("m", config) is None

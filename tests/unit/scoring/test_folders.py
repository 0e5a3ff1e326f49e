"""What is refused before torch is refused by loading too, and what loads is not refused."""

import json
import shutil
from pathlib import Path

import pytest

from lmgym.errors import InputError
from lmgym.models.scorer_folders import load_scorer_model
from lmgym.scoring.folders import refuse_untrained


def is_refused(call, folder: Path) -> bool:
    try:
        call(str(folder))
    except InputError:
        return True
    return False


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
def test_models_without_a_head_are_refused_and_scorers_are_not(family: str, small_models, scorer_folders) -> None:
    for folder, expected in ((small_models[family], True), (scorer_folders[family], False)):
        assert is_refused(refuse_untrained, folder) is expected
        assert is_refused(load_scorer_model, folder) is expected
    with pytest.raises(InputError, match=r"is not a scorer: it has no trained score or classifier; train one, or name"):
        refuse_untrained(str(small_models[family]))


def test_folders_without_config_or_weights_are_refused(scorer_folders, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(scorer_folders["llama"], folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"has its weights as pytorch_model\.bin only, a pickle"):
        refuse_untrained(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match=r"^no scorer loads from .*: it has no weights; needed: model\.safetensors$"):
        refuse_untrained(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"is not a model folder: found .*; needed: config\.json and weights"):
        refuse_untrained(str(folder))


@pytest.mark.parametrize(
    "config",
    ['{"is_encoder_decoder": true}', '{"text_config": {}, "vision_config": {}}', "[]", "{", "[" * 100_000, "\0"],
)
def test_other_models_and_damaged_configs_are_left_to_loading_which_names_them(
    config: str, small_models, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(small_models["llama"], folder)
    (folder / "config.json").write_text(config)
    assert not is_refused(refuse_untrained, folder)
    assert is_refused(load_scorer_model, folder)


def test_a_quantised_model_without_a_head_and_hub_ids(small_models, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(small_models["llama"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"load_in_4bit": True}}))
    assert is_refused(refuse_untrained, folder)
    assert not is_refused(refuse_untrained, Path("owner/name"))  # of which nothing is here

"""`lmgym merge`: the merged folder computes what the base with its adapter computes."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.models.forward.merging import adapter_folder, merge_adapter
from lmgym.models.scorer_folders import load_scorer_model

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def shaken(model, seed: int = 0):
    """The model with adapters that change something: B is 0 when they are new."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    return model.eval()


@pytest.fixture
def adapter(small_models, tmp_path: Path) -> Path:
    """A policy's adapter, as peft saves it, in a run's folder."""
    base = AutoModelForCausalLM.from_pretrained(small_models["llama"])
    model = shaken(get_peft_model(base, LoraConfig(task_type=TaskType.CAUSAL_LM, **LORA)))
    folder = tmp_path / "run/adapter"
    model.save_pretrained(folder)
    return folder


def logits(model) -> torch.Tensor:
    return model(torch.arange(10, 20)[None]).logits


def test_a_merged_policy_has_the_logits_of_the_base_with_its_adapter(adapter: Path, small_models) -> None:
    from peft import PeftModel

    target = merge_adapter(str(adapter.parent), None, None, None)
    assert target == adapter.parent / "merged"
    base = AutoModelForCausalLM.from_pretrained(small_models["llama"])
    before = logits(base)
    wanted = logits(PeftModel.from_pretrained(base, adapter))
    found = logits(AutoModelForCausalLM.from_pretrained(target))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert (found - before).abs().max() > 0.01, "the adapter changes nothing, and the test shows nothing"
    assert (
        AutoTokenizer.from_pretrained(target).get_vocab()
        == AutoTokenizer.from_pretrained(small_models["llama"]).get_vocab()
    )
    assert not (target / "adapter_config.json").exists()


def test_a_merged_scorer_has_the_scores_of_its_adapter(small_models, tmp_path: Path) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(small_models["llama"], num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(small_models["llama"])
    folder = tmp_path / "judge"
    shaken(get_peft_model(base, LoraConfig(task_type=TaskType.SEQ_CLS, **LORA))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    target = merge_adapter(str(folder), None, None, None)
    assert target == tmp_path / "judge-merged"
    ids = torch.arange(10, 20)[None]
    wanted = load_scorer_model(str(folder)).model(ids).logits
    torch.testing.assert_close(load_scorer_model(str(target)).model(ids).logits, wanted, atol=1e-5, rtol=0)


def test_weights_are_saved_in_the_precision_that_is_asked_for(adapter: Path, tmp_path: Path) -> None:
    target = merge_adapter(str(adapter), str(tmp_path / "half"), None, "bf16")
    assert AutoModelForCausalLM.from_pretrained(target, dtype="auto").dtype == torch.bfloat16


def test_what_is_no_adapter_and_an_output_that_exists_are_refused(adapter: Path, small_models, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a whole model already"):
        adapter_folder(str(small_models["llama"]))
    with pytest.raises(InputError, match=r"there is no folder .*; needed: the folder of an adapter"):
        adapter_folder(str(tmp_path / "none"))
    (adapter.parent / "merged").mkdir()
    with pytest.raises(InputError, match=r"exists; needed: --output"):
        merge_adapter(str(adapter), None, None, None)


def test_the_command_says_where_the_model_is(adapter: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["merge", str(adapter), "--output", str(tmp_path / "whole")])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{tmp_path / 'whole'}: the base with ")

"""A results folder is replaced as a whole: whatever ends the process, a former or a new one is complete.

What is not weights is saved once before step 1.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from full_disk import largest_file
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.distributed.weights import untied_weights
from lmgym.errors import RunStopped
from lmgym.models.forward.policies import load_policy, save_policy
from lmgym.models.loading import load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.saving import replace_folder, save_adapter, save_model, save_plain, save_tokenizer, try_saving
from lmgym.models.small_models import build_model
from lmgym.runs.run import Run
from lmgym.training.setup import refuse_unsavable


def policy_of(folder: Path):
    tokenizer = load_tokenizer(str(folder))
    return load_policy(str(folder), tokenizer), tokenizer


def write(folder: Path, text: str | None) -> None:
    """Writes one file; of None it is never written, and cannot be read back."""
    with replace_folder(folder) as partial:
        partial.mkdir()
        if text is not None:
            (partial / "weights").write_text(text)
        read(partial)


def read(folder: Path) -> str:
    return (folder / "weights").read_text()


def test_a_new_folder_replaces_the_former_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("a", "b"):
        write(tmp_path / "model", text)
        assert read(tmp_path / "model") == text
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_error_while_writing_leaves_the_former(tmp_path: Path) -> None:
    write(tmp_path / "model", "a")
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "model", None)
    assert read(tmp_path / "model") == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("survived", [0, 1])
def test_a_kill_at_a_rename_leaves_both_whole_and_the_next_writing_succeeds(
    survived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "model", "a")
    renames = []

    def rename(self: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) > survived:
            raise KeyboardInterrupt  # nothing after this line is run, as after a kill
        return original(self, target)

    original = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "model", "b")
    assert read(tmp_path / ("model.former" if survived else "model")) == "a"
    assert read(tmp_path / "model.partial") == "b"
    write(tmp_path / "model", "c")
    assert read(tmp_path / "model") == "c"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_disk_without_room_is_found_before_step_1(small_models, tmp_path: Path) -> None:
    model, tokenizer = policy_of(small_models["llama"])
    with Run.start(str(tmp_path / "run"), {}, 0, "none", "data") as run:
        refuse_unsavable(model, tokenizer, run)
        with (
            largest_file(2000),
            pytest.raises(RunStopped, match=r"nothing can be saved in .*/run \(.*free space or rep"),
        ):
            refuse_unsavable(model, tokenizer, run)
        assert [path.name for path in run.folder.iterdir() if path.name.startswith(".try")] == []


@pytest.mark.parametrize("rank", [0, 2])
def test_a_generation_config_that_transformers_refuses_is_kept_and_said(
    rank: int, small_models, tmp_path: Path
) -> None:
    model, tokenizer = policy_of(small_models["llama"])
    model = add_lora(model, rank, 4, 0.0) if rank else model
    assert try_saving(model, tokenizer, tmp_path) == []
    settings = (model.get_base_model() if rank else model).generation_config
    settings.update(do_sample=False, temperature=0.6, top_p=0.9)
    with pytest.raises(ValueError, match="do_sample"):
        settings.save_pretrained(tmp_path / "other")
    [note] = try_saving(model, tokenizer, tmp_path)
    assert note.startswith(f"generation_config.json of {small_models['llama']} is kept as it is")
    saved = save_policy(model, model.state_dict(), tmp_path, tokenizer, merge=True)
    kept = json.loads((saved / "generation_config.json").read_text())
    assert {name: kept[name] for name in ("do_sample", "temperature", "top_p")} == {
        "do_sample": False, "temperature": 0.6, "top_p": 0.9,
    }  # fmt: skip
    again, _ = policy_of(saved)
    assert again.generation_config.temperature == 0.6


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("family", "rope", "older"),
    [
        ("llama", {"rope_type": "default", "rope_theta": 500.0}, {"rope_theta": 500.0}),
        (
            "llama",
            {**LLAMA3, "rope_theta": 500.0, "original_max_position_embeddings": 64},
            {"rope_theta": 500.0, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}},
        ),
        (
            "phi",
            {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
            {"rope_theta": 500.0, "partial_rotary_factor": 0.25},
        ),
    ],
)
def test_a_config_has_rotary_frequencies_by_the_names_of_transformers_4_too(
    family: str, rope: dict[str, object], older: dict[str, object], small_models, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = build_model(family, tokenizer, "causal", 0, **size, max_position_embeddings=256, rope_parameters=rope)
    save_plain(model, untied_weights(model), tmp_path, tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    names = ("rope_theta", "rope_scaling", "partial_rotary_factor")
    assert {name: config[name] for name in names if name in config} == older
    loaded, ids = AutoModelForCausalLM.from_pretrained(tmp_path), torch.arange(5, 20)[None]
    assert loaded.config.rope_parameters == model.config.rope_parameters
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)


def test_a_tokenizer_is_saved_by_the_names_of_transformers_4_and_has_the_same_ids(small_models, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_models["llama"])
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|turn|>"]})
    save_tokenizer(tokenizer, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"  # 4 does not know TokenizersBackend
    assert config["additional_special_tokens"] == ["<|turn|>"]  # 4 refuses a list of extra_special_tokens
    assert "extra_special_tokens" not in config
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "hello there<|turn|><|eos|>"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert again.all_special_tokens == tokenizer.all_special_tokens


def test_who_may_read_a_config_may_read_the_weights_beside_it(small_models, tmp_path: Path) -> None:
    policy, tokenizer = policy_of(small_models["llama"])
    before = os.umask(0o027)
    try:
        save_plain(policy, untied_weights(policy), tmp_path / "model", tokenizer)
        adapted = add_lora(policy, 2, 4, 0.0)
        save_adapter(adapted, untied_weights(adapted), tmp_path / "adapter")
    finally:
        os.umask(before)
    for path in (tmp_path / "model/model.safetensors", tmp_path / "adapter/adapter_model.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o640


def test_a_folder_has_one_dtype_and_its_numbers_whatever_is_held_in_16_bits(small_models, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32)
    words = model.get_input_embeddings()
    words.weight = torch.nn.Parameter(words.weight.detach().to(torch.bfloat16))
    model.tie_weights()
    save_model(model, untied_weights(model), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as saved:
        found = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 - is no dict
    assert {one.dtype for one in found.values()} == {torch.float32}
    assert torch.equal(found["model.embed_tokens.weight"], words.weight.detach().float())
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"

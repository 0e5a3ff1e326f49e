"""Trained models saved as ordinary Hugging Face folders, with adapters separate or merged in."""

import contextlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig

from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.weights import Weights, untied_weights
from lmgym.errors import InputError, one_line, shown_path
from lmgym.models.quantized import is_quantized
from lmgym.runs.files import storage_error

GENERATION_CONFIG, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"


def save_classifier(
    model, state_dict: Weights, folder: str | Path, tokenizer, scorer: dict[str, Any], card: str = ""
) -> None:
    """An ordinary Hugging Face folder: safetensors, config, tokenizer with its template, `scorer.json` and a card.

    `state_dict` holds the whole weights. LoRA adapters are merged in; they and the head are also saved in `adapter/`.
    An existing folder is replaced once the new one is complete. Called on the main rank only.
    """
    with replace_folder(folder) as partial:
        if has_adapters(model):
            save_adapter(model, state_dict, partial / "adapter")
            model, state_dict = merge_adapters(model, state_dict)
        save_plain(model, state_dict, partial, tokenizer)
        (partial / "scorer.json").write_text(json.dumps(scorer, indent=2) + "\n")
        write_card(partial, card)


@contextlib.contextmanager
def replace_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write to, which replaces `folder` at the end of a `with`, and is deleted after an exception.

    A kill leaves the former folder or the new one, whole. Between two renames neither has its name: they are beside it,
    as `.former` and `.partial`.
    """
    target, partial, former = Path(folder), Path(f"{folder}.partial"), Path(f"{folder}.former")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk, make room for the next attempt
        raise
    shutil.rmtree(former, ignore_errors=True)
    if target.exists():
        target.rename(former)
    partial.rename(target)
    shutil.rmtree(former, ignore_errors=True)


def write_card(folder: Path, card: str) -> None:
    """Writes a model card, unless it is empty."""
    if card:
        (folder / "README.md").write_text(card, encoding="utf-8")


def has_adapters(model) -> bool:
    """True for a model of peft."""
    return hasattr(model, "get_base_model")


def unwrap_adapters(model):
    """The transformers model itself, below any adapters."""
    return model.get_base_model() if has_adapters(model) else model


def save_adapter(model, state_dict: Weights, folder: Path) -> None:
    """Save only the adapters and the modules trained in full, as peft writes them."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = {id(parameters[name]): name for name in state_dict if name in parameters}
    # a state dict has tied weights under one name; peft needs each name
    tied = {name: state_dict[names[id(p)]] for name, p in parameters.items() if id(p) in names}
    model.save_pretrained(folder, state_dict=state_dict | tied)
    (folder / "README.md").unlink(missing_ok=True)  # peft's is an empty template
    _let_others_read(folder, folder / "adapter_config.json")


def try_saving(model, tokenizer, folder: Path) -> list[str]:
    """Saves all but the weights in a folder below this one, and deletes it; notes on what is kept though it is odd.

    Raises InputError for what transformers loads and does not save; errors of the disk are raised as they are.
    """
    base = unwrap_adapters(model)
    source = shown_path(base.config.name_or_path or "the model")
    settings = base.generation_config if base.can_generate() else None
    try:
        with tempfile.TemporaryDirectory(prefix=".try-", dir=folder) as temporary:
            path = Path(temporary)
            base.config.save_pretrained(path)
            if settings is not None:
                _write_generation_config(settings, path)
            if has_adapters(model):
                model.peft_config["default"].save_pretrained(path)
            tokenizer.save_pretrained(path)
            save_file({"weight": torch.zeros(1)}, path / "model.safetensors")
    except Exception as error:
        if isinstance(error, OSError) or storage_error(error):
            raise
        raise InputError(
            f"{source} loads and cannot be saved: {one_line(str(error), 160)}; needed: a repaired config.json or "
            "tokenizer_config.json there"
        ) from error
    if settings is None or not (refusal := _refusal(settings)):
        return []
    return [f"{GENERATION_CONFIG} of {source} is kept as it is, though transformers objects: {refusal}"]


def _refusal(settings: GenerationConfig) -> str:
    """Why transformers refuses to save a generation config; empty if it does not."""
    try:
        settings.validate(strict=True)
    except ValueError as error:
        lines = [line.strip("- ") for line in str(error).splitlines() if line.startswith("- ")] or [str(error)]
        return one_line(lines[0].partition(" -- ")[0], 120)
    return ""


def _write_generation_config(settings: GenerationConfig, folder: Path) -> None:
    """Writes a generation config, also one that transformers loads and refuses to save."""
    settings.to_json_file(folder / GENERATION_CONFIG, use_diff=True, keys_to_pop=["compile_config"])


def save_plain(model, state_dict: Weights, folder: Path, tokenizer) -> None:
    """Save weights, config and tokenizer; the folder is emptied first."""
    save_model(model, state_dict, folder)
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer, folder: Path) -> None:
    """Save a tokenizer, by the names of transformers 4, which transformers 5 reads too and some servers still need."""
    tokenizer.save_pretrained(folder)
    path = folder / TOKENIZER_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_model(model, state_dict: Weights, folder: Path) -> None:
    """Save weights and config of a model without adapters, all in one dtype: fp32 if one of them is.

    What is frozen may be held in 16 bits, with numbers that those have (lmgym/models/embeddings.py).
    """
    floats = [value for value in state_dict.values() if value.is_floating_point()]
    dtype = torch.float32 if any(value.dtype == torch.float32 for value in floats) else floats[0].dtype
    widened = {id(value): value.to(dtype) for value in floats if value.dtype != dtype}
    state_dict = {name: widened.get(id(value), value) for name, value in state_dict.items()}
    settings = model.generation_config if model.can_generate() else None
    if settings is not None:
        model.generation_config = GenerationConfig()  # ours is written below, as the source has it
    try:
        model.save_pretrained(folder, state_dict=state_dict)
    finally:
        if settings is not None:
            model.generation_config = settings
    if settings is not None:
        _write_generation_config(settings, folder)
    # the dtype of these weights: with the model's own, from_pretrained would round fp32 masters
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config | _older_rope(config), indent=2, sort_keys=True) + "\n")
    _let_others_read(folder, path)


def _older_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of rotary embeddings by the names of transformers 4; none where layers differ in them.

    Without them transformers 4, vLLM above it and Ollama silently take the family's default frequencies.
    """
    settings = dict(config.get("rope_parameters") or {})
    older = {name: settings.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in settings}
    if older and settings.get("rope_type", "default") != "default":
        older["rope_scaling"] = settings
    return older


def _let_others_read(folder: Path, config: Path) -> None:
    """Gives weights the permissions of a config: safetensors 0.8 lets only their owner read them, against the umask."""
    for path in folder.glob("*.safetensors"):
        shutil.copymode(config, path)


def with_adapters(model, settings, name: str = "default"):
    """The model with the adapters of a peft config, in the trunk's dtype; `name` is what peft calls them."""
    from peft import get_peft_model

    with warnings.catch_warnings():  # peft 0.21 still reads a property that transformers 5 deprecates
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # and looks for fused experts among modules, though their adapters are on parameters
        warnings.filterwarnings("ignore", r"The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        # ZeRO-3 requires one dtype of trained weights: adapters take the trunk's, and DeepSpeed keeps fp32 masters
        return get_peft_model(model, settings, name, autocast_adapter_dtype=False)


def merge_adapters(model, state_dict: Weights):
    """(plain model in fp32, its whole weights) with the adapters merged; the live model, perhaps sharded, is unchanged.

    Quantised weights of the base are read from its folder again.
    """
    base = model.get_base_model()
    quantized = is_quantized(base)
    plain = _reload_in_fp32(base) if quantized else new_like(base)
    with without_sharded_load():
        copy = with_adapters(plain, deepcopy(model.peft_config["default"]))
    layers: set[str] = set()
    if quantized:
        shapes = {name: value.shape for name, value in copy.state_dict().items()}
        layers = {name for name, value in state_dict.items() if not value.is_floating_point()}
        # 4-bit layers also have floating-point entries of their own, such as absmax
        state_dict = {n: v for n, v in state_dict.items() if v.is_floating_point() and shapes.get(n) == v.shape}
    loaded = copy.load_state_dict({name: value.float() for name, value in state_dict.items()}, strict=False)
    missing = set(loaded.missing_keys) & untied_weights(copy).keys() - layers  # tied weights are listed under one name
    assert not missing | set(loaded.unexpected_keys), (missing, loaded.unexpected_keys)
    merged = copy.merge_and_unload()
    return merged, untied_weights(merged)


def submodule_weights(state_dict: Weights, prefix: str) -> Weights:
    """The weights whose names start with `prefix`, which is removed."""
    return {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}


def _reload_in_fp32(base):
    """A quantised model loaded again from its source, with its present number of embeddings."""
    config = base.config
    fresh = type(base).from_pretrained(
        config.name_or_path,
        revision=getattr(config, "_commit_hash", None) or "main",
        num_labels=config.num_labels,
        dtype=torch.float32,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
    )
    rows = base.get_input_embeddings().weight.shape[0]
    if rows != fresh.get_input_embeddings().weight.shape[0]:
        fresh.resize_token_embeddings(rows, mean_resizing=False)
    fresh.config.pad_token_id = config.pad_token_id
    return fresh


def new_like(model):
    """A model of the same class and config with random fp32 weights, not sharded."""
    with without_sharded_load():
        return type(model)._from_config(model.config, dtype=torch.float32)

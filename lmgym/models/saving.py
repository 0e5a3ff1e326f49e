"""Trained models as ordinary Hugging Face folders: whole weights by name, adapters beside them or merged in."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.weights import Weights, untied_weights
from lmgym.models.quantized import is_quantized


def save_classifier(model, state_dict: Weights, folder: str | Path, tokenizer, scorer: dict[str, Any]) -> None:
    """An ordinary Hugging Face folder: safetensors, config, tokenizer with its template, and `scorer.json`.

    `state_dict` holds the whole weights. Of a model with LoRA the adapters are merged in; they and the head also
    lie in `adapter/`. A folder of that name is replaced once the new one is whole. Called on the main rank only.
    """
    with replaced(folder) as partial:
        if is_adapted(model):
            save_adapter(model, state_dict, partial / "adapter")
            model, state_dict = merged(model, state_dict)
        save_plain(model, state_dict, partial, tokenizer)
        (partial / "scorer.json").write_text(json.dumps(scorer, indent=2) + "\n")


@contextlib.contextmanager
def replaced(folder: str | Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of `folder` once it is whole; what is not goes."""
    target, partial = Path(folder), Path(f"{folder}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # half a model on a full disk leaves no room for the next attempt
        raise
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def is_adapted(model) -> bool:
    """Whether it has LoRA adapters."""
    return hasattr(model, "get_base_model")


def below_adapters(model):
    """The transformers model itself: a model without adapters, or what they adapt."""
    return model.get_base_model() if is_adapted(model) else model


def save_adapter(model, state_dict: Weights, folder: Path) -> None:
    """The adapters alone, as peft writes them, with what trained in full beside them."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = {id(parameters[name]): name for name in state_dict if name in parameters}
    # of tied weights one name is enough elsewhere; peft asks for each
    tied = {name: state_dict[names[id(p)]] for name, p in parameters.items() if id(p) in names}
    model.save_pretrained(folder, state_dict=state_dict | tied)
    (folder / "README.md").unlink(missing_ok=True)  # peft's is an empty form


def save_plain(model, state_dict: Weights, folder: Path, tokenizer) -> None:
    """Weights, config and tokenizer."""
    dtypes = {value.dtype for value in state_dict.values() if value.is_floating_point()}
    model.save_pretrained(folder, state_dict=state_dict)  # which empties it
    _name_dtype(folder / "config.json", dtypes)
    tokenizer.save_pretrained(folder)


def _name_dtype(path: Path, dtypes: set[torch.dtype]) -> None:
    """The config names the type of the weights beside it: from_pretrained would round fp32 masters to the model's."""
    config = json.loads(path.read_text())
    config["dtype"] = "float32" if torch.float32 in dtypes else str(dtypes.pop()).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def merged(model, state_dict: Weights):
    """(plain model, its whole weights) with the adapters merged, in fp32, beside the live and maybe sharded one.

    Of a quantised base the weights that are quantised are read from its folder again.
    """
    from peft import get_peft_model

    base = model.get_base_model()
    quantized = is_quantized(base)
    plain = _base_in_fp32(base) if quantized else empty_copy(base)
    with without_sharded_load():
        copy = get_peft_model(plain, deepcopy(model.peft_config["default"]))
    if quantized:
        shapes = {name: value.shape for name, value in copy.state_dict().items()}
        # else 4 bits with what they are read by
        whole = {n: v for n, v in state_dict.items() if v.is_floating_point() and shapes.get(n) == v.shape}
        layers = {name for name, value in state_dict.items() if not value.is_floating_point()}
    else:
        whole, layers = state_dict, set()
    loaded = copy.load_state_dict({name: value.float() for name, value in whole.items()}, strict=False)
    lost = set(loaded.missing_keys) & untied_weights(copy).keys() - layers  # of tied weights one name is enough
    assert not lost | set(loaded.unexpected_keys), (lost, loaded.unexpected_keys)
    whole = copy.merge_and_unload()
    return whole, untied_weights(whole)


def below(state_dict: Weights, prefix: str) -> Weights:
    """The weights of the module whose names start with `prefix`, by its own names."""
    return {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}


def _base_in_fp32(base):
    """The model that was loaded in fewer bits, from where it was, with as many embeddings as it has by now."""
    config = base.config
    fresh = type(base).from_pretrained(
        config.name_or_path, revision=getattr(config, "_commit_hash", None) or "main", num_labels=config.num_labels,
        dtype=torch.float32, use_safetensors=True, ignore_mismatched_sizes=True,
    )  # fmt: skip
    rows = base.get_input_embeddings().weight.shape[0]
    if rows != fresh.get_input_embeddings().weight.shape[0]:
        fresh.resize_token_embeddings(rows, mean_resizing=False)
    fresh.config.pad_token_id = config.pad_token_id
    return fresh


def empty_copy(model):
    """A model of the same class and config, in fp32, with other weights, whole and this rank's own."""
    with without_sharded_load():
        return type(model)._from_config(model.config, dtype=torch.float32)

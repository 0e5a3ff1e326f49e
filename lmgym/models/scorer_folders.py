"""Scorers as people save them: classifiers, adapters of peft, and the heads of TRL, LLaMA-Factory and OpenRLHF.

| saved by | layout |
|---|---|
| transformers, TRL's RewardTrainer, Skywork | a classifier; decoders' heads are `score.weight` |
| peft | an adapter's folder, which names its base and holds the head or leaves the base's as it is |
| TRL's AutoModelForCausalLMWithValueHead | a causal model and `v_head.summary`, a linear layer with a bias |
| LLaMA-Factory | the same in a file of its own, `value_head.safetensors` |
| OpenRLHF | a trunk and `value_head` or `score`; config.json has `normalize_reward`, and perhaps `mean` and `std` |
"""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers.utils.hub import cached_file

from lmgym.errors import InputError, listed, shown_path
from lmgym.models.classifiers import Float32Head, head_name
from lmgym.models.damage import readable
from lmgym.models.loading import load_classifier, load_config, load_tokenizer, load_with_new_keys
from lmgym.models.saving import with_adapters
from lmgym.models.sources import ADAPTER, ADAPTER_WEIGHTS, refuse_pickles, source_arguments

WEIGHTS, INDEX, HEAD_FILE = "model.safetensors", "model.safetensors.index.json", "value_head.safetensors"
HEAD = re.compile(r"(?:score|v_head\.summary|value_head)\.(weight|bias)")
ADAPTER_HEAD = re.compile(r"base_model\.model\.(?:score|classifier(?:\.out_proj)?)\.weight")


class ScorerModel(NamedTuple):
    """A classifier that is ready to score, with its tokenizer."""

    model: Any
    tokenizer: Any
    ends_in_eos: bool
    """its texts lose trailing line breaks and end in eos, as in OpenRLHF"""


def load_scorer_model(name: str) -> ScorerModel:
    """A scorer in fp32 from its folder or hub id. Raises InputError if it does not load or has no trained head."""
    refuse_pickles(name)
    base = adapter_base(name)
    found = _load_whole(name) if base is None else _load_adapted(name, base)
    found.model.config.name_or_path = name
    return found


def _load_whole(name: str) -> ScorerModel:
    config, tokenizer, head = load_config(name), load_tokenizer(name), _read_head(name)
    if not head:  # of several layers, as encoders have, or none at all
        model, _ = load_classifier(name, tokenizer, num_labels=config.num_labels, fresh_head=False)
        return ScorerModel(model, tokenizer, False)
    model, _ = load_classifier(name, tokenizer, num_labels=len(head["weight"]))
    of_openrlhf = hasattr(config, "normalize_reward")
    if of_openrlhf and config.normalize_reward and hasattr(config, "std"):
        mean, std = float(config.mean), float(config.std)
        head = {"weight": head["weight"].float() / std, "bias": (head.get("bias", torch.zeros(1)).float() - mean) / std}
    _set_head(model, head, name)
    return ScorerModel(model, tokenizer, of_openrlhf)


def adapter_base(name: str) -> str | None:
    """The model below an adapter, a folder or hub id; None for what is no adapter."""
    if file_of(name, "config.json") or not (path := file_of(name, ADAPTER)):
        return None
    with readable("adapter", name):
        base = json.loads(Path(path).read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InputError(f"{shown_path(name)}/{ADAPTER} has no base_model_name_or_path; needed: the adapter's base")
    return base


class Adapter(NamedTuple):
    """An adapter's settings and weights."""

    name: str
    settings: Any
    weights: dict[str, torch.Tensor]
    labels: int
    """outputs of the head that it holds itself; 0 without one"""


def read_adapter(name: str) -> Adapter:
    """The adapter in a folder or hub id. Raises InputError for one that cannot be read."""
    from peft import PeftConfig

    path = file_of(name, ADAPTER_WEIGHTS)
    if path is None:
        raise InputError(f"the adapter {shown_path(name)} has no {ADAPTER_WEIGHTS}; needed: that file")
    with readable("adapter", name):
        settings, weights = PeftConfig.from_pretrained(os.path.dirname(path)), load_file(path)
    labels = next((len(weight) for key, weight in weights.items() if ADAPTER_HEAD.fullmatch(key)), 0)
    return Adapter(name, settings, weights, labels)


def _load_adapted(name: str, base: str) -> ScorerModel:
    """The base with the adapter merged in."""
    adapter = read_adapter(name)
    head = {} if adapter.labels else _read_head(name)
    found = load_base(adapter, base, head)
    if head:
        _set_head(found.model, head, name)
    fit_settings(adapter, found.model)
    return found._replace(model=_merge_adapter(found.model, adapter))


def load_base(adapter: Adapter, base: str, head: dict[str, torch.Tensor]) -> ScorerModel:
    """The base of an adapter, with a head of as many outputs as the adapter's or `head`. Raises InputError."""
    name, weights, labels = adapter.name, adapter.weights, adapter.labels
    own = file_of(name, "tokenizer_config.json") is not None
    try:
        if not labels and not head:  # trained below the base's own head
            return load_scorer_model(base)
        tokenizer = load_tokenizer(name if own else base, role="scorer")
        model, new = load_with_new_keys(base, tokenizer, labels or len(head["weight"]))
        whole = [key for key in weights if ".lora_" not in key]
        if any("pooler" in key for key in new) and not any("pooler" in key for key in whole):
            raise InputError(f"{shown_path(base)} has no pooler, nor has the adapter; needed: that of its training")
        return ScorerModel(model, tokenizer, False)
    except InputError as error:
        raise InputError(f"the base of the adapter {shown_path(name)}: {error}") from error


def fit_settings(adapter: Adapter, model) -> None:
    """Names the modules that the adapter holds in full, of this base; peft is told of no task."""
    settings = adapter.settings
    # with a task, peft would take the base's head for a part of the adapter
    settings.task_type = None
    in_full = [module for module in settings.modules_to_save or () if module not in ("score", "classifier")]
    settings.modules_to_save = ([head_name(model)] if adapter.labels else []) + in_full or None


def _merge_adapter(model, adapter: Adapter):
    """The model with an adapter's changes. Raises InputError for an adapter of another kind of model."""
    with readable("adapter", adapter.name):
        words = next(n for n, module in model.named_modules() if module is model.get_input_embeddings())
        embeddings = adapter.weights.get(f"base_model.model.{words}.weight")
        if embeddings is not None and len(embeddings) != len(model.get_input_embeddings().weight):
            model.resize_token_embeddings(len(embeddings), mean_resizing=False)
        adapted = with_adapters(model, adapter.settings)
    fill_adapter(adapted, adapter)
    return adapted.merge_and_unload()


def fill_adapter(adapted, adapter: Adapter, place: str = "default") -> None:
    """Gives the adapter `place` of a model its weights. Raises InputError for one of another kind of model."""
    from peft import set_peft_model_state_dict

    with readable("adapter", adapter.name):
        loaded: Any = set_peft_model_state_dict(adapted, adapter.weights, adapter_name=place)
    missing = [key for key in loaded.missing_keys if ".lora_" in key and f".{place}." in key]
    if lost := [*loaded.unexpected_keys, *missing]:
        raise InputError(
            f"the adapter {shown_path(adapter.name)} does not fit {shown_path(adapted.config.name_or_path)}: "
            f"{listed(lost, 2)}; needed: its own base, as base_model_name_or_path of its {ADAPTER}"
        )


def _set_head(model, head: dict[str, torch.Tensor], name: str) -> None:
    """Exchanges the classifier's linear head."""
    attribute = head_name(model)
    former, (labels, width) = getattr(model, attribute), head["weight"].shape
    if width != former.in_features:
        found = f"a head for states of {width} numbers, and its model's have {former.in_features}"
        raise InputError(f"{shown_path(name)} has {found}; needed: a head that was trained on this model")
    new = Float32Head(width, labels, bias="bias" in head)
    new.load_state_dict(head)
    setattr(model, attribute, new)


def _read_head(name: str) -> dict[str, torch.Tensor]:
    """Weight [labels, width] and perhaps bias of a linear head, by these names; empty if there is none."""
    files = [WEIGHTS, HEAD_FILE]
    with readable("scorer", name):
        if index := file_of(name, INDEX):
            shards: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
            files += {file for key, file in shards.items() if HEAD.fullmatch(key)}
        found: dict[str, torch.Tensor] = {}
        for path in filter(None, (file_of(name, file) for file in files)):
            with safe_open(path, "pt") as content:
                for key in content.keys():  # noqa: SIM118  # not a dict
                    if match := HEAD.fullmatch(key):
                        found[match[1]] = content.get_tensor(key)
    return found if "weight" in found and found["weight"].ndim == 2 else {}


def file_of(name: str, file: str) -> str | None:
    """The path of a file of a folder or hub id; None if it has none."""
    source, where = _source(name)
    if os.path.isdir(source):
        path = os.path.join(source, file)
        return path if os.path.isfile(path) else None
    missing_ones = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    with readable("scorer", name):
        return cached_file(source, file, **where, **missing_ones)


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """A folder or hub id, and where in the hub, as from_pretrained takes them."""
    given = source_arguments(name, role="scorer")
    where: dict[str, Any] = {key: given[key] for key in ("revision", "local_files_only") if key in given}
    return given["pretrained_model_name_or_path"], where

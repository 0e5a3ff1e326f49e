"""Low-rank adapters, and modules that train in full beside them."""

import re
from collections.abc import Collection

from torch import nn
from transformers.pytorch_utils import Conv1D

from lmgym.errors import InputError, listed, shown
from lmgym.models.classifiers import head_modules
from lmgym.models.parameters import LINEAR

ALL_LINEAR = "all-linear"
NAMES = re.compile(r"[\w.]+( *, *[\w.]+)*")  # what is not of this form is a regular expression


def add_lora(model, rank: int, alpha: int, dropout: float, targets: str = ALL_LINEAR, whole: str = ""):
    """Low-rank adapters on every linear layer of the trunk, or on those that `targets` names or matches.

    A classifier's head, and a pooler, train in full and are saved too, as are the modules that `whole` names; a causal
    model's head stays as it is unless it is named. Names stand behind commas; `targets` may be a regular expression of
    whole names instead. Raises InputError for a name that matches nothing, with those that there are.
    """
    from peft import LoraConfig, get_peft_model

    causal = model.get_output_embeddings() is not None
    names, ties = _modules_in_full(model, whole)
    names = [*(() if causal else head_modules(model)), *names]
    settings = LoraConfig(
        task_type="CAUSAL_LM" if causal else "SEQ_CLS",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=ALL_LINEAR if targets == ALL_LINEAR else _targets(model, targets, names),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's linear layers
        exclude_modules=None if causal else r".*pooler\..*",
        modules_to_save=names or None,
        ensure_weight_tying=ties,
    )
    # ZeRO-3 takes trained weights of one type only: adapters in the trunk's own, their fp32 masters are DeepSpeed's
    adapted = get_peft_model(model, settings, autocast_adapter_dtype=False)
    # peft names the embeddings instead, and does not know them again under another name than embed_tokens
    settings.modules_to_save = names or None
    return adapted


def _modules_in_full(model, whole: str) -> tuple[list[str], bool]:
    """(names as peft takes them, whether embeddings that share their weights with the head are among them)."""
    modules = {
        name: module for name, module in model.named_modules() if name and any(True for _ in module.parameters())
    }
    tied, names, ties = _tied(model), [], False
    for name in _split(whole):
        if not (found := _named(modules, name)):
            there = sorted({full.rpartition(".")[2] for full in modules if not full.rpartition(".")[2].isdigit()})
            raise InputError(f"--modules_to_save: {shown(name)} is no module; there are {listed(there, 30)}")
        if not all(p.is_floating_point() for full in found for p in modules[full].parameters()):
            raise InputError(f"--modules_to_save: {name} is quantised and cannot be trained; needed: other modules")
        if not any(p.requires_grad for full in found for p in modules[full].parameters()):
            raise InputError(
                f"--modules_to_save: {name} is frozen by --freeze_embeddings; needed: one of both settings"
            )
        names += [full for full in found if full not in tied]  # whole names: peft's match would ignore the dots
        ties |= not tied.isdisjoint(found)
    if ties:  # both train as one: peft is told so by the head's name, which it knows
        names.append(next(full for full, module in modules.items() if module is model.get_output_embeddings()))
    return names, ties


def _targets(model, targets: str, in_full: Collection[str]) -> list[str]:
    """Which layers get an adapter, as peft takes them."""
    modules = dict(model.named_modules())
    linear = [n for n, m in modules.items() if isinstance(m, LINEAR) and not _among(n, in_full)]
    if NAMES.fullmatch(targets):
        names = _split(targets)
        fit = [*linear, *(n for n, m in modules.items() if isinstance(m, nn.Embedding) and not _among(n, in_full))]
        found = {name: _named(fit, name) for name in names}
    else:
        try:
            pattern = re.compile(targets)
        except re.error as error:
            raise InputError(f"--lora_target_modules: {shown(targets)} is no regular expression: {error}") from error
        found = {targets: [name for name in linear if pattern.fullmatch(name)]}
        names = found[targets]
    for name, layers in found.items():
        if not layers:
            there = sorted({full.rpartition(".")[2] for full in linear})
            raise InputError(
                f"--lora_target_modules: {shown(name)} matches no linear layer; there are {listed(there, 30)}"
            )
        if shared := _tied(model).intersection(layers):
            embeddings = next(n for n, m in modules.items() if m is model.get_input_embeddings()).rpartition(".")[2]
            raise InputError(
                f"--lora_target_modules: {shared.pop()} shares its weights with another module, of which an adapter "
                f"would part it; needed: other layers, or --modules_to_save {embeddings}, which trains both in full"
            )
    return names


def _tied(model) -> set[str]:
    """Names of embeddings and head where they share their weights."""
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight is not words.weight:
        return set()
    return {name for name, module in model.named_modules() if module is words or module is head}


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _named(modules: Collection[str], name: str) -> list[str]:
    """Those that are called so, or end so behind a dot."""
    return [full for full in modules if full == name or full.endswith(f".{name}")]


def _among(full: str, names: Collection[str]) -> bool:
    """True for a module that is one of those that are named, or lies within."""
    return any(re.search(rf"(^|\.){re.escape(name)}($|\.)", full) for name in names)

"""Low-rank adapters, and modules that train in full beside them."""

import re
from collections.abc import Collection

from torch import nn
from transformers.pytorch_utils import Conv1D

from lmgym.errors import InputError, listed, shown
from lmgym.models.classifiers import head_modules
from lmgym.models.parameters import LINEAR
from lmgym.models.saving import with_adapters

ALL_LINEAR = "all-linear"
NAMES = re.compile(r"[\w.]+( *, *[\w.]+)*")  # anything else is a regular expression


def add_lora(model, rank: int, alpha: int, dropout: float, targets: str = ALL_LINEAR, whole: str = ""):
    """The model with low-rank adapters on every linear layer of the trunk, or on those that `targets` selects.

    Layers that peft refuses, such as Mamba's out_proj, get none. A classifier's head and pooler are trained in full and
    saved too, as are the modules that `whole` names; a causal model's head is frozen unless it is named. Names are
    separated by commas; `targets` may instead be a regular expression that matches full names. Raises InputError, with
    the available names, for a name that matches nothing, or that peft refuses.
    """
    from peft import LoraConfig

    causal = model.get_output_embeddings() is not None
    names, ties = _modules_in_full(model, whole)
    names = [*(() if causal else head_modules(model)), *names]
    refused = refused_layers(model)
    without = [*(rf".*\b{name}" for name in refused), *([] if causal else [r".*pooler\..*"])]
    settings = LoraConfig(
        task_type="CAUSAL_LM" if causal else "SEQ_CLS",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=ALL_LINEAR if targets == ALL_LINEAR else _targets(model, targets, names),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's linear layers
        exclude_modules="|".join(without) or None,
        modules_to_save=names or None,
        ensure_weight_tying=ties,
    )
    adapted = _with_adapters(model, settings)
    # peft replaces the names by the embeddings', which it recognises only if they are called embed_tokens
    settings.modules_to_save = names or None
    return adapted


def _with_adapters(model, settings):
    """`with_adapters`. Raises InputError for what peft cannot do with adapters on fused experts."""
    from peft.tuners.lora.layer import ParamWrapper

    beside = "--lora_target_modules q_proj,k_proj,v_proj,o_proj, which leaves the experts as they are"
    try:
        adapted = with_adapters(model, settings)
    except ValueError as error:
        if ParamWrapper.__name__ not in str(error):
            raise
        raise InputError(
            f"--lora_dropout {settings.lora_dropout:g}: adapters of experts have no dropout; needed: 0, or {beside}"
        ) from error
    on_experts = any(isinstance(module, ParamWrapper) for module in adapted.modules())
    if on_experts and any(hasattr(p, "ds_id") for p in model.parameters()):
        raise InputError(f"adapters of experts cannot be trained under ZeRO-3; needed: --deepspeed zero2, or {beside}")
    return adapted


def _modules_in_full(model, whole: str) -> tuple[list[str], bool]:
    """(full names of modules, whether embeddings that share their weights with the head are among them)."""
    modules = {name: module for name, module in model.named_modules() if name and list(module.parameters())}
    tied, names, ties = _tied(model), [], False
    for name in _split(whole):
        if not (found := _named(modules, name)):
            existing = {full.rpartition(".")[2] for full in modules}
            there = sorted(last for last in existing if not last.isdigit())
            raise InputError(f"--modules_to_save: {shown(name)} is not a module; there are {listed(there, 30)}")
        parameters = [p for full in found for p in modules[full].parameters()]
        if not all(p.is_floating_point() for p in parameters):
            raise InputError(f"--modules_to_save: {name} is quantised and cannot be trained; needed: other modules")
        if not any(p.requires_grad for p in parameters):
            raise InputError(
                f"--modules_to_save: {name} is frozen by --freeze_embeddings; needed: one of both settings"
            )
        names += [full for full in found if full not in tied]  # full names: peft's match would ignore the dots
        ties |= not tied.isdisjoint(found)
    if ties:  # both train as one, which peft does if it gets the head's name
        names.append(next(full for full, module in modules.items() if module is model.get_output_embeddings()))
    return names, ties


def _targets(model, targets: str, in_full: Collection[str]) -> list[str]:
    """Names of the layers that get an adapter, as peft takes them."""
    modules = {name: module for name, module in model.named_modules() if not _is_within(name, in_full)}
    linear = [name for name, module in modules.items() if isinstance(module, LINEAR)]
    if NAMES.fullmatch(targets):
        names = _split(targets)
        adaptable = [*linear, *(name for name, module in modules.items() if isinstance(module, nn.Embedding))]
        found = {name: _named(adaptable, name) for name in names}
    else:
        try:
            pattern = re.compile(targets)
        except re.error as error:
            raise InputError(f"--lora_target_modules: {shown(targets)} is not a regular expression: {error}") from error
        found = {targets: [name for name in linear if pattern.fullmatch(name)]}
        names = found[targets]
    refused = refused_layers(model)
    for name, layers in found.items():
        there = sorted({full.rpartition(".")[2] for full in linear} - set(refused))
        if no := [full for full in layers if full.rpartition(".")[2] in refused]:
            raise InputError(
                f"--lora_target_modules: peft puts no adapter on {no[0]} of a {model.config.model_type}; needed: some "
                f"of {listed(there, 30)}"
            )
        if not layers:
            raise InputError(
                f"--lora_target_modules: {shown(name)} matches no linear layer; there are {listed(there, 30)}"
            )
        if shared := _tied(model).intersection(layers):
            full = next(n for n, m in model.named_modules() if m is model.get_input_embeddings())
            raise InputError(
                f"--lora_target_modules: {shared.pop()} shares its weights with another module, from which an adapter "
                f"would separate it; needed: other layers, or --modules_to_save {full.rpartition('.')[2]}, which "
                "trains both in full"
            )
    return names


def refused_layers(model) -> list[str]:
    """Last names of linear layers that peft refuses in this family: Mamba's kernels read the weights of some."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import BaseTuner

    refuse = getattr(BaseTuner, "_check_target_module_compatiblity", None)  # not in older versions
    refused = []
    for name in {full.rpartition(".")[2] for full, module in model.named_modules() if isinstance(module, LINEAR)}:
        try:
            if refuse is not None:
                refuse(None, LoraConfig(), model, name)
        except ValueError:
            refused.append(name)
    return sorted(refused)


def _tied(model) -> set[str]:
    """Names of the embeddings and the head if they share their weights; otherwise empty."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return set()
    return {name for name, module in model.named_modules() if module is embeddings or module is head}


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _named(modules: Collection[str], name: str) -> list[str]:
    """The modules with this full name, or whose full names end in it after a dot."""
    return [full for full in modules if full == name or full.endswith(f".{name}")]


def _is_within(full: str, names: Collection[str]) -> bool:
    """True for a module that is one of those named, or inside one."""
    return any(re.search(rf"(^|\.){re.escape(name)}($|\.)", full) for name in names)

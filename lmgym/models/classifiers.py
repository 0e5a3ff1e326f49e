"""Classifiers and their heads: transformers' classes, and ours for decoders that it has none for (Granite, Cohere).

Ours is what transformers makes of other decoders, a trunk and a linear `score`, under the name that it would have
there. The class derives from the family's own base class, so loading, saving, resizing, tied weights, checkpointing
and sharded loading are the family's.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from lmgym.errors import InputError
from lmgym.models.config_fields import width
from lmgym.models.embeddings import gives_fp32, round_frozen_embeddings
from lmgym.models.parameters import LINEAR, gathered
from lmgym.models.saving import unwrap_adapters
from lmgym.models.weight_files import HEADS


class DecoderClassifier:
    """A decoder's trunk with a linear head on its last token: the part that is not the family's."""

    def __init__(self, config) -> None:
        super().__init__(config)  # type: ignore[call-arg]  # the family's base class
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, AutoModel.from_config(config))  # type: ignore[attr-defined]
        self.score = nn.Linear(width(config), config.num_labels, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **settings: Any):
        """Logits [batch, labels] at each row's last token that is not padding; `settings` are the trunk's."""
        trunk = getattr(self, self.base_model_prefix)  # type: ignore[attr-defined]
        # peft passes every argument that a forward may take, as None; some trunks do not accept all of them
        given = {"use_cache": False} | {name: value for name, value in settings.items() if value is not None}
        hidden = trunk(input_ids=input_ids, attention_mask=attention_mask, **given).last_hidden_state
        counted = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        ends = (columns * counted.ne(0)).argmax(1)
        logits = self.score(hidden[torch.arange(len(input_ids), device=input_ids.device), ends])
        return SequenceClassifierOutput(logits=logits)


def classifier_class(config) -> Any:
    """The class, or auto class, of classifiers of this config's family.

    Raises InputError for a family that transformers knows neither as a classifier nor as a decoder.
    """
    kind: Any = type(config)
    if kind in AutoModelForSequenceClassification._model_mapping:
        return AutoModelForSequenceClassification
    if kind in AutoModelForCausalLM._model_mapping and kind in AutoModel._model_mapping:
        return _make_class(kind)
    if getattr(config, "auto_map", None):  # of code that a hub id brings along
        return AutoModelForSequenceClassification
    raise InputError(f"transformers has neither a classifier nor a causal model of the family {config.model_type}")


def new_classifier(config, dtype: torch.dtype = torch.float32):
    """A classifier of this config with random weights."""
    kind = classifier_class(config)
    make = kind.from_config if kind is AutoModelForSequenceClassification else kind._from_config
    return make(config, dtype=dtype)


@cache  # one class a family: copies are of the same type
def _make_class(config_class: Any) -> Any:
    trunk, causal = (_class_of(auto, config_class) for auto in (AutoModel, AutoModelForCausalLM))
    family = next(kind for kind in trunk.__mro__ if PreTrainedModel in kind.__bases__)
    name = causal.__name__.replace("ForCausalLM", "").replace("LMHeadModel", "") + "ForSequenceClassification"
    # the family's config_class may be that of a larger model with this trunk inside
    attributes = {"base_model_prefix": family.base_model_prefix or "model", "config_class": config_class}
    return type(name, (DecoderClassifier, family), attributes)


def _class_of(auto: Any, config_class: Any) -> Any:
    found = auto._model_mapping[config_class]
    return found[0] if isinstance(found, tuple) else found


def head_name(model) -> str:
    """The attribute that holds the family's classification head."""
    for name in HEADS:
        if hasattr(model, name):
            return name
    family = model.config.model_type
    raise InputError(f"classifiers of {family} have no head called {' or '.join(HEADS)}; use another family")


def is_decoder(classifier) -> bool:
    """True for a classifier on a decoder's last token; transformers calls the head of those `score`."""
    return hasattr(classifier, "score")


def init_head(model, seed: int) -> None:
    """Initialise a linear head as normal with std 1/sqrt(width + 1); a deeper one keeps the family's initialisation."""
    head = getattr(model, head_name(model))
    if not isinstance(head, nn.Linear):
        return
    generator = torch.Generator().manual_seed(seed)
    with gathered([head.weight], modifier_rank=0), torch.no_grad():
        if head.weight.numel():
            normal = torch.randn(head.weight.shape, generator=generator) / math.sqrt(head.in_features + 1)
            head.weight.copy_(normal.to(head.weight))


def head_modules(model) -> list[str]:
    """Modules between the trunk's hidden states and the logits, which may be new, such as an encoder's pooler."""
    beside_trunk = [name for name, child in model.named_children() if list(child.parameters())]
    beside_trunk.remove(model.base_model_prefix)
    trunk = getattr(model, model.base_model_prefix)
    return beside_trunk + (["pooler"] if getattr(trunk, "pooler", None) is not None else [])


class Float32Head(nn.Linear):
    """A linear head that computes in fp32 whatever the trunk's precision: scores in bf16 have 8 bits."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(hidden.float(), self.weight.float(), bias)


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights in place, as DeepSpeed does, except those of a Float32Head.

    `model.to(dtype)` would round buffers too: rotary frequencies in bf16 are off by a quarter of a radian at position
    150.
    """
    heads = {id(p) for module in model.modules() if isinstance(module, Float32Head) for p in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in heads:
            parameter.data = parameter.data.to(dtype)


def round_frozen_weights(model) -> None:
    """`round_frozen_layers` and `round_frozen_embeddings`: numbers under bf16's autocast stay as they are."""
    round_frozen_layers(model)
    round_frozen_embeddings(model)


def round_frozen_layers(model) -> None:
    """Cast to bf16, in place, the frozen weights of linear layers: the numbers that autocast makes of them at each use.

    Call it once it is known which weights are trained.
    """
    for parameter in frozen_linear_weights(model):
        parameter.data = parameter.data.to(torch.bfloat16)


def frozen_linear_weights(model) -> Iterator[nn.Parameter]:
    """Frozen weights and biases of linear layers, each once.

    Not those of a Float32Head, of a head that is tied to the embeddings, and quantised ones.
    """
    seen = {id(p) for p in unwrap_adapters(model).get_input_embeddings().parameters()}
    for parameter in _weights_of_linear_layers(model):
        if not parameter.requires_grad and parameter.is_floating_point() and id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter


def _weights_of_linear_layers(model) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, LINEAR) and not isinstance(module, Float32Head):
            yield from module.parameters(recurse=False)


def autocast_dtype(model) -> torch.dtype | None:
    """bf16 for a model with states in fp32 and linear layers in bf16 (`round_frozen_weights`), else None."""
    if not gives_fp32(model):
        return None
    return torch.bfloat16 if any(p.dtype == torch.bfloat16 for p in _weights_of_linear_layers(model)) else None

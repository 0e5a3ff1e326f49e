"""Classes of classifiers: transformers' own, and one of ours for decoders that it knows none for (Granite, Cohere).

Ours is what transformers makes of a decoder elsewhere, a trunk and a linear `score`, under the name that it would have
there. The class is made from the family's own base class, so loading, saving, resizing, tied weights, checkpointing and
sharded loading are the family's.
"""

from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from lmgym.errors import InputError
from lmgym.models.config_fields import width


class TrunkWithScore:
    """The part of a classifier that is not the family's: a decoder's trunk, and a linear head on its last token."""

    def __init__(self, config) -> None:
        super().__init__(config)  # type: ignore[call-arg]  # the family's base class
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, AutoModel.from_config(config))  # type: ignore[attr-defined]
        self.score = nn.Linear(width(config), config.num_labels, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **settings: Any):
        """Logits [batch, labels] at each row's last token that is no padding; `settings` are the trunk's."""
        trunk = getattr(self, self.base_model_prefix)  # type: ignore[attr-defined]
        # peft names all that a forward may take: some trunks do not know what is None
        given = {"use_cache": False} | {name: value for name, value in settings.items() if value is not None}
        hidden = trunk(input_ids=input_ids, attention_mask=attention_mask, **given).last_hidden_state
        counted = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        ends = (columns * counted.ne(0)).argmax(1)
        logits = self.score(hidden[torch.arange(len(input_ids), device=input_ids.device), ends])
        return SequenceClassifierOutput(logits=logits)


def classifier_class(config) -> Any:
    """The class, or auto class, of classifiers of this config's family.

    Raises InputError for a family that is neither known to transformers as a classifier nor a decoder.
    """
    kind: Any = type(config)
    if kind in AutoModelForSequenceClassification._model_mapping:
        return AutoModelForSequenceClassification
    if kind in AutoModelForCausalLM._model_mapping and kind in AutoModel._model_mapping:
        return _made_class(kind)
    if getattr(config, "auto_map", None):  # of code that a hub id brings along
        return AutoModelForSequenceClassification
    raise InputError(f"transformers has neither a classifier nor a causal model of the family {config.model_type}")


def new_classifier(config, dtype: torch.dtype = torch.float32):
    """A classifier of this config with random weights."""
    kind = classifier_class(config)
    make = kind.from_config if kind is AutoModelForSequenceClassification else kind._from_config
    return make(config, dtype=dtype)


@cache  # one class a family: copies are of the same type
def _made_class(config_class: Any) -> Any:
    trunk, causal = (_class_of(auto, config_class) for auto in (AutoModel, AutoModelForCausalLM))
    family = next(kind for kind in trunk.__mro__ if PreTrainedModel in kind.__bases__)
    name = causal.__name__.replace("ForCausalLM", "").replace("LMHeadModel", "") + "ForSequenceClassification"
    # the family's config_class may be that of a larger model with this trunk inside
    own = {"base_model_prefix": family.base_model_prefix or "model", "config_class": config_class}
    return type(name, (TrunkWithScore, family), own)


def _class_of(auto: Any, config_class: Any) -> Any:
    found = auto._model_mapping[config_class]
    return found[0] if isinstance(found, tuple) else found

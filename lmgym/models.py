"""Loading tokenizers and classifiers, and the one module whose forward scores replies.

Traps that this module exists for: a pad token that is the eos token pools the wrong place; a bf16 folder loads as
bf16 weights, which plain AdamW at 1e-5 hardly moves; a forward of an inner module beside the wrapped one makes data
parallel ranks diverge silently, so everything that a loss needs is one forward of `ScoringModel`.
"""

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, set_seed
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from lmgym.engine import gathered_parameters
from lmgym.errors import InputError, one_line, shown_path
from lmgym.finite_weights import refuse_non_finite_weights
from lmgym.packing import ATTENTION, PackedBatch, pack, packed_attention, pad_right
from lmgym.saving import below_adapters
from lmgym.sources import no_folder, refuse_pickles, source_arguments
from lmgym.text import Replies, ensure_template

ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
# what its reports of missing and unexpected keys mean for a scorer is said, or refused, here
transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

# families whose packed forward is tested equal to the plain one
PACKED_FAMILIES = ("gpt2", "llama", "qwen3")
SCORER_HEADS = ("score.", "classifier.")  # what keys of weights begin with that no causal model has
PAD_TOKEN = "<|pad|>"


def load_tokenizer(name: str, trust_remote_code: bool = False):
    """A tokenizer with a pad token of its own, right padding and a chat template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source_arguments(name, trust_remote_code))
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"no tokenizer loads from {shown_path(name)}: {first_line(error)}{no_folder(name)}{_tokenizer_files(name)}"
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes of a folder without its files
        raise InputError(f"the tokenizer of {name} knows no word{_tokenizer_files(name)}")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        tokenizer.add_special_tokens({"pad_token": PAD_TOKEN})
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = "left"
    ensure_template(tokenizer)
    return tokenizer


def _tokenizer_files(name: str) -> str:
    """What to do about a folder that has no tokenizer's files; nothing for one that has, and for hub ids."""
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder) or any(folder.glob("*token*")):
        return ""
    return (
        "; found no tokenizer's files in that folder; needed: tokenizer.json and tokenizer_config.json, as "
        f"tokenizer.save_pretrained({str(folder)!r}) writes them"
    )


def load_config(name: str, trust_remote_code: bool = False):
    """A model's config alone. Raises InputError where there is none."""
    try:
        return AutoConfig.from_pretrained(**source_arguments(name, trust_remote_code))
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"no model config loads from {shown_path(name)}: {first_line(error)}{no_folder(name)}"
        ) from error


def context_length(config) -> int:
    """Most tokens that a model of this config reads; 2^30 where it names no limit."""
    return getattr(config, "max_position_embeddings", None) or 1 << 30


def load_classifier(
    name: str,
    tokenizer,
    num_labels: int = 1,
    seed: int = 0,
    fresh_head: bool = True,
    trust_remote_code: bool = False,
):
    """A sequence classifier in fp32, its head new where the folder has none; returns (model, head_is_new).

    A new head is normal with std 1/sqrt(hidden + 1) (Stiennon et al. 2020). With `fresh_head=False` a folder
    without a trained head raises InputError.
    """
    config = load_config(name, trust_remote_code)
    refuse_pickles(name)
    set_seed(seed)  # a new pooler is drawn within from_pretrained
    labels: dict[str, Any] = {} if config.num_labels == num_labels else {"num_labels": num_labels}
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            **source_arguments(name, trust_remote_code),
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **labels,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"no classifier loads from {shown_path(name)}: {first_line(error)}") from error
    absent = set(info["missing_keys"]) | {key[0] for key in info.get("mismatched_keys", ())}
    # some encoders' heads are several layers (RoBERTa, DeBERTa): all that is not the trunk, and the trunk's pooler
    head_keys = {key for key in absent if not key.startswith(f"{model.base_model_prefix}.")}
    head_is_new = bool(head_keys)
    if head_is_new:
        head_keys |= {key for key in absent if ".pooler." in key}
    if head_is_new and not fresh_head:
        raise InputError(f"{name} is no scorer: it has no trained {head_name(model)}; train one, or name its folder")
    if lost := sorted(absent - head_keys):
        raise InputError(f"the weights in {name} are not whole: missing {', '.join(lost[:3])} ({len(lost)} in all)")
    refuse_non_finite_weights(model, name)
    fit_to_tokenizer(model, tokenizer)
    if head_is_new:
        _init_head(model, seed)
    head = getattr(model, head_name(model))
    if type(head) is nn.Linear:
        head.__class__ = Float32Head  # in place: ZeRO-3 and the optimizer know this module and its weight
    return model, head_is_new


def fit_to_tokenizer(model, tokenizer) -> None:
    """An embedding for every token, and its pad token.

    A new token's is the mean of the others: the same on every rank, where random ones would differ, and among a
    model's logits, which need not lie about 0, no more likely than most.
    """
    if any(hasattr(p, "ds_id") for p in model.parameters()):
        # under ZeRO-3 transformers keeps every renaming it knows, used or not, and undoes them all when it saves: to
        # names such as LayerNorm.gamma; where none is kept it takes the family's own
        vars(model).pop("_weight_conversions", None)
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                _set_to_mean(layer, known)
    model.config.pad_token_id = tokenizer.pad_token_id


def head_name(model) -> str:
    """Where the family keeps its classification head."""
    found = [name for name in ("score", "classifier") if hasattr(model, name)]
    if not found:
        family = model.config.model_type
        raise InputError(f"classifiers of {family} have no head called score or classifier; use another family")
    return found[0]


def _init_head(model, seed: int) -> None:
    head = getattr(model, head_name(model))
    if not isinstance(head, nn.Linear):
        return  # families with a deeper head keep their own initialisation
    generator = torch.Generator().manual_seed(seed)
    with gathered([head.weight], modifier_rank=0), torch.no_grad():
        if head.weight.numel():
            drawn = torch.randn(head.weight.shape, generator=generator) / math.sqrt(head.in_features + 1)
            head.weight.copy_(drawn.to(head.weight))


def _set_to_mean(layer, known: int) -> None:
    """Rows behind the first `known` ones become the mean of these, the biases too."""
    parameters = [p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None]
    with gathered(parameters, modifier_rank=0), torch.no_grad():
        for parameter in parameters:
            if len(parameter) > known:
                parameter[known:] = parameter[:known].float().mean(0).to(parameter.dtype)


def gathered(parameters: Sequence[torch.Tensor], modifier_rank: int | None = None):
    """Whole parameters for the length of a `with`, where ZeRO-3 has sharded them; else nothing happens."""
    if not any(hasattr(p, "ds_id") for p in parameters):
        return contextlib.nullcontext()
    return gathered_parameters(parameters, modifier_rank)


def add_lora(model, rank: int, alpha: int, dropout: float):
    """Low-rank adapters on every linear layer of the trunk.

    A classifier's head, and a pooler, train in full and are saved too; a causal model's head stays as it is.
    """
    from peft import LoraConfig, get_peft_model

    causal = model.get_output_embeddings() is not None
    settings = LoraConfig(
        task_type="CAUSAL_LM" if causal else "SEQ_CLS",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's linear layers
        exclude_modules=None if causal else r".*pooler\..*",
        modules_to_save=None if causal else _head_modules(model),
    )
    # ZeRO-3 takes trained weights of one type only: adapters in the trunk's own, their fp32 masters are DeepSpeed's
    return get_peft_model(model, settings, autocast_adapter_dtype=False)


def _head_modules(model) -> list[str]:
    """What stands between the trunk's hidden states and the logits, and may be new: an encoder's pooler is."""
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


def runs_packed(config, asked: bool | None) -> bool:
    """Whether a family runs packed. Raises InputError where that is asked for and it does not."""
    # packed attention knows no window that slides
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    can_pack = config.model_type in PACKED_FAMILIES and not slides
    if asked and not can_pack:
        found = f"{config.model_type}{' with sliding windows' if slides else ''}"
        raise InputError(f"--packed: {found} is not one of {', '.join(PACKED_FAMILIES)}")
    return can_pack if asked is None else asked


class ScoringModel(nn.Module):
    """A classifier whose one forward scores a batch of replies, so that data parallel wrappers see all of it.

    Families in PACKED_FAMILIES run packed (lmgym/packing.py); others as padded rows through their own forward.
    Most of the last layer runs on the tokens whose hidden state is read and on no others.
    """

    def __init__(self, model, packed: bool | None = None) -> None:
        super().__init__()
        self.model = model
        classifier = self.classifier
        self.packed = runs_packed(classifier.config, packed)
        if self.packed:
            classifier.set_attn_implementation(ATTENTION)
            self._ends = torch.empty(0, dtype=torch.int64)  # of the batch in the forward
            for module in read_at_ends_only(classifier):
                self._compute_at_ends(module)

    @property
    def classifier(self):
        """The transformers model itself, below any adapter."""
        return below_adapters(self.model)

    @property
    def config(self):
        """The classifier's config: the Trainer reads the hidden size for ZeRO-3's buckets from it."""
        return self.classifier.config

    def collate(self, rows: Sequence[Replies], pad_id: int) -> dict:
        """Keyword arguments of `forward` for these rows; scores come in the order of the rows' replies."""
        return {"packed": pack(rows)} if self.packed else pad_right(rows, pad_id)

    def forward(self, packed: PackedBatch | None = None, input_ids=None, attention_mask=None) -> torch.Tensor:
        """Raw logits [replies, num_labels] in fp32."""
        if packed is None:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits.float()
        classifier = self.classifier
        trunk = getattr(classifier, classifier.base_model_prefix)
        self._ends = packed.ends
        hidden = trunk(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            packed=packed,
            masks=packed.masks(working_dtype(trunk)),
            last_layer=classifier.config.num_hidden_layers - 1,
            use_cache=False,
        ).last_hidden_state
        return getattr(classifier, head_name(classifier))(hidden[0].index_select(0, packed.ends))

    def _compute_at_ends(self, position_wise: nn.Module) -> None:
        config = self.config  # not in the forward alone: checkpointing runs the layer again in the backward

        def gather(_, inputs: tuple[torch.Tensor, ...]):
            # a plain forward after set_attn_implementation, or tokens [N, W] of lmgym/prefixes.py
            if config._attn_implementation != ATTENTION or inputs[0].ndim != 3:
                return None
            self._tokens = inputs[0].shape[1]
            return (inputs[0].index_select(1, self._ends), *inputs[1:])

        def scatter(_, inputs, output: torch.Tensor):
            if config._attn_implementation != ATTENTION or output.ndim != 3:
                return None
            return output.new_zeros(1, self._tokens, output.shape[-1]).index_copy(1, self._ends, output)

        position_wise.register_forward_pre_hook(gather)
        position_wise.register_forward_hook(scatter)


def working_dtype(module: nn.Module) -> torch.dtype:
    """What its matrix products run in: autocast's type, or the weights' own."""
    parameter = next(module.parameters())
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype


def read_at_ends_only(classifier) -> list[nn.Module]:
    """The position-wise parts of a packed family's last block whose output matters at the replies' ends alone."""
    trunk = getattr(classifier, classifier.base_model_prefix)
    block = (trunk.h if hasattr(trunk, "h") else trunk.layers)[-1]
    return [block.attn.c_proj if hasattr(block, "attn") else block.self_attn.o_proj, block.mlp]


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Gives the weights this type, in place, as DeepSpeed does: `model.to(dtype)` would round buffers too.

    Rotary frequencies of 8 bits are off by a quarter of a radian at position 150.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def round_scorer(model: nn.Module, dtype: torch.dtype) -> None:
    """`round_weights` of all but a Float32Head, which would compute in fp32 with weights of 8 bits."""
    heads = {id(p) for module in model.modules() if isinstance(module, Float32Head) for p in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in heads:
            parameter.data = parameter.data.to(dtype)


def count_parameters(model) -> tuple[int, int]:
    """(trainable, all) parameters, whole sizes under ZeRO-3 too."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    return sum(n for n, trains in sizes if trains), sum(n for n, _ in sizes)


def first_line(error: Exception) -> str:
    """What an error says, or its kind; more may follow behind it."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."), 400)

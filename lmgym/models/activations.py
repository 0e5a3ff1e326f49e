"""Bytes that a forward and a backward hold besides weights and gradients, counted before anything is loaded.

The model's own code runs on fake tensors, which have sizes and no data, with few layers; both passes' peaks grow by the
same number of bytes with each further layer. On an H200 the peaks of 27 micro-batches were within 4% of these, where a
formula of bytes per token, layer and hidden unit (Korthikanti et al. 2022, eq. 2) was off by up to half: it knows no
gated MLP, no residual stream in fp32 and no copies of weights that autocast makes.
"""

import contextlib
import logging
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from lmgym.aids import aid
from lmgym.config import ModelConfig
from lmgym.models.attention_blocks import attend_in_blocks
from lmgym.models.classifiers import new_classifier, round_frozen_layers, round_weights
from lmgym.models.config_fields import attn_implementation, layer_count, width
from lmgym.models.damage import readable
from lmgym.models.dropout import set_training
from lmgym.models.layer_attention import FLASH_WIDTH, LayerAttention, eager_attention
from lmgym.models.lora import add_lora
from lmgym.models.saving import unwrap_adapters

ATTENTION = "lmgym_counted"
FEW, MORE = 2, 3  # layers
ROW = 256  # tokens of a row: some models without attention have a Python loop over them
SECONDS = 10.0  # of a pass forth and back: Mamba's loop takes about as many
UNKNOWN_LAYER = 100  # bytes of a layer that cannot be counted
LOGIT_BYTES = 12  # of a logit that exists: itself, its softmax and its gradient


class _Attention(torch.autograd.Function):
    """Keeps what flash attention keeps: its inputs, its output and a number for each query."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:3], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


class _Logits(torch.autograd.Function):
    """Holds so many logits in both passes, and keeps none."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, numbers: int) -> torch.Tensor:
        ctx.save_for_backward(states)
        ctx.numbers = numbers
        torch.empty(numbers * LOGIT_BYTES, dtype=torch.int8)
        return states.new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        torch.empty(ctx.numbers * LOGIT_BYTES, dtype=torch.int8)
        return torch.empty_like(ctx.saved_tensors[0]), None


def _attend(
    module: nn.Module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """[B, T, heads, E] as on a GPU (lmgym/models/forward/attention.py): flash attention where it can be had."""
    # under autocast, rotary embeddings and norms turn queries and keys into fp32
    query, key, value = (states.to(value.dtype) for states in (query, key, value))
    tokens, width = query.shape[-2:]
    plain = softcap is None and s_aux is None and width <= FLASH_WIDTH
    if plain and not (dropout and sliding_window):
        return _Attention.apply(query, key, value).transpose(1, 2), None
    layer = LayerAttention(width**-0.5 if scaling is None else scaling, sliding_window, softcap, s_aux, dropout)
    if dropout:
        mask = torch.ones(tokens, tokens, dtype=torch.bool)
        return eager_attention(query, key, value, layer, mask).transpose(1, 2), None
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    attended = attend_in_blocks(query, key, value, layer.scaling, sliding_window, softcap, s_aux)
    return torch.cat((attended,)), None  # a copy, as where rows of several lengths are put together


AttentionInterface.register(ATTENTION, _attend)


class PeakBytes(TorchDispatchMode):
    """Most bytes that are alive of storages made within it, beside the existing ones; `begin` starts another count.

    Raises TimeoutError after SECONDS of this thread on a processor, however busy the machine.
    """

    def __init__(self, existing: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._storages = [tensor.untyped_storage() for tensor in existing]  # an id of one that is gone may come again
        self._seen = set(map(id, self._storages))
        self._ends = time.thread_time() + SECONDS

    def begin(self) -> int:
        """The peak since the last call."""
        peak, self.peak = self.peak, self.alive
        return peak

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if time.thread_time() > self._ends:
            raise TimeoutError(f"it takes more than {SECONDS:g} s of a processor")
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and id(storage := tensor.untyped_storage()) not in self._seen:
                self._seen.add(id(storage))
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._forget, id(storage), storage.nbytes())
        self.peak = max(self.peak, self.alive)
        return found

    def _forget(self, number: int, size: int) -> None:
        self._seen.discard(number)
        self.alive -= size


def empty_model(model_config, settings: ModelConfig | None = None, causal: bool = False) -> Any:
    """A classifier or a causal model with the adapters of `settings`, of sizes alone.

    Raises InputError if they name modules that do not exist, or if a layer can have no such sizes; NotImplementedError
    for a model with code of its own: transformers would ask on the terminal whether it may be run.
    """
    if type(model_config).__module__.startswith(f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}."):
        raise NotImplementedError(f"{model_config.model_type} has code of its own")
    model_config = deepcopy(model_config)  # transformers writes the dtype that is asked for into it
    with readable("model", model_config.name_or_path), torch.device("meta"):
        if causal:  # fp32 as in a run, whatever the config says
            model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)
        else:
            model = new_classifier(model_config)
    if settings is not None and settings.lora_rank:
        with torch.device("meta"):
            rank, alpha = settings.lora_rank, settings.lora_alpha
            model = add_lora(model, rank, alpha, 0.0, settings.lora_target_modules, settings.modules_to_save)
    return model


def activation_bytes(
    model_config,
    tokens: int,
    settings: ModelConfig,
    engine: bool,
    logits: int = 0,
    layers: int | None = None,
    learns: bool = True,
    dropout_row: int = 0,
) -> float:
    """Most bytes that a micro-batch of `tokens` holds besides weights and their gradients.

    `settings` give precision, adapters and checkpointing; `engine`: DeepSpeed's, which has no autocast. `logits` exist
    at a time; 0 for a classifier. With `layers`, the last ones alone are trained; without `learns` there is no
    backward. With `dropout_row`, the model's own dropout is on, in rows of so many tokens. For a model that cannot be
    run without data, such as a mixture of experts, a line says so, and the figure is rough: 100 bytes per token, layer
    and hidden unit in 16 bits (with checkpoints 4, and 100 for the layer that is computed), twice that in fp32.
    """
    count = layer_count(model_config) if layers is None else layers
    counted = _on_fake_tensors(model_config, tokens, settings, engine, logits, count, learns, dropout_row)
    if counted is not None:
        return counted
    per_token = width(model_config) * (2 if settings.precision == "fp32" else 1)
    layer = UNKNOWN_LAYER * tokens * per_token
    held = layer + 4 * count * tokens * per_token if settings.gradient_checkpointing else layer * count
    return (held if learns else layer) + LOGIT_BYTES * logits


@aid("counting the memory of activations", then="a rough figure stands for it")
def _on_fake_tensors(
    config, tokens: int, settings: ModelConfig, engine: bool, logits: int, layers: int, learns: bool, dropout_row: int
) -> float | None:
    """`activation_bytes`, counted: each pass's peak on the line through those with FEW and MORE layers."""
    log = logging.getLogger("torch._subclasses.fake_tensor")  # prints a stack before it raises
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        counts = (layers,) if layers <= MORE else (FEW, MORE)
        shorter = [_shortened(config, n) for n in counts]
        peaks = [_passes(one, tokens, settings, engine, logits, learns, dropout_row) for one in shorter]
    finally:
        log.setLevel(level)
    further = (layers - counts[0]) / (MORE - FEW)  # 0 where all layers were counted
    return max(a + (b - a) * further for a, b in zip(peaks[0], peaks[-1], strict=True))


def _shortened(config, layers: int) -> Any:
    """The config with the first layers alone."""
    config = deepcopy(config)
    if getattr(config, "layer_types", None):
        with contextlib.suppress(AttributeError):  # some families' are computed
            config.layer_types = config.layer_types[:layers]
    config.num_hidden_layers = layers  # transformers' attribute_map has it by each family's name
    return config


def _passes(
    config, tokens: int, settings: ModelConfig, engine: bool, logits: int, learns: bool, dropout_row: int
) -> tuple[int, int]:
    """The peaks of the forward and of the backward."""
    casts = settings.precision != "fp32" and not engine
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _fake_model(config, settings, engine, logits > 0)
        if dropout_row:
            model.train()
        else:
            set_training(model, True)
        plain = unwrap_adapters(model)
        body: Callable[..., Any] = getattr(plain, plain.base_model_prefix)
        trained = [p for p in model.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        row = min(dropout_row or ROW, tokens)
        rows = torch.zeros(-(-tokens // row), row, dtype=torch.long)
        with PeakBytes([*model.parameters(), *(p.grad for p in trained)]) as count:
            # as a run does: chosen for a pass, since some families know only their own kinds when they are built
            with attn_implementation(plain.config, ATTENTION):
                with torch.autocast("cpu", torch.bfloat16, enabled=casts), torch.set_grad_enabled(learns):
                    states = body(input_ids=rows, use_cache=False).last_hidden_state
                    loss = _Logits.apply(states, logits) if logits else states[:, -1].float().sum()
                forward = count.begin()
                if learns:
                    loss.backward()  # which computes again what checkpoints left out
    return forward, count.begin()


def _fake_model(config, settings: ModelConfig, engine: bool, causal: bool) -> Any:
    """A model of fake tensors, as a run has it."""
    model = empty_model(config, settings, causal)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype)
                    learns = tensor.requires_grad
                    tensors[name] = nn.Parameter(fake, learns) if isinstance(tensor, nn.Parameter) else fake
    unwrap_adapters(model).tie_weights()
    # their gradient, at the end of the backward, is the peak of few layers alone
    unwrap_adapters(model).get_input_embeddings().requires_grad_(False)
    if settings.gradient_checkpointing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the name that replaces it is not in older transformers
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if engine and settings.precision != "fp32":
        round_weights(model, torch.bfloat16)
    elif settings.precision == "bf16":
        round_frozen_layers(model)
    return model

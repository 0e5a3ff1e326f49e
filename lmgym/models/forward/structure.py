"""The structure of a decoder, found by running it on a few tokens: no list of families decides.

Two short rows must give the same states packed and alone, and every layer must have called our attention; otherwise
rows are padded, and one line gives the reason. This finds recurrent and hybrid decoders, and those that compute
attention themselves (Falcon, Bloom, GPT-J).
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from lmgym.errors import InputError, one_line
from lmgym.models.config_fields import attn_implementation, layer_count, vocabulary_size
from lmgym.models.forward.attention import (
    Attention,
    RowAttention,
    record_attention_calls,
    use_attention,
)
from lmgym.models.forward.packed_rows import PackedRows, pack_places
from lmgym.models.parameters import gathered

ROWS = ((1, 5, 3, 2, 6, 4, 7), (3, 1, 2, 8))
# largest difference of packed from alone, as a share of the largest state: real faults are as large as the states
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4}
HALF_PRECISION_TOLERANCE = 0.1
MOST_ROUNDING = 2.0  # distance of packed states, as a multiple of that of transformers' own attentions
LAYER_TYPES = {"full_attention", "sliding_attention"}  # that our attention supports


@dataclass(frozen=True)
class DecoderStructure:
    """Paths of modules within a model, and how they are called. Also valid for copies of the model."""

    trunk: str
    """the module whose states the head reads"""
    blocks: str
    """the layers, a ModuleList"""
    output: type
    """class of the trunk's output"""
    block_outputs: int
    """0: a layer returns its states; n: a tuple of n, the states first"""
    before_blocks: tuple[str, ...]
    """modules with weights of their own that run before the first layer, such as embeddings"""
    plain_head: bool
    """the logits are head.weight times the states, plus its bias, and nothing else"""
    after_attention: tuple[str, ...]
    """modules after the last layer's attention that work token by token: they need run only where states are read"""
    padded_because: str
    """the reason that rows are padded; empty if they are packed"""


@torch.no_grad()
def inspect_decoder(model: PreTrainedModel) -> DecoderStructure:
    """The structure of a causal model or a classifier. Raises InputError if no layers are found.

    Costs five forwards of a few tokens. Collective under ZeRO-3, where each module's weights are gathered in its call.
    """
    training = model.training
    model.eval()
    try:
        with _gathered_in_calls(model):
            return _inspect(model)
    finally:
        model.train(training)


def _inspect(model: Any) -> DecoderStructure:
    blocks = find_blocks(model)
    vocabulary = vocabulary_size(model.config)
    device = next(model.parameters()).device
    rows = [[i % vocabulary for i in row] for row in ROWS]
    runs = [_run_alone(model, model.get_submodule(blocks), torch.tensor([row], device=device)) for row in rows]
    trunk, output = runs[0].trunk, runs[0].output
    alone = torch.cat([run.output.last_hidden_state[0] for run in runs])
    packed = pack_places(rows, [range(len(row)) for row in rows]).to(device)
    padded_because = _why_padded(model, trunk, model.get_submodule(blocks), rows, packed, alone)
    return DecoderStructure(
        trunk=trunk,
        blocks=blocks,
        output=type(output),
        block_outputs=0 if isinstance(runs[0].block_output, torch.Tensor) else len(runs[0].block_output),
        before_blocks=runs[0].before_blocks,
        plain_head=_has_plain_head(model, trunk, output),
        after_attention=() if padded_because else _after_attention(model, trunk, blocks, packed),
        padded_because=padded_because,
    )


def find_blocks(model: Any) -> str:
    """The path of a decoder's layers: the ModuleList with the config's number of layers."""
    layers = layer_count(model.config)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            return name
    raise InputError(f"no list of {layers} layers is in a {type(model).__name__}; needed: a decoder of transformers")


@dataclass(frozen=True)
class _RunAlone:
    """A forward of one row by transformers' own attention."""

    trunk: str
    output: Any
    """of the trunk"""
    block_output: Any
    """of the first layer"""
    before_blocks: tuple[str, ...]


def _run_alone(model: Any, blocks: Any, ids: torch.Tensor) -> _RunAlone:
    outputs: list[tuple[str, Any]] = []
    block_outputs: list[Any] = []
    called: list[str] = []
    hooks = []
    for name, module in model.named_modules():
        if name and isinstance(module, PreTrainedModel) and any(child is blocks for child in module.modules()):
            hooks.append(module.register_forward_hook(lambda _, __, out, name=name: outputs.append((name, out))))
        if next(module.parameters(recurse=False), None) is not None:
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: called.append(name)))
    hooks.append(blocks[0].register_forward_pre_hook(lambda *_: called.append("first block")))
    hooks.append(blocks[0].register_forward_hook(lambda _, __, out: block_outputs.append(out)))
    with _removed(hooks), attn_implementation(model.config, "eager"):  # supports soft caps and sinks
        model(input_ids=ids)
    with_states = [(name, out) for name, out in outputs if hasattr(out, "last_hidden_state")]
    if not with_states:
        raise InputError(f"a {model.config.model_type} gives no states that a head reads; use another decoder")
    trunk, output = with_states[-1]  # outer modules finish last
    before_blocks = tuple(dict.fromkeys(called[: called.index("first block")]))
    return _RunAlone(trunk, output, block_outputs[0], before_blocks)


@contextlib.contextmanager
def _removed(hooks: Iterable[Any]) -> Iterator[None]:
    """Removes hooks after a `with`."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _why_padded(
    model, trunk: str, blocks, rows: Sequence[Sequence[int]], packed: PackedRows, alone: torch.Tensor
) -> str:
    """The reason that this model cannot run packed; empty if it can."""
    types = set(getattr(model.config, "layer_types", None) or ()) - LAYER_TYPES
    if types:
        return f"it has layers of type {', '.join(sorted(types))}"
    try:
        with record_attention_calls() as calls:
            states = _packed_states(model, trunk, packed)
    except Exception as error:  # a family's own code may raise anything
        return f"its forward refuses packed rows: {one_line(str(error) or type(error).__name__, 120)}"
    modules = [module for module, _ in calls]
    calls_by_block = [sum(any(m is module for m in block.modules()) for module in modules) for block in blocks]
    if others := sum(number != 1 for number in calls_by_block):
        return f"{others} of its {len(blocks)} layers do not do their attention through transformers"
    if lost := lost_window(model.config, [layer.window for _, layer in calls]):
        return lost
    gap = (states - alone).abs().max().item() / max(1.0, alone.abs().max().item())
    if gap <= TOLERANCES.get(alone.dtype, HALF_PRECISION_TOLERANCE):
        return ""
    if alone.dtype not in TOLERANCES and _is_rounding(model, trunk, rows, states, alone):
        return ""
    return f"packed states differ from those of rows alone by {gap:.2g} of the largest"


def _is_rounding(model, trunk: str, rows: Sequence[Sequence[int]], states: torch.Tensor, alone: torch.Tensor) -> bool:
    """True if packed states in 16 bits are as near to those of rows alone as transformers' own two attentions are.

    Some models round much: of SmolLM2-135M in bf16 these are apart by 5% (mean over tokens), packed states by 4%, and
    by 48% if a row sees the one before it.
    """
    try:
        with attn_implementation(model.config, "sdpa"):
            module = model.get_submodule(trunk)
            outputs = [module(input_ids=torch.tensor([row], device=alone.device)) for row in rows]
    except Exception:  # a family without it
        return False
    others = torch.cat([output.last_hidden_state[0] for output in outputs])
    sizes = alone.float().norm(dim=-1).clamp(min=1e-6)
    packed_gap, own_gap = (((x - alone).float().norm(dim=-1) / sizes).mean().item() for x in (states, others))
    return packed_gap <= MOST_ROUNDING * own_gap


def lost_window(config, windows: list[int | None]) -> str:
    """A sliding window of the config that does not reach the attention, in words: short rows would not show it."""
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return ""
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * len(windows)
    for layer, (layer_type, found) in enumerate(zip(types, windows, strict=True)):
        if layer_type == "sliding_attention" and found != window:
            return f"the window of {window} tokens of layer {layer} does not reach its attention"
    return ""


def _packed_states(model, trunk: str, packed: PackedRows) -> torch.Tensor:
    return packed_states(model, model.get_submodule(trunk), packed.ids, packed.positions, RowAttention(packed))


def packed_states(
    model, trunk: nn.Module, ids: torch.Tensor, positions: torch.Tensor, attention: Attention
) -> torch.Tensor:
    """States [N, W] after the last norm of ids [N] at positions [N], packed."""
    with use_attention(model.config, attention):
        return trunk(input_ids=ids[None], position_ids=positions[None], use_cache=False).last_hidden_state[0]


def _after_attention(model, trunk: str, blocks: str, packed: PackedRows) -> tuple[str, ...]:
    """The outermost modules with matrices that run after the last layer's attention, token by token.

    They map the states of all tokens to such states. Empty if running them at some tokens alone changes the result.
    """
    layers, found = model.get_submodule(blocks), []
    late: set[str] = set()
    in_last = [(n, m) for n, m in model.named_modules() if n.startswith(f"{blocks}.{len(layers) - 1}.")]

    def note_start(*_, name: str) -> None:
        if len(calls) == len(layers):
            late.add(name)

    def note_end(module, inputs, kwargs, output, name: str) -> None:
        states, shape = [*inputs, *kwargs.values(), output], (1, len(packed.ids))
        plain = len(states) == 2 and all(isinstance(s, torch.Tensor) and s.shape[:2] == shape for s in states)
        if name in late and plain and any(p.ndim > 1 for p in module.parameters()):
            found.append(name)

    hooks = [m.register_forward_pre_hook(functools.partial(note_start, name=n)) for n, m in in_last]
    hooks += [m.register_forward_hook(functools.partial(note_end, name=n), with_kwargs=True) for n, m in in_last]
    with _removed(hooks), record_attention_calls() as calls:
        whole = _packed_states(model, trunk, packed)
    outermost = tuple(n for n in found if not any(n.startswith(f"{other}.") for other in found))
    places = torch.arange(0, len(packed.ids), 2, device=whole.device)
    with replaced_forwards(forwards_at(model, outermost, places)):
        part = _packed_states(model, trunk, packed)
    gap = (part - whole)[places].abs().max() / whole.abs().max().clamp(min=1)
    return outermost if gap <= TOLERANCES.get(whole.dtype, HALF_PRECISION_TOLERANCE) else ()


def forwards_at(model, names: Sequence[str], places: torch.Tensor) -> dict[nn.Module, Callable]:
    """Forwards of the named modules that run only at these places of [1, N, ...] and give 0 at the others."""

    def forward_at(forward: Callable, states: torch.Tensor) -> torch.Tensor:
        found = forward(states.index_select(1, places))
        return found.new_zeros(1, states.shape[1], found.shape[-1]).index_copy(1, places, found)

    return {module: functools.partial(forward_at, module.forward) for module in map(model.get_submodule, names)}


def _has_plain_head(model, trunk: str, output) -> bool:
    head, states = model.get_output_embeddings(), output.last_hidden_state[0]
    if type(head) is not nn.Linear:
        return False
    logits = logits_of(model, model.get_submodule(trunk), type(output), states)
    with gathered(list(head.parameters())):
        return torch.equal(logits, F.linear(states, head.weight, head.bias))


def logits_of(model, trunk: nn.Module, output: type, states: torch.Tensor) -> torch.Tensor:
    """Logits [M, vocabulary] of states [M, W] by the model's own forward, scales and caps included."""
    trunk_output = output(last_hidden_state=states[None])
    ids = torch.zeros(1, len(states), dtype=torch.int64, device=states.device)
    with replaced_forwards({trunk: lambda *args, **kwargs: trunk_output}):
        return model(input_ids=ids, use_cache=False).logits[0]


@contextlib.contextmanager
def replaced_forwards(forwards: dict[nn.Module, Callable]) -> Iterator[None]:
    """Replaces the forwards of modules within a `with`; their hooks and attributes stay."""
    before: dict[nn.Module, Any] = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = forward


@contextlib.contextmanager
def _gathered_in_calls(model: nn.Module) -> Iterator[None]:
    """Under ZeRO-3 before any engine, gathers each module's own weights while it is called."""
    gathered_now: dict[nn.Module, contextlib.ExitStack] = {}

    def enter(module, *_) -> None:
        gathered_now[module] = contextlib.ExitStack()
        gathered_now[module].enter_context(gathered(list(module.parameters(recurse=False))))

    def leave(module, *_) -> None:
        gathered_now.pop(module).close()

    sharded = [m for m in model.modules() if any(hasattr(p, "ds_id") for p in m.parameters(recurse=False))]
    hooks = [hook for m in sharded for hook in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    try:
        with _removed(hooks):
            yield
    finally:
        for stack in gathered_now.values():
            stack.close()

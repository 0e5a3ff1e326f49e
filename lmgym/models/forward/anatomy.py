"""The parts of a decoder's forward, found by running it on a few tokens: no list of families decides.

Two short rows must give the same states packed and alone, and every layer must have called our attention; otherwise
rows are padded, and one line says why. Recurrent and hybrid decoders, and those that do the attention themselves
(Falcon, Bloom, GPT-J), are found out in this way.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from lmgym.errors import InputError, one_line
from lmgym.models.config_fields import layer_count
from lmgym.models.forward.attention import Attention, RowAttention, attending, implementation, noting
from lmgym.models.forward.packed_rows import PackedRows, pack_rows
from lmgym.models.parameters import gathered

ROWS = ((1, 5, 3, 2, 6, 4, 7), (3, 1, 2, 8))
# what packed and alone may differ by, as a share of the largest state: faults are as large as the states themselves
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4}
COARSE = 0.1
MASKS = {"full_attention", "sliding_attention"}  # what our attention makes of a layer's type


@dataclass(frozen=True)
class Anatomy:
    """Paths of modules within a model, and how they are called. It serves copies of the model as well."""

    trunk: str
    """what gives the states that the head reads"""
    blocks: str
    """the layers, a ModuleList"""
    output: type
    """of the trunk"""
    block_outputs: int
    """0: a layer gives its states; n: a tuple of n, of which they are the first"""
    before_blocks: tuple[str, ...]
    """what has weights of its own and runs before the first layer, such as embeddings"""
    plain_head: bool
    """logits are head.weight times the states, plus its bias, and nothing else"""
    after_attention: tuple[str, ...]
    """what follows the attention of the last layer and works token by token: it need run only where states are read"""
    padded_because: str
    """why rows are padded; empty where they are packed"""


@torch.no_grad()
def examine(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a causal model or a classifier. Raises InputError where no layers are found.

    Costs five forwards of a few tokens. Collective under ZeRO-3, where each module's weights are gathered in its call.
    """
    training = model.training
    model.eval()
    try:
        with _gathered_in_calls(model):
            return _examine(model)
    finally:
        model.train(training)


def _examine(model: Any) -> Anatomy:
    blocks = find_blocks(model)
    vocabulary = model.get_input_embeddings().num_embeddings
    device = next(model.parameters()).device
    rows = [[i % vocabulary for i in row] for row in ROWS]
    calls: list[tuple[str, Any]] = []
    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: calls.append((name, out)))
        for name, module in model.named_modules()
        if name and _holds(module, model.get_submodule(blocks))
    ]
    first = model.get_submodule(blocks)[0]
    before: list[str] = []
    hooks.append(first.register_forward_hook(lambda _, __, out: calls.append(("block", out))))
    hooks += [
        module.register_forward_pre_hook(lambda *_, name=name: before.append(name))
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    hooks.append(first.register_forward_pre_hook(lambda *_: before.append("block")))
    try:
        alone = []
        for row in rows:
            calls.clear()
            # plain operations know soft caps and sinks
            with implementation(model.config, "eager"):
                model(input_ids=torch.tensor([row], device=device))
            of_trunk = [(n, o) for n, o in calls if n != "block" and hasattr(o, "last_hidden_state")]
            if not of_trunk:
                raise InputError(f"a {model.config.model_type} gives no states that a head reads; use another decoder")
            alone.append(of_trunk[-1][1].last_hidden_state[0])
        name, output = of_trunk[-1]  # outer modules finish last
        block = next(out for n, out in calls if n == "block")
    finally:
        for hook in hooks:
            hook.remove()
    packed = pack_rows(rows, [len(row) for row in rows], skip=0).to(device)
    because = _why_padded(model, name, model.get_submodule(blocks), packed, torch.cat(alone))
    late = () if because else _after_attention(model, name, blocks, packed)
    outputs = 0 if isinstance(block, torch.Tensor) else len(block)
    early = tuple(dict.fromkeys(before[: before.index("block")]))
    return Anatomy(
        name, blocks, type(output), outputs, early, _has_plain_head(model, name, output, alone[0]), late, because
    )


def find_blocks(model: Any) -> str:
    """The path of a decoder's layers: the ModuleList of as many modules as the config names layers."""
    layers = layer_count(model.config)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            return name
    raise InputError(f"no list of {layers} layers is in a {type(model).__name__}; needed: a decoder of transformers")


def _holds(module: nn.Module, blocks: nn.Module) -> bool:
    return isinstance(module, PreTrainedModel) and any(child is blocks for child in module.modules())


def _why_padded(model, trunk: str, blocks, packed: PackedRows, alone: torch.Tensor) -> str:
    """The reason that this model cannot run packed; empty where it can."""
    types = set(getattr(model.config, "layer_types", None) or ()) - MASKS
    if types:
        return f"it has layers of type {', '.join(sorted(types))}"
    try:
        with noting() as noted:
            found = _packed_states(model, trunk, packed)
    except Exception as error:  # whatever a family's code does with what it does not expect
        return f"its forward refuses packed rows: {one_line(str(error) or type(error).__name__, 120)}"
    modules = [module for module, _ in noted]
    own = [sum(any(m is module for m in block.modules()) for module in modules) for block in blocks]
    if any(number != 1 for number in own):
        return f"{sum(n != 1 for n in own)} of its {len(own)} layers do not do their attention through transformers"
    if other := other_window(model.config, [how.window for _, how in noted]):
        return other
    gap = (found - alone).abs().max().item() / max(1.0, alone.abs().max().item())
    if not gap <= TOLERANCES.get(alone.dtype, COARSE):
        return f"packed states differ from those of rows alone by {gap:.2g} of the largest"
    return ""


def _packed_states(model, trunk: str, packed: PackedRows) -> torch.Tensor:
    return states_of(model, model.get_submodule(trunk), packed.ids, packed.positions, RowAttention(packed))


def states_of(
    model, trunk: nn.Module, ids: torch.Tensor, positions: torch.Tensor, attention: Attention
) -> torch.Tensor:
    """States [N, W] behind the last norm of ids [N] at positions [N], packed."""
    with attending(model.config, attention):
        found = trunk(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    return found.last_hidden_state[0]


def _after_attention(model, trunk: str, blocks: str, packed: PackedRows) -> tuple[str, ...]:
    """The outermost modules of the last layer with matrices that are called after its attention, with states of all
    tokens alone, and give such; none where to run them at some tokens alone changes what these get.
    """
    layers, found, shape = model.get_submodule(blocks), [], (1, len(packed.ids))
    prefix = f"{blocks}.{len(layers) - 1}."
    with noting() as noted:

        def look(module, inputs, kwargs, output, name: str) -> None:
            states = [*inputs, *kwargs.values(), output]
            plain = len(states) == 2 and all(isinstance(s, torch.Tensor) and s.shape[:2] == shape for s in states)
            if name in late and plain and any(p.ndim > 1 for p in module.parameters()):
                found.append(name)

        late: set[str] = set()
        named = [(n, m) for n, m in model.named_modules() if n.startswith(prefix)]
        hooks = [m.register_forward_hook(functools.partial(look, name=n), with_kwargs=True) for n, m in named]
        hooks += [
            m.register_forward_pre_hook(lambda *_, n=n: late.add(n) if len(noted) == len(layers) else None)
            for n, m in named
        ]
        try:
            whole = _packed_states(model, trunk, packed)
        finally:
            for hook in hooks:
                hook.remove()
    outermost = tuple(n for n in found if not any(n.startswith(f"{other}.") for other in found))
    places = torch.arange(0, len(packed.ids), 2, device=whole.device)
    with forwards(at_places(model, outermost, places)):
        part = _packed_states(model, trunk, packed)
    gap = (part - whole)[places].abs().max() / whole.abs().max().clamp(min=1)
    return outermost if gap <= TOLERANCES.get(whole.dtype, COARSE) else ()


def at_places(model, names: Sequence[str], places: torch.Tensor) -> dict[nn.Module, Callable]:
    """Forwards of modules by name that run at these places of [1, N, ...] alone, and give 0 at the others."""

    def of(forward: Callable) -> Callable:
        def run(states: torch.Tensor) -> torch.Tensor:
            found = forward(states.index_select(1, places))
            return found.new_zeros(1, states.shape[1], found.shape[-1]).index_copy(1, places, found)

        return run

    return {module: of(module.forward) for module in map(model.get_submodule, names)}


def other_window(config, windows: list[int | None]) -> str:
    """A window that is in the config and does not reach the attention: shorter rows would not show it."""
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return ""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(windows)
    wanted = [window if kind == "sliding_attention" else None for kind in kinds]
    lost = [layer for layer, (own, found) in enumerate(zip(wanted, windows, strict=True)) if own and own != found]
    return f"the window of {window} tokens of layer {lost[0]} does not reach its attention" if lost else ""


def _has_plain_head(model, trunk: str, output, states: torch.Tensor) -> bool:
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return False
    found = logits_of(model, model.get_submodule(trunk), type(output), states)
    with gathered(list(head.parameters())):
        wanted = F.linear(states, head.weight, head.bias)
    return torch.equal(found, wanted)


def logits_of(model, trunk: nn.Module, output: type, states: torch.Tensor) -> torch.Tensor:
    """Logits [M, vocabulary] of states [M, W] by the model's own forward, scales and caps included."""
    made = output(last_hidden_state=states[None])
    ids = torch.zeros(1, len(states), dtype=torch.int64, device=states.device)
    with forwards({trunk: lambda *args, **kwargs: made}):
        return model(input_ids=ids, use_cache=False).logits[0]


@contextlib.contextmanager
def forwards(replaced: dict[nn.Module, Callable]) -> Iterator[None]:
    """Other forwards for these modules, for the length of a `with`; their hooks and attributes stay."""
    before: dict[nn.Module, Any] = {module: vars(module).get("forward") for module in replaced}
    try:
        for module, forward in replaced.items():
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
    """Under ZeRO-3 before any engine: each module's own weights are whole while it is called."""
    open_now: dict[nn.Module, contextlib.ExitStack] = {}

    def enter(module, *_) -> None:
        open_now[module] = contextlib.ExitStack()
        open_now[module].enter_context(gathered(list(module.parameters(recurse=False))))

    def leave(module, *_) -> None:
        open_now.pop(module).close()

    sharded = [m for m in model.modules() if any(hasattr(p, "ds_id") for p in m.parameters(recurse=False))]
    hooks = [hook for m in sharded for hook in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for stack in open_now.values():
            stack.close()

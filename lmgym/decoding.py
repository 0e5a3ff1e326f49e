"""The forward of a causal model over cached keys and values, a token a row and step: the part that sampling repeats.

Design decisions:
- A family is four functions over tokens laid end to end, `[tokens, ...]`: `embed`, `project` (queries, keys and values
  of a layer), `finish` (the rest of the layer) and `head`. Attention is the generator's own, since it knows which rows
  share a prompt.
- Weights that training has changed are the weights that sample: where copies serve (`Joined`), they are renewed.
- What the library's forward does besides (masks, caches that are copied as they grow, hooks) took about as long as the
  matrix products of a small model.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from lmgym.errors import InputError

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Family(Protocol):
    """A causal model as its layers' functions; N tokens, W wide, heads of D."""

    layers: int
    scaling: float

    def refresh(self) -> None:
        """To be called before sampling, since training changes weights."""
        ...

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[N, W] of ids [N] at positions [N]; what positions mean to the layers is kept until the next call."""
        ...

    def project(self, layer: int, hidden: torch.Tensor) -> QKV:
        """Queries [N, heads, D], keys and values [N, key heads, D]."""
        ...

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """[N, W] after the layer, from the hidden states before it and what its heads attended to, [N, heads * D]."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocabulary]."""
        ...


class Joined:
    """Linear layers of one input as one product: `[N, W] -> [N, sum of their widths]`.

    On a CPU their weights are copied side by side, transposed: a product of few rows took 1.5 ms that way and 2.7 as
    torch keeps them (shape S, one row, every matrix of a step). `refresh` copies again where a weight has changed.
    """

    def __init__(self, *layers) -> None:
        self.layers = layers
        # an adapter is more than its weight
        self.plain = all(type(x) is nn.Linear and (x.bias is None) == (layers[0].bias is None) for x in layers)
        self.weight: torch.Tensor | None = None
        self.bias: torch.Tensor | None = None
        self.seen: list[tuple[int, int]] = []

    def refresh(self) -> None:
        """To be called before sampling: training changes weights in place."""
        if not self.plain or self.layers[0].weight.device.type != "cpu":
            self.weight = None
            return
        now = [(p.data_ptr(), p._version) for layer in self.layers for p in layer.parameters()]
        if now == self.seen:
            return
        with torch.no_grad():
            self.weight = torch.cat([layer.weight for layer in self.layers]).t().contiguous()
            has_bias = self.layers[0].bias is not None
            self.bias = torch.cat([layer.bias for layer in self.layers]) if has_bias else None
        self.seen = now

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.weight is None:
            return torch.cat([layer(inputs) for layer in self.layers], -1)
        return inputs @ self.weight if self.bias is None else torch.addmm(self.bias, inputs, self.weight)


class LlamaFamily:
    """Llama, and Qwen3 with its norms of queries and keys."""

    def __init__(self, model) -> None:
        self.trunk, self.lm_head = model.model, model.lm_head
        blocks = self.trunk.layers
        attention = blocks[0].self_attn
        self.layers, self.scaling, self.width = len(blocks), attention.scaling, attention.head_dim
        self.heads = attention.q_proj.out_features // self.width
        self.key_heads = attention.k_proj.out_features // self.width
        self.inputs = [Joined(b.self_attn.q_proj, b.self_attn.k_proj, b.self_attn.v_proj) for b in blocks]
        self.outputs = [Joined(b.self_attn.o_proj) for b in blocks]
        self.gates = [Joined(b.mlp.gate_proj, b.mlp.up_proj) for b in blocks]
        self.downs = [Joined(b.mlp.down_proj) for b in blocks]
        self.logits = Joined(self.lm_head)
        self.cos = self.sin = torch.empty(0)

    def refresh(self) -> None:
        """Takes over weights that have changed."""
        for joined in (*self.inputs, *self.outputs, *self.gates, *self.downs, self.logits):
            joined.refresh()

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary angles are looked up once for all layers."""
        hidden = self.trunk.embed_tokens(ids)
        cos, sin = self.trunk.rotary_emb(hidden[None], positions[None])
        half = self.width // 2
        # x cos + rotate_half(x) sin, with the sign of the rotated half in the sine: a roll instead of a cat
        self.cos, self.sin = cos[0][:, None], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]
        return hidden

    def project(self, layer: int, hidden: torch.Tensor) -> QKV:
        """Rotated queries and keys (Su et al. 2021)."""
        block = self.trunk.layers[layer]
        heads = self.inputs[layer](_rms_norm(block.input_layernorm, hidden)).view(len(hidden), -1, self.width)
        if hasattr(block.self_attn, "q_norm"):
            queries = _rms_norm(block.self_attn.q_norm, heads[:, : self.heads])
            keys = _rms_norm(block.self_attn.k_norm, heads[:, self.heads : -self.key_heads])
            turned = torch.cat((queries, keys), 1)
        else:
            turned = heads[:, : -self.key_heads]
        turned = torch.addcmul(turned * self.cos, turned.roll(self.width // 2, -1), self.sin)
        return turned[:, : self.heads], turned[:, self.heads :], heads[:, -self.key_heads :]

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection and the gated layer, each added to what came in."""
        block = self.trunk.layers[layer]
        hidden = hidden + self.outputs[layer](attended)
        gate, up = self.gates[layer](_rms_norm(block.post_attention_layernorm, hidden)).chunk(2, -1)
        return hidden + self.downs[layer](block.mlp.act_fn(gate) * up)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """After the last norm."""
        return self.logits(_rms_norm(self.trunk.norm, hidden))


class GPT2Family:
    """GPT-2."""

    def __init__(self, model) -> None:
        self.trunk, self.lm_head = model.transformer, model.lm_head
        attention = self.trunk.h[0].attn
        self.layers, self.scaling, self.width = len(self.trunk.h), attention.scaling, attention.head_dim
        self.logits = Joined(self.lm_head)

    def refresh(self) -> None:
        """Takes over weights that have changed; its layers keep theirs transposed anyway."""
        self.logits.refresh()

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Learned positions."""
        return self.trunk.wte(ids) + self.trunk.wpe(positions)

    def project(self, layer: int, hidden: torch.Tensor) -> QKV:
        """One matrix for all three."""
        block = self.trunk.h[layer]
        queries, keys, values = block.attn.c_attn(block.ln_1(hidden)).view(len(hidden), 3, -1, self.width).unbind(1)
        return queries, keys, values

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection and the layer after it, each added to what came in."""
        block = self.trunk.h[layer]
        hidden = hidden + block.attn.c_proj(attended)
        return hidden + block.mlp(block.ln_2(hidden))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """After the last norm."""
        return self.logits(self.trunk.ln_f(hidden))


def _rms_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden, (hidden.shape[-1],), norm.weight, norm.variance_epsilon)


def family_of(model) -> Family:
    """The functions of a model. Raises InputError for a family without."""
    config = model.config
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    if config.model_type in ("llama", "qwen3") and not slides:
        return LlamaFamily(model)
    odd = getattr(config, "reorder_and_upcast_attn", False) or getattr(config, "scale_attn_by_inverse_layer_idx", False)
    if config.model_type == "gpt2" and not odd:
        return GPT2Family(model)
    raise InputError(f"generation knows gpt2, llama and qwen3 without sliding windows; found {config.model_type}")


@dataclass
class Cache:
    """Keys and values of P prompts, and of the n replies to each as they grow: R = P * n rows.

    `prompt_*` are a list over layers of [P, key heads, longest, D], filled from the left; `reply_*` of
    [R, key heads, room, D], of which `length` are filled.
    """

    prompt_keys: list[torch.Tensor]
    prompt_values: list[torch.Tensor]
    prompt_mask: torch.Tensor
    """[P, 1, 1, longest]: 0 where there is a token, minus infinity elsewhere"""
    prompt_lengths: torch.Tensor
    reply_keys: list[torch.Tensor]
    reply_values: list[torch.Tensor]
    length: int = 0

    @property
    def replies(self) -> int:
        """To each prompt."""
        return len(self.reply_keys[0]) // len(self.prompt_lengths)

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """Only these prompts and rows, in this order; each prompt with as many rows."""
        if len(prompts) != len(self.prompt_lengths):
            self.prompt_lengths = self.prompt_lengths[prompts]
            longest = int(self.prompt_lengths.max())
            self.prompt_mask = self.prompt_mask[prompts][..., :longest]
            for part in (self.prompt_keys, self.prompt_values):
                part[:] = [layer[prompts][:, :, :longest] for layer in part]
        for part in (self.reply_keys, self.reply_values):
            part[:] = [layer[rows] for layer in part]


@torch.inference_mode()
def prefill(family: Family, prompts: list[list[int]], n: int, room: int) -> tuple[torch.Tensor, Cache]:
    """Logits [P, vocabulary] after each prompt, and the cache for n replies of up to `room` tokens to each."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    device = family.lm_head.weight.device  # type: ignore[attr-defined]
    ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    real = (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)
    positions = torch.arange(real.shape[1], device=device).expand(real.shape)[real]
    places = real.flatten().nonzero()[:, 0]
    hidden = family.embed(ids, positions)
    keys, values = [], []
    for layer in range(family.layers):
        q, k, v = (_side_by_side(x, places, real.shape) for x in family.project(layer, hidden))
        # right-padded and causal: no token sees a filler, and what fillers see is dropped
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=family.scaling, enable_gqa=True)
        hidden = family.finish(layer, hidden, attended.transpose(1, 2)[real].flatten(1))
        keys.append(k)
        values.append(v)
    mask = torch.zeros(real.shape, dtype=hidden.dtype, device=device).masked_fill_(~real, -torch.inf)
    empty = [k.new_empty(len(prompts) * n, k.shape[1], room, k.shape[3]) for k in keys]
    cache = Cache(keys, values, mask[:, None, None], lengths.to(device), empty, [torch.empty_like(e) for e in empty])
    return family.head(hidden[lengths.cumsum(0).to(device) - 1]), cache


def _side_by_side(tokens: torch.Tensor, places: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """[N, heads, D] tokens as [P, heads, longest, D], 0 in the gaps."""
    laid = tokens.new_zeros(shape.numel(), *tokens.shape[1:])
    laid[places] = tokens
    return laid.view(*shape, *tokens.shape[1:]).transpose(1, 2).contiguous()


@torch.inference_mode()
def step(family: Family, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Logits [R, vocabulary] after one more token a row, which the cache then holds."""
    n, at = cache.replies, cache.length
    hidden = family.embed(ids, (cache.prompt_lengths + at).repeat_interleave(n))
    for layer in range(family.layers):
        q, k, v = family.project(layer, hidden)
        cache.reply_keys[layer][:, :, at] = k
        cache.reply_values[layer][:, :, at] = v
        hidden = family.finish(layer, hidden, _attend(q, cache, layer, n, family.scaling))
    cache.length += 1
    return family.head(hidden)


def _attend(queries: torch.Tensor, cache: Cache, layer: int, n: int, scaling: float) -> torch.Tensor:
    """[R, heads * D]: each row's queries over its prompt, read once for all its replies, and over its own tokens."""
    rows, heads, width = queries.shape
    prompt_keys, prompt_values = cache.prompt_keys[layer], cache.prompt_values[layer]
    prompts, key_heads, longest, _ = prompt_keys.shape
    own = cache.length + 1
    group = heads // key_heads
    # [P, key heads, n * group, D] and [R, key heads, group, D]: queries of one key head together
    per_row = (queries * scaling).view(rows, key_heads, group, width)
    per_prompt = per_row.view(prompts, n, key_heads, group, width).transpose(1, 2).flatten(2, 3)
    on_prompt = torch.matmul(per_prompt, prompt_keys.transpose(2, 3)) + cache.prompt_mask
    on_own = torch.matmul(per_row, cache.reply_keys[layer][:, :, :own].transpose(2, 3))
    on_own = on_own.view(prompts, n, key_heads, group, own).transpose(1, 2).flatten(2, 3)
    weights = torch.cat((on_prompt, on_own), -1).softmax(-1)
    found = torch.matmul(weights[..., :longest], prompt_values).view(prompts, key_heads, n, group, width)
    own_weights = weights[..., longest:].view(prompts, key_heads, n, group, own).transpose(1, 2).flatten(0, 1)
    from_own = torch.matmul(own_weights, cache.reply_values[layer][:, :, :own])
    return (found.transpose(1, 2).reshape(rows, key_heads, group, width) + from_own).flatten(1)

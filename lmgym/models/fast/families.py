"""Decoders as functions of their layers, for those who do the attention themselves.

Design decisions:
- A family is four functions over tokens laid end to end, `[tokens, ...]`: `embed`, `project` (queries, keys and values
  of a layer), `finish` (the rest of the layer) and `head`. Attention is the caller's own:
  sampling and judging know which rows share what.
- Weights that training has changed are the weights that sample: where copies serve (joined.py), they are renewed.
- What the library's forward does besides (masks, caches that are copied as they grow, hooks) took about as long as the
  matrix products of a small model.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from lmgym.errors import InputError
from lmgym.models.fast.blocks import FEWEST, gated_end, normed_heads
from lmgym.models.fast.functions import Taken, gated_silu, rms_norm
from lmgym.models.fast.joined import Joined, is_sharded, ranks_learn_together
from lmgym.models.fast.rotary import Angles

# what models of other families multiply, divide or cap states and logits by: a config that names one is none of ours
SCALES = (
    "final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling", "residual_multiplier",
    "embedding_multiplier", "attention_multiplier",
)  # fmt: skip
QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Family(Protocol):
    """A causal model as its layers' functions; N tokens, W wide, heads of D."""

    layers: int
    blocks: list[Any]
    """each layer's module"""
    scaling: float
    output: "Joined"
    """the head"""
    sums_in_fp32: bool
    """what layers add to is fp32 whatever the weights are, as autocast has it"""

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        ...

    def weights(self) -> Iterator[torch.Tensor]:
        """All that the functions read."""
        ...

    def refresh(self, renew: bool = False) -> None:
        """To be called before sampling, since training changes weights; `renew` also where no trace tells of it."""
        ...

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[N, W] of ids [N] at positions [N]; what positions mean to the layers is kept until the next call."""
        ...

    def project(self, layer: int, hidden: torch.Tensor, asking: torch.Tensor | None = None) -> QKV:
        """Queries [N, heads, D], keys and values [N, key heads, D]; with `asking` [M] queries of those tokens alone."""
        ...

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """[N, W] after the layer, from the hidden states before it and what its heads attended to, [N, heads * D]."""
        ...

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, W] as the head reads it."""
        ...

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[N, vocabulary], or [N, labels] of a classifier, of what `norm` gave."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Both."""
        ...


class LlamaFamily:
    """Llama, and Qwen3 with its norms of queries and keys."""

    def __init__(self, trunk, head) -> None:
        self.trunk, self.sums_in_fp32 = trunk, False
        blocks: list[Any] = list(
            self.trunk.layers
        )  # a look into a ModuleList, or for what is not there, takes microseconds
        attention = blocks[0].self_attn
        self.blocks, self.norms_heads = blocks, hasattr(attention, "q_norm")
        self.layers, self.scaling, self.width = len(blocks), attention.scaling, attention.head_dim
        self.heads = attention.q_proj.out_features // self.width
        self.key_heads = attention.k_proj.out_features // self.width
        self.inputs = [Joined(b.self_attn.q_proj, b.self_attn.k_proj, b.self_attn.v_proj) for b in blocks]
        self.keys_values = [Joined(b.self_attn.k_proj, b.self_attn.v_proj) for b in blocks]  # never copied
        self.outputs = [Joined(b.self_attn.o_proj) for b in blocks]
        self.gates = [Joined(b.mlp.gate_proj, b.mlp.up_proj) for b in blocks]
        self.downs = [Joined(b.mlp.down_proj) for b in blocks]
        self.output = Joined(head)
        self.silu = trunk.config.hidden_act == "silu"
        self.angles = Angles(trunk.rotary_emb)
        self.cos = self.sin = torch.empty(0)

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.trunk.norm.weight.device

    def weights(self) -> Iterator[torch.Tensor]:
        """Of the trunk and the head."""
        yield from (*self.trunk.parameters(), *self.output.parameters())

    def refresh(self, renew: bool = False) -> None:
        """Takes over weights that have changed."""
        for joined in (*self.inputs, *self.outputs, *self.gates, *self.downs, self.output):
            joined.refresh(renew)

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary angles are looked up once for all layers."""
        hidden = self.trunk.embed_tokens(ids)
        hidden = hidden.float() if self.sums_in_fp32 else hidden
        self.cos, self.sin = self.angles(hidden, positions)
        return hidden

    def project(self, layer: int, hidden: torch.Tensor, asking: torch.Tensor | None = None) -> QKV:
        """Rotated queries and keys (Su et al. 2021)."""
        block = self.blocks[layer]
        if self._goes_by_blocks(layer, hidden):
            return self._project_blocks(layer, hidden, asking)
        normed = _rms_norm(block.input_layernorm, hidden)
        if asking is None:
            heads = self.inputs[layer](normed).view(len(hidden), -1, self.width)
            # by splits: the backward of one is a concatenation, that of slices adds up whole tensors
            turned, values = heads.split_with_sizes((self.heads + self.key_heads, self.key_heads), 1)
            turned = self._turn(turned, block.self_attn, self.heads, self.cos, self.sin)
            queries, keys = turned.split_with_sizes((self.heads, self.key_heads), 1)
            return queries, keys, values
        heads = self.keys_values[layer](normed).view(len(hidden), -1, self.width)
        keys, values = heads.chunk(2, 1)
        keys = self._turn(keys, block.self_attn, 0, self.cos, self.sin)
        queries = block.self_attn.q_proj(Taken.apply(normed, asking)).view(len(asking), -1, self.width)
        queries = self._turn(queries, block.self_attn, self.heads, self.cos[asking], self.sin[asking])
        return queries, keys, values

    def _goes_by_blocks(self, layer: int, hidden: torch.Tensor) -> bool:
        """Whether lmgym/models/fast/blocks.py does the layer's work: plain fp32 weights on a CPU, for tokens enough."""
        few = len(hidden) < FEWEST and not ranks_learn_together()
        if few or hidden.device.type != "cpu" or hidden.dtype != torch.float32:
            return False
        own = (self.inputs[layer], self.outputs[layer], self.gates[layer], self.downs[layer])
        if not (self.silu and all(joined.plain for joined in own)):
            return False
        layers = [layer for joined in own for layer in joined.layers]
        return not is_sharded(layers[0]) and all(x.bias is None and x.weight.dtype == torch.float32 for x in layers)

    def _project_blocks(self, layer: int, hidden: torch.Tensor, asking: torch.Tensor | None) -> QKV:
        attention, norm = self.blocks[layer].self_attn, self.blocks[layer].input_layernorm
        query, key, value = (x.weight for x in (attention.q_proj, attention.k_proj, attention.v_proj))
        scale = norm.weight, norm.variance_epsilon
        cos, sin = self.cos, self.sin
        turned = 0 if self.norms_heads else 1
        if asking is None:
            queries, keys, values = normed_heads(hidden, *scale, cos, sin, 2 * turned, query, key, value)
        else:
            keys, values = normed_heads(hidden, *scale, cos, sin, turned, key, value)
            cos, sin = cos[asking], sin[asking]
            [queries] = normed_heads(Taken.apply(hidden, asking), *scale, cos, sin, turned, query)
        if self.norms_heads:
            queries = self._turn(queries, attention, self.heads, cos, sin)
            keys = self._turn(keys, attention, 0, self.cos, self.sin)
        return queries, keys, values

    def _turn(self, heads: torch.Tensor, attention, queries: int, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[N, heads, D] of which the first so many are queries and the others keys: normed in Qwen3, and rotated."""
        if self.norms_heads:
            parts = ((attention.q_norm, heads[:, :queries]), (attention.k_norm, heads[:, queries:]))
            heads = torch.cat([_rms_norm(norm, part) for norm, part in parts if part.shape[1]], 1)
        return torch.addcmul(heads * cos, heads.roll(self.width // 2, -1), sin)

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection and the gated layer, each added to what came in."""
        block = self.blocks[layer]
        if self._goes_by_blocks(layer, hidden):
            norm, mlp = block.post_attention_layernorm, block.mlp
            weights = (x.weight for x in (block.self_attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj))
            return gated_end(hidden, attended, norm.weight, norm.variance_epsilon, *weights)
        hidden = self.outputs[layer](attended, hidden)
        joined = self.gates[layer](_rms_norm(block.post_attention_layernorm, hidden))
        if self.silu:
            return self.downs[layer](gated_silu(joined), hidden)
        gate, up = joined.chunk(2, -1)
        return self.downs[layer](block.mlp.act_fn(gate) * up, hidden)

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last norm."""
        return _rms_norm(self.trunk.norm, hidden)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """By the head."""
        return self.output(normed)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """After the last norm."""
        return self.output(self.norm(hidden))


class GPT2Family:
    """GPT-2."""

    def __init__(self, trunk, head) -> None:
        self.trunk, self.sums_in_fp32 = trunk, False
        self.blocks: list[Any] = list(self.trunk.h)
        attention = self.blocks[0].attn
        self.layers, self.scaling, self.width = len(self.blocks), attention.scaling, attention.head_dim
        self.inputs = [Joined(block.attn.c_attn) for block in self.blocks]
        self.outputs = [Joined(block.attn.c_proj) for block in self.blocks]
        self.ups = [Joined(block.mlp.c_fc) for block in self.blocks]
        self.downs = [Joined(block.mlp.c_proj) for block in self.blocks]
        self.output = Joined(head)

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.trunk.ln_f.weight.device

    def weights(self) -> Iterator[torch.Tensor]:
        """Of the trunk and the head."""
        yield from (*self.trunk.parameters(), *self.output.parameters())

    def refresh(self, renew: bool = False) -> None:
        """Takes over weights that have changed."""
        for joined in (*self.inputs, *self.outputs, *self.ups, *self.downs, self.output):
            joined.refresh(renew)

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Learned positions."""
        hidden = self.trunk.wte(ids) + self.trunk.wpe(positions)
        return hidden.float() if self.sums_in_fp32 else hidden

    def project(self, layer: int, hidden: torch.Tensor, asking: torch.Tensor | None = None) -> QKV:
        """One matrix for all three."""
        block = self.blocks[layer]
        heads = self.inputs[layer](block.ln_1(self._of_one_type(hidden))).view(len(hidden), 3, -1, self.width)
        queries, keys, values = heads.unbind(1)
        return queries if asking is None else Taken.apply(queries, asking), keys, values

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection and the layer after it, each added to what came in."""
        block = self.blocks[layer]
        hidden = self.outputs[layer](attended, hidden)
        return self.downs[layer](block.mlp.act(self.ups[layer](block.ln_2(self._of_one_type(hidden)))), hidden)

    def _of_one_type(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.to(self.trunk.wte.weight.dtype) if self.sums_in_fp32 else hidden

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last norm."""
        return self.trunk.ln_f(self._of_one_type(hidden))

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """By the head."""
        return self.output(normed)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """After the last norm."""
        return self.output(self.norm(hidden))


def attention_dtype(states: torch.Tensor) -> torch.dtype:
    """What attention over states of this type is computed in: on a CPU fp32 also where they are bf16.

    There oneDNN compiles bf16 products anew for every length (0.5 to 1.5 ms each) and keeps them (370 MiB in
    benchmarks/ppo.py), and torch's fused kernel takes twice as long in bf16 as in fp32.
    """
    return torch.float32 if states.device.type == "cpu" and states.dtype == torch.bfloat16 else states.dtype


def _rms_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    if is_sharded(norm):  # ZeRO-3 gathers a weight when its module is called
        return norm(hidden)
    return rms_norm(hidden, norm.weight, norm.variance_epsilon)


def family_of(model) -> Family:
    """The functions of a causal model or a classifier. Raises InputError for a family without."""
    found = family_named(model.config)
    head = getattr(model, "lm_head", None) or getattr(model, "score", None)
    if head is None:
        raise InputError(
            f"{type(model).__name__} has neither lm_head nor score; needed: a causal model or a classifier"
        )
    return found(getattr(model, model.base_model_prefix), head)


def family_named(config) -> type[LlamaFamily] | type[GPT2Family]:
    """Which functions a model of this config has. Raises InputError for a family without, and for a scale or a cap of
    states or logits, which a model's own code may bring along and these functions would leave out.
    """
    if scale := next((name for name in SCALES if getattr(config, name, None) not in (None, 1)), None):
        raise InputError(
            f"generation knows no {scale}: found {getattr(config, scale)} in the config of a {config.model_type}; "
            "needed: a gpt2, llama or qwen3 without"
        )
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    if config.model_type in ("llama", "qwen3") and not slides:
        return LlamaFamily
    odd = getattr(config, "reorder_and_upcast_attn", False) or getattr(config, "scale_attn_by_inverse_layer_idx", False)
    if config.model_type == "gpt2" and not odd:
        return GPT2Family
    raise InputError(f"generation knows gpt2, llama and qwen3 without sliding windows; found {config.model_type}")

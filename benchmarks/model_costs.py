"""Operations and reads of a PPO iteration, counted from a model's shape and rows without running it.

Counted is what the algorithm needs, not what a machine does: no padding, nothing computed twice to save memory, no
element-wise work. A product of [n, k] and [k, m] is 2 n k m operations, and each of its two gradients as many
(Narayanan et al. 2021, appendix; Chowdhery et al. 2022, appendix B, whose attention has no causal discount either:
4 t^2 d a head and row of t tokens forward). tests/unit/benchmarks/test_on_gpu_benchmark.py
holds it against torch's counter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder with gated layers and grouped key heads: Llama, Qwen3."""

    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    vocabulary: int
    tied: bool

    @staticmethod
    def of(settings: dict) -> "Shape":
        """The shape of an entry of shapes.json, or of a config as a dict."""
        return Shape(
            settings["num_hidden_layers"], settings["hidden_size"], settings["num_attention_heads"],
            settings["num_key_value_heads"], settings["head_dim"], settings["intermediate_size"],
            settings["vocab_size"], settings["tie_word_embeddings"],
        )  # fmt: skip

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """(in, out) of the linear layers of a block."""
        queries, keys = self.heads * self.head_width, self.key_heads * self.head_width
        return {
            "q": (self.width, queries), "k": (self.width, keys), "v": (self.width, keys), "o": (queries, self.width),
            "gate": (self.width, self.inner), "up": (self.width, self.inner), "down": (self.inner, self.width),
        }  # fmt: skip

    @property
    def block(self) -> int:
        """Weights of a block's linear layers."""
        return sum(a * b for a, b in self.linear.values())

    @property
    def words(self) -> int:
        """Weights of the embeddings; the head has as many."""
        return self.vocabulary * self.width

    @property
    def weights(self) -> int:
        """All, but for norms: a thousandth of a percent."""
        return self.layers * self.block + self.words * (1 if self.tied else 2)

    def adapters(self, rank: int, layers: int | None = None) -> int:
        """Weights of LoRA adapters of a rank on every linear layer."""
        return (self.layers if layers is None else layers) * sum(rank * (a + b) for a, b in self.linear.values())


@dataclass(frozen=True)
class Way:
    """The trained part of a policy, without its value head."""

    name: str
    frozen_layers: int = 0
    lora_rank: int = 0

    def trains_head(self, shape: Shape) -> bool:
        """A tied head is frozen with the embeddings; adapters leave it as it is."""
        return not self.lora_rank and not (self.frozen_layers and shape.tied)

    def trained(self, shape: Shape) -> int:
        """Weights."""
        value_head = 2 * shape.width**2 + 2 * shape.width
        if self.lora_rank:
            return shape.adapters(self.lora_rank) + value_head
        if not self.frozen_layers:
            return shape.weights + value_head
        own = (shape.layers - self.frozen_layers) * shape.block
        return own + (0 if shape.tied else shape.words) + value_head


@dataclass(frozen=True)
class Product:
    """Operations of a forward; whether its backward has a gradient for the weight, and one for what comes in."""

    forward: float
    trained: bool
    passed: bool

    @property
    def backward(self) -> float:
        """Operations."""
        return self.forward * (self.trained + self.passed)


@dataclass(frozen=True)
class Rows:
    """Tokens that run through the layers, and how many of them are read at the end, of each row."""

    lengths: Sequence[int]
    reads: Sequence[int]


def policy_products(shape: Shape, way: Way, rows: Rows, first: int = 0) -> Iterator[Product]:
    """Products of layers `first` and above, the head at the positions that are read, and the value head.

    A frozen head's backward counts as one, though it is computed in the forward (lmgym/models/forward/logprobs.py).
    """
    n, m = sum(rows.lengths), sum(rows.reads)
    for layer in range(first, shape.layers):
        last = layer == shape.layers - 1
        learns, under = layer >= way.frozen_layers, layer > way.frozen_layers
        for name, (a, b) in shape.linear.items():
            tokens = m if last and name not in ("q", "k", "v") else n
            # below the lowest layer that is trained nobody asks for gradients, but its norm does, if it is trained
            wanted = under or name not in ("q", "k", "v") or not way.lora_rank
            yield Product(2 * tokens * a * b, learns and not way.lora_rank, learns and wanted)
            if way.lora_rank:
                yield Product(2 * tokens * a * way.lora_rank, True, wanted)
                yield Product(2 * tokens * way.lora_rank * b, True, True)
        asking = rows.reads if last else rows.lengths
        pairs = sum(q * k for q, k in zip(asking, rows.lengths, strict=True))
        yield Product(4 * pairs * shape.heads * shape.head_width, learns, learns)
    yield Product(2 * m * shape.words, way.trains_head(shape), True)
    yield Product(2 * m * shape.width * 2 * shape.width, True, True)
    yield Product(2 * m * 2 * shape.width, True, True)


def policy_flops(shape: Shape, way: Way, rows: Rows) -> float:
    """A forward of all layers, with values."""
    return sum(product.forward for product in policy_products(shape, way, rows))


def trunk_flops(shape: Shape, way: Way, rows: Rows) -> float:
    """The frozen layers."""
    return policy_flops(shape, way, rows) - sum(
        product.forward for product in policy_products(shape, way, rows, way.frozen_layers)
    )


def reference_flops(shape: Shape, way: Way, rows: Rows) -> float:
    """Layers above the frozen ones, without adapters and values."""
    value_head = 2 * sum(rows.reads) * (2 * shape.width**2 + 2 * shape.width)
    plain = Way("reference", way.frozen_layers)
    return sum(p.forward for p in policy_products(shape, plain, rows, way.frozen_layers)) - value_head


def experience_flops(shape: Shape, way: Way, rows: Rows) -> float:
    """Log-probabilities, values and the reference's, once."""
    return policy_flops(shape, way, rows) + reference_flops(shape, way, rows)


def learning_flops(shape: Shape, way: Way, rows: Rows, epochs: int, first_forward_is_there: bool) -> float:
    """Forwards and backwards above the frozen layers, whose states are kept."""
    products = list(policy_products(shape, way, rows, way.frozen_layers))
    forward, backward = sum(p.forward for p in products), sum(p.backward for p in products)
    return (epochs - first_forward_is_there) * forward + epochs * backward


def scoring_flops(shape: Shape, lengths: Sequence[int]) -> float:
    """A classifier that reads the last token: `ScoringModel.forward`, its last layer finished at the ends alone."""
    n, rows = sum(lengths), len(lengths)
    whole = (shape.layers - 1) * (
        2 * n * shape.block + 4 * sum(t * t for t in lengths) * shape.heads * shape.head_width
    )
    at_ends = sum(2 * (n if name in "qkv" else rows) * a * b for name, (a, b) in shape.linear.items())
    return whole + at_ends + 4 * n * shape.heads * shape.head_width + 2 * rows * shape.width


def generation_bytes(shape: Shape, way: Way, prompts: Sequence[int], new_tokens: int, number_bytes: int) -> float:
    """Bytes that sampling reads: all weights but the embeddings once per token, the first in the prefill; and for each
    later token the keys and values of its row.
    """
    weights = shape.layers * shape.block + shape.words + (shape.adapters(way.lora_rank) if way.lora_rank else 0)
    cached = sum(prompt + step for step in range(1, new_tokens) for prompt in prompts)
    kept = 2 * shape.layers * shape.key_heads * shape.head_width
    return number_bytes * (new_tokens * weights + cached * kept)

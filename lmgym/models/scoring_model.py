"""A classifier whose one forward scores a batch of replies.

A forward of an inner module beside the wrapped one makes data parallel ranks diverge silently, so everything that a
loss needs is one forward of `ScoringModel`.
"""

from collections.abc import Sequence

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lmgym.errors import InputError
from lmgym.models.heads import head_name
from lmgym.models.packing import ATTENTION, PackedBatch, pack, packed_attention, pad_right
from lmgym.models.parameters import working_dtype
from lmgym.models.saving import below_adapters
from lmgym.text import Replies

ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)


# families whose packed forward is tested equal to the plain one
PACKED_FAMILIES = ("gpt2", "llama", "qwen3")


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

    Families in PACKED_FAMILIES run packed (lmgym/models/packing.py); others as padded rows through their own forward.
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
            # a plain forward after set_attn_implementation, or tokens [N, W] of lmgym/models/prefixes.py
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


def read_at_ends_only(classifier) -> list[nn.Module]:
    """The position-wise parts of a packed family's last block whose output matters at the replies' ends alone."""
    trunk = getattr(classifier, classifier.base_model_prefix)
    block = (trunk.h if hasattr(trunk, "h") else trunk.layers)[-1]
    return [block.attn.c_proj if hasattr(block, "attn") else block.self_attn.o_proj, block.mlp]

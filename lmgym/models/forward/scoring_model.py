"""A classifier whose one forward scores a batch of replies.

A loss needs only this forward: calling an inner module of a data-parallel model makes ranks diverge silently.
"""

from collections.abc import Sequence

import torch
from torch import nn

from lmgym.errors import InputError
from lmgym.models.classifiers import is_decoder
from lmgym.models.dropout import set_training
from lmgym.models.forward.decoder import Decoder, decoder_of
from lmgym.models.forward.packed_rows import PackedRows, pack_replies, pad_right
from lmgym.models.saving import unwrap_adapters
from lmgym.text import Replies


class ScoringModel(nn.Module):
    """A classifier and its one forward; `packed` as in `decoder_of`. Encoders run padded through their own forward.

    With `dropout` the model's own is on in training.
    """

    def __init__(self, model, packed: bool | None = None, dropout: bool = False) -> None:
        super().__init__()
        self.model, self.dropout = model, dropout
        classifier = self.classifier
        if not is_decoder(classifier) and packed:
            raise InputError(
                f"--packed: {classifier.config.model_type} is an encoder; needed: a decoder, or no --packed"
            )
        self.decoder: Decoder | None = decoder_of(classifier, packed) if is_decoder(classifier) else None

    def train(self, mode: bool = True) -> "ScoringModel":
        """Training mode, without the model's own dropout unless it was asked for."""
        if self.dropout:
            return super().train(mode)
        set_training(self, mode)
        return self

    @property
    def classifier(self):
        """The transformers model itself, below any adapter."""
        return unwrap_adapters(self.model)

    @property
    def config(self):
        """The classifier's config, from which the Trainer takes the hidden size for ZeRO-3's buckets."""
        return self.classifier.config

    @property
    def packed(self) -> bool:
        """True if rows run without padding."""
        return self.decoder is not None and self.decoder.packed

    def collate(self, rows: Sequence[Replies], pad_id: int) -> dict:
        """Keyword arguments of `forward` for these rows; scores are in the order of the rows' replies."""
        return pad_right(rows, pad_id) if self.decoder is None else {"rows": pack_replies(rows)}

    def forward(self, rows: PackedRows | None = None, input_ids=None, attention_mask=None) -> torch.Tensor:
        """Raw logits [replies, num_labels] in fp32."""
        if self.decoder is None or rows is None:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits.float()
        return self.decoder.scores(self.decoder.hidden(rows)).float()

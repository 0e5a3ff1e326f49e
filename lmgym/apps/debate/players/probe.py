"""A linear probe as judge: a logistic regression on a model's states after any of its layers (Alain & Bengio 2017)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from lmgym.apps.debate.formats import DEBATERS
from lmgym.data.batching import length_batches
from lmgym.data.truncation import truncate
from lmgym.errors import InputError, TooLong, shown, shown_path
from lmgym.generation.local_generation import load_causal
from lmgym.models.config_fields import context_length
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.runs.files import read_json, write_json
from lmgym.text import Conversation

FILE = "probe.json"
BATCH_TOKENS = 8192
INVERSE_PENALTY = 0.1  # of scikit-learn's logistic regression: states have more numbers than there are rounds


@final
class LinearProbe:
    """P of a debater's name, by the state of the last token of what the judge reads, after `layer` layers.

    Made by `train` or `load`. `weights` [width] and `bias` are of standardised states: `mean` and `scale` [width].
    """

    def __init__(
        self,
        name: str,
        layer: int,
        mean: np.ndarray,
        scale: np.ndarray,
        weights: np.ndarray,
        bias: float,
        states: "States",
    ) -> None:
        self.name, self.layer, self.mean, self.scale = name, layer, mean, scale
        self.weights, self.bias, self.states = weights, bias, states

    @classmethod
    def train(
        cls, name: str, layer: int, conversations: Sequence[Conversation], first_right: Sequence[bool]
    ) -> "LinearProbe":
        """A probe of the model in that folder or hub id, trained on rounds whose right answer is known."""
        from sklearn.linear_model import LogisticRegression

        if len(set(first_right)) < 2 or len(first_right) != len(conversations):
            raise InputError(
                f"{len(conversations)} rounds, Debater_A is right in {sum(first_right)}; needed: a label each, and "
                "rounds of both kinds"
            )
        states = States(name, layer)
        inputs = states.of(conversations)
        mean, scale = inputs.mean(0), inputs.std(0)
        scale[scale == 0] = 1
        fitted = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000).fit((inputs - mean) / scale, list(first_right))
        return cls(name, layer, mean, scale, fitted.coef_[0], float(fitted.intercept_[0]), states)

    def save(self, folder: str | Path) -> None:
        """Writes the probe, without the model, which it names."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        arrays = {key: getattr(self, key).tolist() for key in ("mean", "scale", "weights")}
        write_json(Path(folder) / FILE, {"model": self.name, "layer": self.layer, "bias": self.bias, **arrays})

    @classmethod
    def load(cls, folder: str | Path) -> "LinearProbe":
        """The probe of a folder, with its model. Raises InputError for a folder without one."""
        path = Path(folder) / FILE
        try:
            saved: dict[str, Any] = read_json(path)
            mean, scale, weights = (np.array(saved[key], dtype=np.float64) for key in ("mean", "scale", "weights"))
            name, layer, bias = str(saved["model"]), int(saved["layer"]), float(saved["bias"])
        except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise InputError(
                f"no probe loads from {shown_path(path)}: {error}; needed: a folder of probe.save"
            ) from error
        return cls(name, layer, mean, scale, weights, bias, States(name, layer))

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies]: P(name) in [0, 1]."""
        if wrong := next((reply for reply in replies if reply not in DEBATERS), None):
            raise InputError(f"a reply {shown(wrong)} is scored by a probe; needed: {' or '.join(DEBATERS)}")
        distinct = list(dict.fromkeys(conversations))
        logits = ((self.states.of(distinct) - self.mean) / self.scale) @ self.weights + self.bias
        p_first = dict(zip(distinct, (1 / (1 + np.exp(-logits))).tolist(), strict=True))
        return torch.tensor(
            [p_first[c] if r == DEBATERS[0] else 1 - p_first[c] for c, r in zip(conversations, replies, strict=True)],
            dtype=torch.float32,
        )


@final
class States:
    """The states of a causal model after `layer` of its layers. Raises InputError for a layer that it does not have."""

    def __init__(self, name: str, layer: int) -> None:
        generator: Any = load_causal(name)
        self.tokenizer, self.decoder = generator.tokenizer, generator.decoder
        layers = len(self.decoder.blocks)
        if not 1 <= layer <= layers:
            raise InputError(f"layer={layer} of {name}, which has {layers} layers; needed: 1 to {layers}")
        self.layer = layer
        self.max_length = context_length(generator.model.config)

    def of(self, conversations: Sequence[Conversation]) -> np.ndarray:
        """float64 [conversations, width]: states of the last token before the reply. Raises TooLong."""
        rows: list[list[int]] = []
        for found in truncate(self.tokenizer, conversations, None, self.max_length):
            if isinstance(found, str) or found.dropped_turns or found.shortened:
                raise TooLong(
                    f"what the probe reads is longer than its context of {self.max_length} tokens; needed: shorter or "
                    "fewer speeches"
                )
            rows.append(found.ids[0])
        decoder: Decoder = self.decoder
        states = np.empty((len(rows), 0))
        for batch in length_batches([len(ids) for ids in rows], BATCH_TOKENS):
            packed = pack_last_tokens([rows[i] for i in batch]).to(decoder.device)
            last = decoder.hidden_after(packed, self.layer).index_select(0, packed.places).double().cpu().numpy()
            states = np.empty((len(rows), last.shape[1])) if not states.size else states
            states[batch] = last
        return states

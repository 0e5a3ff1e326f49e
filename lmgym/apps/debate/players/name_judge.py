"""A causal model as judge: P of a debater's name, from one forward pass over what the judge reads.

Both names are tokenised after the text. What they share is read with it, and the logits at its end give each name's
first token of its own: their softmax is P(name). So nothing is sampled, and padding cannot matter.
"""

from collections.abc import Sequence
from typing import Literal, final

import torch

from lmgym.apps.debate.formats import DEBATERS
from lmgym.data.batching import length_batches
from lmgym.data.thoughts import filled
from lmgym.data.truncation import truncate
from lmgym.errors import InputError, TooLong, shown
from lmgym.generation.local_generation import load_causal
from lmgym.models.config_fields import context_length
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.text import Conversation, Turn, common_prefix

BATCH_TOKENS = 8192


@final
class NameJudge:
    """Scores a name as the reply to a conversation: its probability against the other name, as in a verdict.

    `on_long`: "refuse" a text that is longer than the context, or "cut" it: the oldest turns are left out, and then the
    beginning of the last one (lmgym/data/truncation.py). Raises InputError for a tokenizer to which names are alike.
    """

    def __init__(
        self,
        model,
        tokenizer,
        on_long: Literal["refuse", "cut"] = "refuse",
        names: tuple[str, str] = DEBATERS,
        batch_tokens: int = BATCH_TOKENS,
        decoder: Decoder | None = None,
    ) -> None:
        self.model, self.tokenizer, self.names, self.on_long = model.eval(), tokenizer, names, on_long
        self.batch_tokens = batch_tokens
        self.decoder = Decoder(model) if decoder is None else decoder
        self.max_length = context_length(model.config)
        self._split([Conversation((Turn("user", "Who is right?"),))])  # refuses names that are alike

    @classmethod
    def load(cls, name: str, on_long: Literal["refuse", "cut"] = "refuse") -> "NameJudge":
        """The judge of a model's folder or hub id."""
        generator = load_causal(name)
        return cls(generator.model, generator.tokenizer, on_long, decoder=generator.decoder)

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies]: P(name) in [0, 1]; both names of one conversation are one row of the forward pass."""
        if wrong := next((reply for reply in replies if reply not in self.names), None):
            raise InputError(f"a reply {shown(wrong)} is scored by a judge of names; needed: {' or '.join(self.names)}")
        distinct = list(dict.fromkeys(conversations))
        p_first = dict(zip(distinct, self.p_first(distinct).tolist(), strict=True))
        return torch.tensor(
            [p_first[c] if r == self.names[0] else 1 - p_first[c] for c, r in zip(conversations, replies, strict=True)],
            dtype=torch.float32,
        )

    @torch.inference_mode()
    def p_first(self, conversations: Sequence[Conversation]) -> torch.Tensor:
        """float32 [conversations]: P of the first name."""
        split = self._split(conversations)
        found = torch.empty(len(split), dtype=torch.float32)
        for batch in length_batches([len(ids) for ids, _ in split], self.batch_tokens):
            rows = pack_last_tokens([split[i][0] for i in batch]).to(self.decoder.device)
            logits = self.decoder.logits(self.decoder.hidden(rows)).float()
            own = torch.tensor([split[i][1] for i in batch], device=logits.device)
            found[batch] = logits.gather(1, own).softmax(-1)[:, 0].cpu()
        return found

    def _split(self, conversations: Sequence[Conversation]) -> list[tuple[list[int], tuple[int, int]]]:
        """(ids of the text with what both names share, each name's next token) of each conversation, if it fits."""
        split = []
        given = [[filled(self.tokenizer, name) for name in self.names]] * len(conversations)
        for found in truncate(self.tokenizer, conversations, given, self.max_length):
            if isinstance(found, str):
                raise TooLong(f"what the judge reads does not fit into its context: {found}; needed: shorter speeches")
            if self.on_long == "refuse" and (found.dropped_turns or found.shortened):
                raise TooLong(
                    f"what the judge reads is longer than its context of {self.max_length} tokens; needed: shorter or "
                    "fewer speeches, another judge, or on_long='cut', which leaves out the beginning"
                )
            first, second = found.ids
            shared = common_prefix([first, second])
            if first[shared] == second[shared]:
                raise InputError(
                    f"the tokenizer of {self.tokenizer.name_or_path} splits {self.names[0]} and {self.names[1]} alike; "
                    "needed: a tokenizer that tells them apart, or names=(...) that it does"
                )
            split.append((first[:shared], (first[shared], second[shared])))
        return split

"""A model fitted on the ids of one stage has the same loss on those of every other: no stage reads other tokens."""

import pytest
import torch
import torch.nn.functional as F
from chat_kinds import DECODERS, Kind

from lmgym.data.truncation import tokenize_apart, tokenize_replies
from lmgym.models.small_models import build_model
from lmgym.text import Conversation, Turn, render, tokenize_texts
from sft.conversations import TrainingChat
from sft.tokenization import tokenize_chats

REPLIES = {"What is hot?": "The soup is hot.", "And 3?": "3 is a number,\nI think.", "Name a sea.": "North Sea"}
CHATS = {Conversation((Turn("user", asked),)): reply for asked, reply in REPLIES.items()}
KINDS = [kind for kind in DECODERS if kind.name in ("llama 2", "mistral", "zephyr", "llama 3")]
Scored = tuple[list[int], int]
"""ids, and where the reply begins"""


def of_sft(kind: Kind) -> list[Scored]:
    turns = [(*chat.turns, Turn("bot", reply)) for chat, reply in CHATS.items()]
    rows, rejections = tokenize_chats([TrainingChat(Conversation(of), (1,)) for of in turns], kind.tokenizer, 200)
    assert rejections == []
    return [([*row.ids, row.targets[-1]], row.places[0] + 1) for row in rows]


def of_preferences(kind: Kind) -> list[Scored]:
    rows = tokenize_apart(kind.tokenizer, list(CHATS), [[reply] for reply in CHATS.values()], 200)
    return [([*row.prefix, *row.suffixes[0], kind.tokenizer.eos_token_id], len(row.prefix) + 1) for row in rows]


def of_scorers(kind: Kind) -> list[Scored]:
    rows = tokenize_replies(kind.tokenizer, list(CHATS), [[reply] for reply in CHATS.values()], 200)
    found = []
    for row, prompt in zip(rows, of_generation(kind), strict=True):
        ids = [*row.prefix, *row.suffixes[0]]
        found.append((ids[: ids.index(kind.tokenizer.eos_token_id, len(prompt)) + 1], len(prompt)))
    return found


def of_generation(kind: Kind) -> list[list[int]]:
    return tokenize_texts(kind.tokenizer, [render(kind.tokenizer, chat) for chat in CHATS])


def of_whole_texts(kind: Kind) -> list[Scored]:
    """As transformers' users fit: the ids of the whole rendered text, which the model was made with."""
    texts = [render(kind.tokenizer, chat, reply) for chat, reply in CHATS.items()]
    end, found = kind.tokenizer.eos_token_id, []
    for ids, prompt in zip(tokenize_texts(kind.tokenizer, texts), of_generation(kind), strict=True):
        found.append((ids[: ids.index(end, len(prompt)) + 1], len(prompt)))
    return found


def loss(model, rows: list[Scored]) -> torch.Tensor:
    """Nats per token of the replies."""
    total, count = torch.zeros(()), 0
    for ids, first in rows:
        row = torch.tensor([ids])
        logits = model(input_ids=row).logits[0, first - 1 : -1]
        total = total + F.cross_entropy(logits, row[0, first:], reduction="sum")
        count += len(ids) - first
    return total / count


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_model_fitted_on_whole_texts_has_the_same_loss_on_the_ids_of_every_stage(kind: Kind) -> None:
    fields = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model = build_model("llama", kind.tokenizer, "causal", 0, **fields, max_position_embeddings=256)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = of_whole_texts(kind)
    for _ in range(60):
        optimizer.zero_grad()
        loss(model, rows).backward()
        optimizer.step()
    with torch.no_grad():
        fitted = loss(model, rows).item()
        assert fitted < 0.05
        for stage in (of_sft, of_preferences, of_scorers):
            assert loss(model, stage(kind)).item() == pytest.approx(fitted, abs=1e-5), stage.__name__
        # what tokenising the reply by itself would give: of Llama 2's kind a blank that the whole text does not have
        apart = [
            ([*prompt, *tokenize_texts(kind.tokenizer, [reply])[0], kind.tokenizer.eos_token_id], len(prompt))
            for prompt, reply in zip(of_generation(kind), CHATS.values(), strict=True)
        ]
        assert (loss(model, apart).item() > 0.5) == (kind.name in ("llama 2", "zephyr"))

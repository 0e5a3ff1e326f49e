"""Chat templates, tokenizers and random conversations that several tests use."""

import random
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmgym.templates import FLAT_TEMPLATE
from lmgym.text import (
    Conversation,
    Turn,
)
from sft.conversations import TrainingChat

CHATML = (
    "{%- for message in messages -%}{{ '<' + message.role + '>' + message.content + eos_token + '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<assistant>' }}{%- endif -%}"
)


# like one that drops the thoughts of earlier turns
FORGETFUL = (
    "{%- for message in messages -%}{%- if message.role == 'assistant' -%}"
    "{{ 'Bot:' }}{%- if loop.last -%}{{ ' (thinks)' }}{%- endif -%}{{ ' ' + message.content + eos_token }}"
    "{%- else -%}{{ message.content + ' ' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Bot:' }}{%- endif -%}"
)


def character_tokenizer(merges: Sequence[tuple[str, str]] = (), template: str | None = None, bos: str | None = None):
    """Characters as tokens, and what merges join; an eos and a pad token."""
    pieces = [chr(i) for i in range(32, 127)] + ["\n", "</s>", "<pad>"] + ([bos] if bos else [])
    pieces += ["".join(pair) for pair in merges]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.Split("\x00", "isolated")  # nothing keeps merges apart
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", bos_token=bos)
    tokenizer.chat_template = template or FLAT_TEMPLATE
    return tokenizer


def chat_of(*texts: str, persona: str = "", outputs: tuple[int, ...] | None = None, line: int = 7) -> TrainingChat:
    """Turns in order, the user first; all of the bot's are outputs."""
    turns = tuple(Turn("bot" if i % 2 else "user", text) for i, text in enumerate(texts))
    outputs = tuple(range(1, len(turns), 2)) if outputs is None else outputs
    return TrainingChat(Conversation(turns, persona), outputs, file="data/chats.jsonl", line=line, field="messages")


FAMILIES = ("gpt2", "llama", "bert")


WORDS = ["soup", "jazz", "I", "don't", "know", "42", "ünïcödé", "😀", "a\nb", "User", "Bot:", "  two", "!", "？", "the"]


def random_conversation(rng: random.Random) -> Conversation:
    def words() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))).strip()

    speakers = ["user" if i % 2 == 0 else "bot" for i in range(rng.choice([1, 3, 5]))]
    return Conversation(tuple(Turn(s, words()) for s in speakers), words() if rng.random() < 0.3 else "")


def random_replies(rng: random.Random, count: int) -> list[str]:
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]

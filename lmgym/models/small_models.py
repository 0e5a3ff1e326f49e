"""Small random models and tokenizers from scratch, for the demo, tests and benchmarks, which use no hub."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedTokenizerFast

from lmgym.models.classifiers import new_classifier
from lmgym.models.loading import PAD_TOKEN
from lmgym.text import ensure_template

EOS_TOKEN = "<|eos|>"
MIN_COUNT = 5  # of a word that becomes a token
SIZE_FIELDS = {
    "gpt2": ("n_layer", "n_embd", "n_head", "n_positions"),
    "llama": ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"),
}
NO_DROPOUT = {
    "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), 0.0),
    "bert": dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
}
AUTO_CLASSES = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, max_length: int = 1024, encoder: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocab_size` tokens with different pad and eos; an encoder gets [CLS] and [SEP]."""
    specials = [PAD_TOKEN, *(("[CLS]", "[SEP]") if encoder else (EOS_TOKEN,))]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    names = {"pad_token": PAD_TOKEN, "model_max_length": max_length}
    if encoder:
        bpe.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    else:
        names["eos_token"] = EOS_TOKEN
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, padding_side="right", **names)
    ensure_template(tokenizer)
    return tokenizer


def train_word_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int = 1024) -> PreTrainedTokenizerFast:
    """Whole words, each with the space before it, as tokens, the most frequent first; bytes for all other text.

    In a language of few words every token occurs, unlike the fragments that BPE merges words from.
    """
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    specials, letters = [PAD_TOKEN, EOS_TOKEN], sorted(split.alphabet())
    frequent = [word for word, count in counts.most_common() if count >= MIN_COUNT and word not in letters]
    words = frequent[: max(0, vocab_size - len(specials) - len(letters))]
    # scores that prefer as few tokens as possible, and letters last
    scores = [*((token, 0.0) for token in specials), *((c, -50.0) for c in letters), *((word, -1.0) for word in words)]
    unigram = Tokenizer(models.Unigram(scores, unk_id=0))
    unigram.pre_tokenizer, unigram.decoder = split, decoders.ByteLevel()
    unigram.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=unigram,
        padding_side="right",
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        model_max_length=max_length,
    )
    ensure_template(tokenizer)
    return tokenizer


def build_model(family: str, tokenizer, head: str = "classifier", seed: int = 0, **settings):
    """A seeded fp32 model without dropout; `settings` are fields of the family's config.

    `head` is "classifier" (one output), "causal" or "masked".
    """
    config = AutoConfig.for_model(
        family,
        **{"vocab_size": len(tokenizer), **NO_DROPOUT.get(family, {}), **settings},
        **({"num_labels": 1} if head == "classifier" else {}),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = (
        new_classifier(config) if head == "classifier" else AUTO_CLASSES[head].from_config(config, dtype=torch.float32)
    )
    if hasattr(model, "score"):
        torch.nn.init.normal_(model.score.weight, std=1 / math.sqrt(config.hidden_size + 1))
    return model


def size_settings(family: str, layers: int, width: int, heads: int, max_length: int) -> dict[str, int]:
    """Config fields of a family for a size; Llama and Qwen3 get half as many key and value heads."""
    names = SIZE_FIELDS["gpt2" if family == "gpt2" else "llama"]
    settings = dict(zip(names, (layers, width, heads, max_length), strict=True))
    if family != "gpt2":
        settings["intermediate_size"] = 3 * width
    if family in ("llama", "qwen3"):
        settings["num_key_value_heads"] = max(1, heads // 2)
    if family == "qwen3":
        settings["head_dim"] = width // heads
    return settings


def make_small_model(
    folder: str | Path,
    family: str,
    texts: Iterable[str],
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    vocab_size: int = 512,
    max_length: int = 512,
    head: str = "causal",
    seed: int = 0,
) -> Path:
    """A small gpt2, llama, qwen3 or bert with its tokenizer, saved as an ordinary folder."""
    tokenizer = train_tokenizer(texts, vocab_size, max_length, encoder=family == "bert")
    model = build_model(family, tokenizer, head, seed, **size_settings(family, layers, width, heads, max_length))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)

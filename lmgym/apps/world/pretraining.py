"""Pretrains a small model on chats without labels, where no pretrained model is available.

A transformer trained from scratch on 100,000 logged replies with noisy labels is no better than a bag of words. Two
steps of self-supervised learning change that:
- word vectors by factorising co-occurrences, in about a second (Levy and Goldberg 2014);
- ranking a chat's own reply above that of another chat (next sentence prediction: Devlin et al. 2018), as pairs, so
  that the model runs the chat once.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier
from lmgym.models.small_models import build_model, size_settings, train_tokenizer, train_word_tokenizer
from lmgym.report.status_line import StatusLine
from lmgym.text import Conversation, Replies, render_all, share_prefix, tokenize_texts

TOKENIZER_TEXTS, CO_OCCURRENCE_TEXTS, RAREST = 20_000, 30_000, 5
SCORER_LENGTH, POLICY_LENGTH = 256, 512  # tokens
BATCH_PAIRS, LEARNING_RATE = 64, 3e-3
MOST_WORDS = 4096
SHOWN_STEPS = 50  # whose mean accuracy the status line has


def pretrain_small_model(
    folder: str | Path,
    conversations: Sequence[Conversation],
    replies: Sequence[str],
    width: int = 64,
    heads: int = 4,
    vocab_size: int = 1024,
    steps: int = 1400,
    seed: int = 0,
) -> float:
    """Pretrains a Llama and its tokenizer on chats, and saves them. Returns the accuracy of matching replies.

    Reply i answers conversation i. The accuracy is over the last tenth of the steps; chance is .5.
    """
    with StatusLine("pretraining", steps, "steps", plain=True) as line:
        line.update(0, "making a tokenizer")
        sample = np.random.default_rng(seed).permutation(len(replies))[:TOKENIZER_TEXTS].tolist()
        tokenizer = train_tokenizer([_flat(conversations[i], replies[i]) for i in sample], vocab_size, SCORER_LENGTH)
        line.update(doing="tokenising")
        prompts = tokenize_texts(tokenizer, render_all(tokenizer, conversations))
        sequences = tokenize_texts(tokenizer, render_all(tokenizer, conversations, replies))
        line.update(doing="making word vectors")
        model = _narrow_llama(tokenizer, sequences[:CO_OCCURRENCE_TEXTS], 2, width, heads, SCORER_LENGTH, seed)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

        classifier, _ = load_classifier(str(folder), tokenizer, seed=seed)
        scoring, prompt_tokens = ScoringModel(classifier), [len(prompt) for prompt in prompts]
        accuracy = match_replies(scoring, sequences, prompt_tokens, tokenizer.pad_token_id, steps, seed, line)
    classifier.save_pretrained(folder)
    return accuracy


def make_untrained_policy(
    folder: str | Path,
    texts: Sequence[str],
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    pieces: int | None = None,
    seed: int = 0,
) -> None:
    """Makes a Llama with random weights but pretrained word vectors, and a tokenizer of the words of `texts`, messages.

    Each frequent word is one token; with `pieces`, the tokenizer is a BPE of that many tokens instead.
    """
    # in a chat, a space precedes each message
    spoken = [f" {text}" for text in texts]
    if pieces is None:
        tokenizer = train_word_tokenizer([*texts, *spoken], MOST_WORDS, POLICY_LENGTH)
    else:
        tokenizer = train_tokenizer(spoken, pieces, POLICY_LENGTH)
    sequences = tokenize_texts(tokenizer, spoken[:CO_OCCURRENCE_TEXTS])
    model = _narrow_llama(tokenizer, sequences, layers, width, heads, POLICY_LENGTH, seed)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.1)  # near-uniform predictions: most tokens never occur
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _narrow_llama(
    tokenizer, sequences: Sequence[Sequence[int]], layers: int, width: int, heads: int, max_length: int, seed: int
):
    """A random causal model with the word vectors of `sequences`."""
    # the usual .02 suits widths of about 1,000; in a narrow model attention would start with almost no signal
    settings = {**size_settings("llama", layers, width, heads, max_length), "initializer_range": width**-0.5}
    model = build_model("llama", tokenizer, "causal", seed, **settings)
    embeddings = model.get_input_embeddings().weight
    vectors = word_vectors(sequences, len(embeddings), width, seed)
    with torch.no_grad():
        embeddings.mul_(0.3 / embeddings.std()).add_(torch.from_numpy(vectors))
    return model


def word_vectors(sequences: Sequence[Sequence[int]], vocab_size: int, width: int, seed: int = 0) -> np.ndarray:
    """Vectors[vocab_size, width] (float32) of token ids, each of mean square 1, or 0 for rare ids.

    Factorises the positive pointwise mutual information of two ids in one sequence by a truncated singular value
    decomposition, scaled by the square root of the singular values (Levy and Goldberg 2014, eq. 7), and rotates the
    axes at random, so that all coordinates have the same scale.
    """
    rows = np.repeat(np.arange(len(sequences)), [len(ids) for ids in sequences])
    seen = scipy.sparse.csr_matrix(
        (np.ones(len(rows), dtype=np.float32), (rows, np.concatenate([np.asarray(ids) for ids in sequences]))),
        shape=(len(sequences), vocab_size),
    )
    seen.data[:] = 1  # presence, not frequency
    together = np.asarray((seen.T @ seen).todense(), dtype=np.float64)
    counts = together.diagonal().copy()
    rare = counts < RAREST
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(together * len(sequences) / np.outer(counts, counts))
    information[~np.isfinite(information) | (information < 0)] = 0
    information[rare] = information[:, rare] = 0
    np.fill_diagonal(information, 0)
    left, scale, _ = np.linalg.svd(information)
    vectors = left[:, :width] * np.sqrt(scale[:width])
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 1e-6) * np.sqrt(width)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(vectors.shape[1], width)))[0]
    return np.asarray(vectors @ rotation, dtype=np.float32)


def match_replies(
    model: ScoringModel,
    sequences: Sequence[list[int]],
    prompt_tokens: Sequence[int],
    pad_id: int,
    steps: int,
    seed: int,
    line: StatusLine,
) -> float:
    """Trains a scorer to score a chat's own reply above another chat's. Returns the accuracy of the last tenth.

    `sequences` are token ids of chats with their replies; the first `prompt_tokens` of each are the chat.
    """
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (1 - 0.9 * step / steps)
    )
    accuracies: list[float] = []
    line.begin(0)
    for step in range(steps):
        own, other = rng.integers(len(sequences), size=(2, BATCH_PAIRS)).tolist()
        pairs = [_pair(sequences, prompt_tokens, i, j) for i, j in zip(own, other, strict=True)]
        scores = model(**model.collate([pair for pair in pairs if pair is not None], pad_id)).view(-1, 2)
        margins = scores[:, 0] - scores[:, 1]
        torch.nn.functional.softplus(-margins).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        accuracies.append((margins > 0).float().mean().item())
        line.update(step + 1, "", [f"{np.mean(accuracies[-SHOWN_STEPS:]):.1%} of pairs right"])
    return float(np.mean(accuracies[-max(1, steps // 10) :]))


def _pair(sequences: Sequence[list[int]], prompt_tokens: Sequence[int], own: int, other: int) -> Replies | None:
    """A chat with its own reply and another chat's; None if both are equal."""
    prompt = sequences[own][: prompt_tokens[own]]
    reply = sequences[other][prompt_tokens[other] :]
    if sequences[own][prompt_tokens[own] :] == reply:
        return None
    return share_prefix([sequences[own], prompt + reply])


def _flat(conversation: Conversation, reply: str) -> str:
    turns = [conversation.persona, *(turn.text for turn in conversation.turns), reply]
    return "\n".join(turns)

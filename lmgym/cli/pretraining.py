"""A small model that knows a little of its language, from chats alone: where no hub is at hand to start from.

A transformer from scratch does not find out from noisy labels which words belong together: on 100,000 logged replies
it stays at a bag of words. Two steps without any label give it what a pretrained model would bring:
- word vectors by factoring co-occurrences, in about a second (Levy and Goldberg 2014);
- telling a chat's own reply from that of another chat (next sentence prediction: Devlin et al. 2018), as a
  comparison of the two, which runs the chat once.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier
from lmgym.models.small_models import build_model, size_settings, train_tokenizer, train_word_tokenizer
from lmgym.text import Conversation, Replies, render_all, share_prefix, tokenize_texts

TOKENIZER_TEXTS, CO_OCCURRENCE_TEXTS, RAREST = 20_000, 30_000, 5
PAIRS_A_STEP = 64
MOST_WORDS = 4096


def pretrain_small_model(
    folder: str | Path,
    conversations: Sequence[Conversation],
    replies: Sequence[str],
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocab_size: int = 1024,
    max_length: int = 256,
    steps: int = 1400,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> float:
    """Makes a Llama with its tokenizer out of chats, without labels, and saves it; its accuracy at telling replies.

    Reply i answers conversation i. The accuracy is over the last tenth of the steps; chance is .5.
    """
    sample = np.random.default_rng(seed).permutation(len(replies))[:TOKENIZER_TEXTS].tolist()
    tokenizer = train_tokenizer([_flat(conversations[i], replies[i]) for i in sample], vocab_size, max_length)
    prompts = tokenize_texts(tokenizer, render_all(tokenizer, conversations))
    sequences = tokenize_texts(tokenizer, render_all(tokenizer, conversations, replies))
    model = _narrow_llama(tokenizer, sequences[:CO_OCCURRENCE_TEXTS], layers, width, heads, max_length, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    classifier, _ = load_classifier(str(folder), tokenizer, seed=seed)
    accuracy = match_replies(
        ScoringModel(classifier),
        sequences,
        [len(p) for p in prompts],
        tokenizer.pad_token_id,
        steps,
        learning_rate,
        seed,
    )
    classifier.save_pretrained(folder)
    return accuracy


def make_untrained_policy(
    folder: str | Path,
    texts: Sequence[str],
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    pieces: int | None = None,
    max_length: int = 512,
    seed: int = 0,
) -> None:
    """Makes a Llama that has yet to learn to talk, and a tokenizer of the texts' words; `texts` are single messages.

    Its word vectors know which words occur together; all else is random. Each frequent word is one token, or, with
    `pieces`, words are cut into as many pieces by BPE.
    """
    # as in a chat: with a space in front
    spoken = [f" {text}" for text in texts]
    if pieces is None:
        tokenizer = train_word_tokenizer([*texts, *spoken], MOST_WORDS, max_length)
    else:
        tokenizer = train_tokenizer(spoken, pieces, max_length)
    sequences = tokenize_texts(tokenizer, spoken[:CO_OCCURRENCE_TEXTS])
    model = _narrow_llama(tokenizer, sequences, layers, width, heads, max_length, seed)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.1)  # few of the tokens are ever said: none is likely beforehand
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _narrow_llama(
    tokenizer, sequences: Sequence[Sequence[int]], layers: int, width: int, heads: int, max_length: int, seed: int
):
    """A random causal model whose word vectors are those of `sequences`."""
    # the usual .02 suits widths of about 1,000: a narrow model would begin with next to no interaction of its words
    settings = {**size_settings("llama", layers, width, heads, max_length), "initializer_range": width**-0.5}
    model = build_model("llama", tokenizer, "causal", seed, **settings)
    embeddings = model.get_input_embeddings().weight
    vectors = word_vectors(sequences, len(embeddings), width, seed)
    with torch.no_grad():
        embeddings.mul_(0.3 / embeddings.std()).add_(torch.from_numpy(vectors))
    return model


def word_vectors(sequences: Sequence[Sequence[int]], vocab_size: int, width: int, seed: int = 0) -> np.ndarray:
    """Vectors[vocab_size, width] (float32) of token ids, each of mean square 1, or 0 for those that are rarely seen.

    Factors the positive pointwise mutual information of two ids in one sequence by a truncated singular value
    decomposition, with the square root of the singular values as scale (Levy and Goldberg 2014, eq. 7), and turns the
    axes at random, so that no coordinate is larger than another.
    """
    rows = np.repeat(np.arange(len(sequences)), [len(ids) for ids in sequences])
    seen = scipy.sparse.csr_matrix(
        (np.ones(len(rows), dtype=np.float32), (rows, np.concatenate([np.asarray(ids) for ids in sequences]))),
        shape=(len(sequences), vocab_size),
    )
    seen.data[:] = 1  # an id twice in a sequence is in it
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
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(vectors.shape[1], width)))[0]
    return np.asarray(vectors @ turn, dtype=np.float32)


def match_replies(
    model: ScoringModel,
    sequences: Sequence[list[int]],
    prompt_tokens: Sequence[int],
    pad_id: int,
    steps: int,
    learning_rate: float,
    seed: int = 0,
) -> float:
    """Trains a model of one output to score a chat's own reply above another chat's; the accuracy of the last tenth.

    `sequences` are token ids of chats with their replies, of which the first `prompt_tokens` are the chat.
    """
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (1 - 0.9 * step / steps)
    )
    right: list[float] = []
    for _ in range(steps):
        own, other = rng.integers(len(sequences), size=(2, PAIRS_A_STEP)).tolist()
        pairs = [_pair(sequences, prompt_tokens, i, j) for i, j in zip(own, other, strict=True)]
        scores = model(**model.collate([pair for pair in pairs if pair is not None], pad_id)).view(-1, 2)
        margins = scores[:, 0] - scores[:, 1]
        torch.nn.functional.softplus(-margins).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        right.append((margins > 0).float().mean().item())
    return float(np.mean(right[-max(1, steps // 10) :]))


def _pair(sequences: Sequence[list[int]], prompt_tokens: Sequence[int], own: int, other: int) -> Replies | None:
    """A chat with its own reply and another's; None where both say the same."""
    prompt = sequences[own][: prompt_tokens[own]]
    reply = sequences[other][prompt_tokens[other] :]
    if sequences[own][prompt_tokens[own] :] == reply:
        return None
    return share_prefix([sequences[own], prompt + reply])


def _flat(conversation: Conversation, reply: str) -> str:
    turns = [conversation.persona, *(turn.text for turn in conversation.turns), reply]
    return "\n".join(turns)

"""Word vectors and reply matching: what a small model learns from chats alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lmgym.environments.world import World, simulate
from lmgym.models import load_classifier, load_tokenizer
from lmgym.pretraining import pretrain_small_model, word_vectors


def test_words_that_occur_together_get_near_vectors() -> None:
    rng = np.random.default_rng(0)
    # two themes of six ids each, and two ids that go with both
    sequences = [[*rng.choice(range(6 * theme, 6 * theme + 6), 4), 12, 13] for theme in rng.integers(2, size=2000)]
    vectors = word_vectors(sequences, vocab_size=16, width=4)
    near = vectors[:12] @ vectors[:12].T / 4
    same = np.kron(np.eye(2), np.ones((6, 6))).astype(bool)
    assert vectors.shape == (16, 4)
    assert near[same].min() > near[~same].max() + 0.2
    assert (vectors[14:] == 0).all()  # never seen
    assert np.square(vectors[:12]).mean(1) == pytest.approx(np.ones(12), rel=1e-5)


def test_a_rare_word_has_no_vector() -> None:
    sequences = [[0, 1]] * 50 + [[2, 3]] * 50 + [[4, 0]] * 2
    assert (word_vectors(sequences, 5, 2)[4] == 0).all()


def test_a_model_learns_to_tell_a_chats_own_reply_and_starts_scorers(tmp_path: Path) -> None:
    logs = simulate(World(1), 150, 3).logs
    accuracy = pretrain_small_model(tmp_path, logs.conversation, logs.reply, steps=250)
    assert accuracy > 0.6  # word vectors alone give .5: the head is new
    tokenizer = load_tokenizer(str(tmp_path))
    scorer, head_is_new = load_classifier(str(tmp_path), tokenizer, num_labels=6)
    assert head_is_new
    assert scorer.config.initializer_range == pytest.approx(64**-0.5)
    assert all(torch.isfinite(p).all() for p in scorer.parameters())


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    logs = simulate(World(1), 40, 3).logs
    for name in ("a", "b"):
        pretrain_small_model(tmp_path / name, logs.conversation, logs.reply, steps=2, width=16, heads=2)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()

"""Word vectors and reply matching: pretraining of a small model on chats."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lmgym.apps.world.pretraining import make_untrained_policy, pretrain_small_model, word_vectors
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.report import status_line
from lmgym.text import Conversation, Turn

THEMES = [
    ["soup", "bread", "cheese", "honey"],
    ["jazz", "violin", "drums", "opera"],
    ["rain", "snow", "wind", "thunder"],
    ["goats", "owls", "foxes", "crabs"],
]
SMALL = {"vocab_size": 400, "width": 32, "heads": 2}


def test_words_that_occur_together_get_similar_vectors() -> None:
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


def test_the_steps_of_the_pretraining_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(status_line, "on_terminal", lambda: True)
    monkeypatch.setattr(status_line, "REDRAW_SECONDS", 0.0)
    pretrain_small_model(tmp_path, *chats(200), steps=3, **SMALL)
    shown = [text.partition("\x1b[K")[0] for text in capsys.readouterr().err.split("\r")[1:]]
    assert [line.partition(":")[0] for line in shown[:3]] == ["making a tokenizer", "tokenising", "making word vectors"]
    assert [line.partition(" steps")[0] for line in shown[3:]] == [
        "pretraining: 1/3", "pretraining: 2/3", "pretraining: 3/3", "",
    ]  # fmt: skip
    assert shown[-2].endswith("% of pairs right")


def test_a_rare_word_has_no_vector() -> None:
    sequences = [[0, 1]] * 50 + [[2, 3]] * 50 + [[4, 0]] * 2
    assert (word_vectors(sequences, 5, 2)[4] == 0).all()


def chats(count: int) -> tuple[list[Conversation], list[str]]:
    """Chats whose reply is on the theme of the message."""
    rng = random.Random(0)
    themes = [rng.choice(THEMES) for _ in range(count)]
    conversations = [Conversation((Turn("user", " ".join(rng.sample(theme, 2))),)) for theme in themes]
    return conversations, [" ".join(rng.sample(theme, 2)) for theme in themes]


def test_a_model_learns_to_match_replies_and_is_a_start_for_scorers(tmp_path: Path) -> None:
    accuracy = pretrain_small_model(tmp_path, *chats(1000), steps=60, **SMALL)
    assert accuracy > 0.8  # one of four other replies is on the same theme: .875 is the most
    tokenizer = load_tokenizer(str(tmp_path))
    scorer, head_is_new = load_classifier(str(tmp_path), tokenizer, num_labels=6)
    assert head_is_new
    assert scorer.config.initializer_range == pytest.approx(32**-0.5)
    assert all(torch.isfinite(p).all() for p in scorer.parameters())


def test_a_model_starts_from_the_vectors_of_its_words(tmp_path: Path) -> None:
    pretrain_small_model(tmp_path, *chats(1000), steps=1, **SMALL)
    tokenizer = load_tokenizer(str(tmp_path))
    ids = [i for theme in THEMES for word in theme for i in tokenizer(f" {word}").input_ids]
    assert len(ids) == 16  # a token a word
    words = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"][ids]
    likeness = torch.cosine_similarity(words[:, None], words[None], dim=-1)
    theme = torch.block_diag(*[torch.ones(4, 4)] * 4).bool()
    assert likeness[theme & ~torch.eye(16).bool()].mean() > likeness[~theme].mean() + 0.2


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pretrain_small_model(tmp_path / name, *chats(200), steps=2, **SMALL)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_an_untrained_policy_has_a_token_per_word_vectors_of_topics_and_near_uniform_predictions(
    tmp_path: Path,
) -> None:
    rng = random.Random(0)
    texts = []
    for _ in range(400):
        theme = rng.choice(THEMES)
        texts.append(f"i like {rng.choice(theme)}. {rng.choice(theme)} or {rng.choice(theme)}?")
    make_untrained_policy(tmp_path, texts, width=32, heads=2)
    tokenizer = load_tokenizer(str(tmp_path))
    words = [f" {word}" for theme in THEMES for word in theme]
    ids = [tokenizer(word, add_special_tokens=False).input_ids for word in words]
    assert [len(i) for i in ids] == [1] * 16
    odd = "Zoë said: i like soup-ish JAZZ\n\tor 3?"
    assert tokenizer.decode(tokenizer(odd).input_ids) == odd
    model = load_policy(str(tmp_path), tokenizer)
    vectors = model.get_input_embeddings().weight[[i for [i] in ids]].detach()
    near = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    same = torch.from_numpy(np.kron(np.eye(4), np.ones((4, 4)))).bool() & ~torch.eye(16, dtype=torch.bool)
    assert near[same].mean() > near[~same & ~torch.eye(16, dtype=torch.bool)].mean() + 0.2
    with torch.no_grad():
        odds = model(torch.tensor([ids[0] + ids[1]])).logits.softmax(-1)
    assert odds.max() < 3 / len(tokenizer)

"""A small policy from scratch that plays random legal moves: what PPO on a game begins from.

Its tokens are the words of the game, and its model a Llama of 2 layers, whose weights begin with a standard deviation
of 1 / sqrt(width). From 0.02, that of wide models, 600 batches of perfect moves in tic-tac-toe taught this width of 64
nothing; from this, it then played 94% of the moves that matter right.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lmgym.apps.games.ladder import LadderGame, find_game, random_move
from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.random_state import seeded
from lmgym.environments.protocol import Environment, Observation
from lmgym.environments.random_walks_model import BATCH, LEARNING_RATE, fit, made_once
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.small_models import build_model, size_settings, train_word_tokenizer
from lmgym.text import Conversation, render_all, to_transcript, tokenize_texts

LAYERS, WIDTH, HEADS, LONGEST = 2, 64, 4, 1024
MOVES, STEPS, MOST_WORDS = 4000, 150, 2000
Moves = list[tuple[Conversation, str]]


def make_start(name: str, folder: str | Path, seed: int = 0, steps: int = STEPS) -> Path:
    """`folder` with such a policy of the game `name`, made on first use."""
    return made_once(Path(folder), lambda: train_start(find_game(name), seed, steps))


def train_start(game: LadderGame, seed: int = 0, steps: int = STEPS):
    """(model, tokenizer) in fp32: SFT on random legal moves, `steps` batches of 100. A function of the seed."""
    return imitate(random_games(game, MOVES, seed), seed, steps)


def imitate(
    moves: Moves,
    seed: int = 0,
    steps: int = STEPS,
    vocabulary: Sequence[Conversation] | None = None,
    batch_size: int = BATCH,
    learning_rate: float = LEARNING_RATE,
):
    """(model, tokenizer) in fp32, trained on (prompt, move) for so many batches. A function of the seed.

    The tokens are the words of `vocabulary`, and letters of other words; None: the words of all prompts and moves.
    """
    texts = [to_transcript(*move) for move in moves] if vocabulary is None else [*map(to_transcript, vocabulary)]
    model, words = _new_model(texts, seed)
    prompts = tokenize_texts(words, render_all(words, [prompt for prompt, _ in moves]))
    rows = tokenize_texts(words, render_all(words, [prompt for prompt, _ in moves], [move for _, move in moves]))
    # prompts end where a reply begins, and words keep their spaces: the rows go on from them
    assert all(row[: len(prompt)] == prompt for row, prompt in zip(rows, prompts, strict=True))
    starts, rng = [len(prompt) for prompt in prompts], np.random.default_rng(seed)
    fit(PolicyModel(model), rows, starts, steps, rng, batch_size, learning_rate)
    return model.eval(), words


def untrained(moves: Moves, seed: int = 0):
    """(model, tokenizer) in fp32 that knows the words of (prompt, move), and to which every next token is as likely."""
    model, words = _new_model([to_transcript(*move) for move in moves], seed)
    torch.nn.init.zeros_(model.lm_head.weight)
    return model.eval(), words


def _new_model(texts: Sequence[str], seed: int):
    words = train_word_tokenizer(texts, MOST_WORDS, LONGEST)
    sizes = size_settings("llama", LAYERS, WIDTH, HEADS, LONGEST)
    with seeded(seed), without_sharded_load():
        return build_model("llama", words, "causal", seed, initializer_range=WIDTH**-0.5, **sizes), words


def random_games(game: LadderGame, moves: int, seed: int = 0) -> Moves:
    """At least so many (prompt, move) of random players of the game."""
    found: Moves = []

    def record(environment: Environment, seen: Observation, rng: np.random.Generator) -> str:
        move = random_move(environment, seen, rng)
        found.append((seen.conversation, move))
        return move

    for number in range(moves):
        if len(found) >= moves:
            break
        game.play(record, seed * moves + number)
    return found

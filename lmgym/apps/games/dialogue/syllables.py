"""Dialogue games small enough for a policy from scratch: words of syllables, and a scripted guesser that it copies.

Taboo's words have three letters: the describer's clues are the first one, then the first two, then all. Those of the
word game have five, and its clue is the first three. Held out is a quarter of taboo's words, and of the other's clues.

Design decisions:
- The policy of the word game copies a guesser who ignores half of the feedback. The winner's games end by the fourth
  guess: a policy trained on those alone breaks the rules at the fifth, which it has never seen.
- All words of a clue are held out together: where some of them are training words, a policy learns to say only those.
- Four words fit each of 576 clues: with eight to each of 162, success was too rare to learn from.
- Taboo has 573 words: of 253, policies learned the training words by heart before they copied letters.
"""

import re
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.games.dialogue.dialogue import Drawn
from lmgym.apps.games.dialogue.games import GAMES, DialogueGame, find_dialogue_game, play_scripted
from lmgym.apps.games.dialogue.rows import rows_of_episode
from lmgym.apps.games.dialogue.taboo import SPELLED, spelled
from lmgym.apps.games.dialogue.word_guess import feedback
from lmgym.apps.games.dialogue.word_guess_players import FEEDBACK
from lmgym.apps.games.small_policy import Moves, imitate
from lmgym.environments.random_walks_model import made_once
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ReplyScript
from lmgym.messages import from_messages
from lmgym.text import Conversation
from ppo.config import PPOConfig

EXPERIMENT, GUESSER = "syllables", "guesser"
CONSONANTS, VOWELS = "bdfgklmnprst", "aeio"
CLUE_WORDS = tuple(w for w in map("".join, product(CONSONANTS, VOWELS, CONSONANTS)) if w not in spelled(w, 0))
"""without words such as let, which a clue says itself"""
GUESS_WORDS = tuple(map("".join, product(CONSONANTS, VOWELS, CONSONANTS, "ae", "ns")))
CLUE_LETTERS = 3
START_GAMES, BATCH_SIZE, LEARNING_RATE = 2000, 25, 4e-3


def draw(words: tuple[str, ...], rng: np.random.Generator, experiment: str) -> Drawn:
    """One of the words, without related words."""
    word = words[int(rng.integers(len(words)))]
    instance = {"target_word": word, "related_word": [], "target_word_clue": spelled(word, CLUE_LETTERS)}
    return Drawn(word, instance, word[:CLUE_LETTERS])


def guess_from_letters(conversation: Conversation, rng: np.random.Generator) -> str:
    """Taboo: a word that begins with the letters of the last clue."""
    return f"GUESS: {_fitting(CLUE_WORDS, conversation.turns[-1].text, rng)}"


def guess_from_colours(conversation: Conversation, rng: np.random.Generator) -> str:
    """The word game: a word that begins with the letters of the clue, and that all feedback leaves."""
    text = "\n".join(turn.text for turn in conversation.turns if turn.speaker == "user")
    return f"guess: {_fitting(GUESS_WORDS, text, rng)}"


def guess_carelessly(conversation: Conversation, rng: np.random.Generator) -> str:
    """The word game: as `guess_from_colours`, but half of the time without a look at the feedback."""
    if rng.random() < 0.5:
        return guess_from_colours(conversation, rng)
    return f"guess: {_fitting(GUESS_WORDS, conversation.turns[0].text, rng)}"


def _fitting(words: tuple[str, ...], heard: str, rng: np.random.Generator) -> str:
    """One of the words that the letters and the feedback in what was heard leave."""
    letters = SPELLED.findall(heard)[-1][1].replace(" ", "")
    seen = [(re.sub(r"<[a-z]+> ?", "", colours), colours.strip()) for colours in FEEDBACK.findall(heard)]
    left = [w for w in words if w.startswith(letters) and all(feedback(g, w) == colours for g, colours in seen)]
    return left[int(rng.integers(len(left)))]


def _small(game: DialogueGame, words: tuple[str, ...], winner: ReplyScript, recorded: ReplyScript) -> DialogueGame:
    drawn = partial(draw, words)
    guessers = {"winner": winner, "recorded": recorded}
    make = partial(game.make, draws=(drawn, (EXPERIMENT,)))
    return replace(
        game,
        name=f"{game.name}_{EXPERIMENT}",
        make=make,
        draw=drawn,
        experiment_names=(EXPERIMENT,),
        scripts={**game.scripts, **{name: {**game.scripts["winner"], GUESSER: one} for name, one in guessers.items()}},
    )


TABOO = _small(GAMES["taboo"], CLUE_WORDS, guess_from_letters, guess_from_letters)
WORD_GUESS = _small(GAMES["word_guess_clue"], GUESS_WORDS, guess_from_colours, guess_carelessly)
SMALL_GAMES = {game.name: game for game in (TABOO, WORD_GUESS)}
START_STEPS = {TABOO.name: 350, WORD_GUESS.name: 250}
"""of SFT: stopped early, where the policy knows the form and few of the answers"""


def find_game(name: str) -> DialogueGame:
    """A small game or one of GAMES. Raises InputError if there is none."""
    return SMALL_GAMES.get(name) or find_dialogue_game(name)


def make_start(name: str, folder: str | Path, seed: int = 0, steps: int | None = None) -> Path:
    """`folder` with a small policy that guesses in a small game, made on first use: SFT on records of the scripts.

    steps: None, START_STEPS. Raises InputError for another game.
    """
    if name not in SMALL_GAMES:
        raise InputError(f"no small policy plays {shown(name)}; needed: {' or '.join(SMALL_GAMES)}, or --model FOLDER")

    def make() -> tuple[Any, Any]:
        moves = recorded_moves(SMALL_GAMES[name], START_GAMES, seed)
        # replies are no part of the vocabulary, so that words are spelled, and those held out can be
        heard = [replace(prompt, turns=prompt.turns[::2]) for prompt, _ in moves]
        return imitate(moves, seed, steps or START_STEPS[name], heard, BATCH_SIZE, LEARNING_RATE)

    return made_once(Path(folder), make)


def recorded_moves(game: DialogueGame, number: int, seed: int = 0) -> Moves:
    """The (prompt, reply) of the guesser in so many training games of the scripts named "recorded"."""
    rng, players = np.random.default_rng(seed), dict.fromkeys(game.roles, "recorded")
    found: Moves = []
    for _ in range(number):
        records = play_scripted(game, {}, players, int(rng.integers(2**31)))
        for row in rows_of_episode(records.interactions or {}):
            if row["meta"]["game_role"] == GUESSER:
                turns = from_messages(row["messages"]).turns
                found += [(Conversation(turns[:i]), turns[i].text) for i in range(1, len(turns), 2)]
    return found


def with_small_policy(config: PPOConfig, folder: str) -> PPOConfig:
    """If the policy is `folder`, a small policy in a folder of that for the game, made on first use.

    Raises InputError for a game that no small policy plays.
    """
    if config.policy.model != folder:
        return config
    game = re.split("[/?]", (config.rollout.environment or "").removeprefix("dialogue:"))[0]
    return replace(config, policy=replace(config.policy, model=str(make_start(game, f"{folder}/{game}"))))

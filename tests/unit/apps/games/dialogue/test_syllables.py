"""The small games: words of syllables, scripted players that use what they were told, and a policy that copies them."""

import numpy as np
import pytest

from lmgym.apps.games.dialogue import syllables
from lmgym.apps.games.dialogue.games import find_dialogue_game, play_scripted
from lmgym.apps.games.dialogue.instances import split_of
from lmgym.apps.games.dialogue.syllables import (
    CLUE_LETTERS,
    CLUE_WORDS,
    GUESS_WORDS,
    SMALL_GAMES,
    TABOO,
    WORD_GUESS,
    find_game,
    guess_carelessly,
    guess_from_colours,
    guess_from_letters,
    make_start,
    recorded_moves,
)
from lmgym.apps.games.dialogue.word_guess import feedback
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn


def test_a_task_without_an_instance_draws_a_training_word_and_all_words_of_a_clue_are_of_one_split() -> None:
    for game, words in ((TABOO, CLUE_WORDS), (WORD_GUESS, GUESS_WORDS)):
        drawn = []
        for seed in range(20):
            environment = game.environment()
            environment.reset({}, seed)
            drawn.append(environment.target)
        assert set(drawn) <= set(words)
        assert {split_of(word[:CLUE_LETTERS]) for word in drawn} == {"train"}
        held_out = [task["instance"]["target_word"] for task in game.tasks(40, split="validation")]
        assert len(set(held_out)) == 40
        assert {split_of(word[:CLUE_LETTERS]) for word in held_out} == {"validation"}


def test_the_describer_spells_the_word_and_the_guesser_begins_with_its_letters() -> None:
    prompt = Conversation((Turn("user", "CLUE: 3 letters, and b a in front"),))
    assert {guess_from_letters(prompt, np.random.default_rng(i))[:9] for i in range(20)} == {"GUESS: ba"}
    outcomes = [play_scripted(TABOO, {}, dict.fromkeys(TABOO.roles, "winner"), seed).outcome for seed in range(600)]
    # the third clue has all letters
    assert {one["Success"] for one in outcomes} == {1}
    assert {round(one["Main Score"]) for one in outcomes} <= {100, 50, 33}


def test_the_word_games_guesser_says_words_that_all_feedback_leaves() -> None:
    colours = feedback("salan", "reren")
    prompt = Conversation((Turn("user", f"clue: 5 letters, and r e r in front\n\nfeedback: {colours}"),))
    for seed in range(10):
        said = guess_from_colours(prompt, np.random.default_rng(seed)).removeprefix("guess: ")
        assert said in GUESS_WORDS
        assert said.startswith("rer")
        assert feedback("salan", said) == colours


def test_the_careless_guesser_ignores_half_of_the_feedback_and_plays_games_of_all_lengths() -> None:
    colours = feedback("reran", "reres")
    words = (Turn("user", "clue: 5 letters, and r e r in front"), Turn("bot", "guess: reran"))
    prompt = Conversation((*words, Turn("user", f"feedback: {colours}")))
    said = [guess_carelessly(prompt, np.random.default_rng(seed)).removeprefix("guess: ") for seed in range(400)]
    assert {word[:3] for word in said} == {"rer"}
    # one of the 4 words fits: e, and no n at the end, as the feedback says
    fitting = np.mean([feedback("reran", word) == colours for word in said])
    assert fitting == pytest.approx(0.5 + 0.5 / 4, abs=0.08)
    turns = {(len(prompt.turns) + 1) // 2 for prompt, _ in recorded_moves(WORD_GUESS, 300)}
    assert turns == {1, 2, 3, 4, 5, 6}


def test_a_start_spells_its_guesses_and_is_made_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(syllables, "START_GAMES", 100)
    folder = make_start(TABOO.name, tmp_path / "start", steps=2)
    tokenizer = load_tokenizer(str(folder))
    assert [tokenizer.decode([i]).strip() for i in tokenizer(" gob").input_ids] == ["g", "o", "b"]
    assert len(tokenizer(" letters, and").input_ids) == 3
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_start(TABOO.name, folder, steps=2) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_moves_are_the_guessers_replies_with_what_it_saw_before_each() -> None:
    moves = recorded_moves(WORD_GUESS, 3)
    assert all(reply.startswith("guess: ") and prompt.turns[-1].speaker == "user" for prompt, reply in moves)
    assert moves == recorded_moves(WORD_GUESS, 3)
    assert len([prompt for prompt, _ in moves if len(prompt.turns) == 1]) == 3


def test_small_games_are_found_beside_the_packaged_ones_and_hide_none() -> None:
    assert find_game("taboo") is find_dialogue_game("taboo")
    assert [find_game(name).name for name in SMALL_GAMES] == list(SMALL_GAMES)
    with pytest.raises(InputError, match="there is no dialogue game 'taboo_syllable'"):
        find_game("taboo_syllable")


def test_a_start_for_another_game_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no small policy plays 'taboo'; needed: taboo_syllables or word_guess_clue_"):
        make_start("taboo", tmp_path / "start")

"""The word game: colours, scores by the guess, clue and critic."""

import pytest
from dialogues import begun, said, scores, shown

from lmgym.apps.games.dialogue.games import GAMES, play_scripted
from lmgym.apps.games.dialogue.word_guess import WordGuess, feedback, read_line
from lmgym.apps.games.dialogue.word_guess_players import WORDS
from lmgym.errors import InputError

STORM = {"game_id": 0, "target_word": "storm", "target_word_clue": "bad weather"}
WRONG, RIGHT = ("guesser", "guess: paint"), ("guesser", "guess: storm")


def letters(colours: str) -> str:
    """g, y and r of the colours."""
    return "".join(part[2] for part in colours.split())


@pytest.mark.parametrize(
    ("guess", "target", "colours"),
    [
        ("storm", "storm", "ggggg"), ("paint", "storm", "rrrry"), ("motor", "storm", "yyyry"),
        ("llama", "label", "gyyrr"), ("eerie", "label", "yrrrr"), ("allot", "label", "yyyrr"),
    ],
)  # fmt: skip
def test_a_letter_is_coloured_as_often_as_the_word_has_it_greens_first(guess, target, colours) -> None:
    assert letters(feedback(guess, target)) == colours


@pytest.mark.parametrize(("guesses", "plain", "clue"), [
    (1, 100, 100), (2, 100, 50), (3, 100, 33.33), (4, 50, 25), (5, 30, 20), (6, 20, 16.67),
])  # fmt: skip
def test_scores_by_the_guess(guesses: int, plain: float, clue: float) -> None:
    for name, score in (("word_guess", plain), ("word_guess_clue", clue)):
        game = begun(name, STORM)
        result = said(game, *(guesses - 1) * [WRONG], RIGHT)
        assert result.terminated
        assert result.rewards == {"guesser": score / 100}
        assert scores(game)["Main Score"] == score


def test_six_wrong_guesses_lose() -> None:
    game = begun("word_guess", STORM)
    assert not said(game, *5 * [WRONG]).terminated
    assert said(game, WRONG).rewards == {"guesser": 0}
    assert scores(game)["Lose"] == 1


def test_the_clue_is_shown_in_its_variants_alone_and_the_word_in_none() -> None:
    for name in ("word_guess", "word_guess_clue", "word_guess_critic"):
        game = GAMES[name].environment()
        text = game.reset({"instance": STORM}, 0)["guesser"].prompt.turns[0].text
        assert ("clue: bad weather" in text) == (name != "word_guess")
        assert "storm" not in text


@pytest.mark.parametrize(
    "reply",
    ["", "storm", "guess: storms", "guess: st0rm", "guess: storm\nguess: paint", "guess: storm now",
     "guess: storm\nguess: no idea", "my guess: storm", "guess: штурм"],
)  # fmt: skip
def test_a_reply_without_exactly_one_guess_aborts(reply: str) -> None:
    game = begun("word_guess", STORM)
    assert said(game, ("guesser", reply)).rewards == {"guesser": -1}
    assert scores(game)["Aborted"] == 1


def test_an_explanation_may_stand_beside_the_guess() -> None:
    assert read_line("explanation: it rains\nGuess:  STORM ", "guess") == "storm"
    assert read_line("agree: yes\nexplanation: it rains", "agree") == "yes"


def test_the_critic_reads_the_guess_before_it_counts() -> None:
    game = begun("word_guess_critic", STORM)
    result = said(game, WRONG)
    assert list(result.observations) == ["critic"]
    assert shown(result).endswith("clue: bad weather\nguess: paint")
    result = said(game, ("critic", "explanation: not weather\nagree: no"))
    assert "agree: no\nYour final guess?" in shown(result)
    result = said(game, ("guesser", "guess: storm"))
    assert result.rewards == {"guesser": 1, "critic": 1}
    assert scores(game)["Request Count"] == 3


def test_the_critic_sees_the_colours_of_the_final_guess() -> None:
    game = begun("word_guess_critic", STORM)
    result = said(game, WRONG, ("critic", "agree: no"), ("guesser", "guess: motor"), RIGHT)
    assert shown(result) == f"feedback: {feedback('motor', 'storm')}\n\nguess: storm"


def test_a_critic_of_another_form_aborts_and_pays_alone() -> None:
    result = said(begun("word_guess_critic", STORM), WRONG, ("critic", "agree: maybe"))
    assert result.rewards == {"guesser": 0, "critic": -1}


def test_the_scripted_winner_finds_every_word_without_a_clue() -> None:
    for word in WORDS:
        instance = {"target_word": word.text, "target_word_clue": word.clue}
        won = play_scripted(GAMES["word_guess"], {"instance": instance}, {"guesser": "winner"})
        assert won.outcome["Success"] == 1, word.text


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(InputError, match="variant='hard'; needed: plain, clue, critic"):
        WordGuess("hard")

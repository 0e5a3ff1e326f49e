"""The small policy that PPO on a game begins from: it knows the legal moves, and plays them at random."""

from collections import Counter
from pathlib import Path

import pytest

from lmgym.apps.games.ladder import find_game
from lmgym.apps.games.small_policy import make_start, random_games
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer

pytest.importorskip("gymnasium")


def test_random_games_are_moves_with_their_prompts() -> None:
    moves = random_games(find_game("blackjack"), 200)
    assert 200 <= len(moves) < 215
    assert random_games(find_game("blackjack"), 200) == moves != random_games(find_game("blackjack"), 200, seed=1)
    counts = Counter(move for _, move in moves)
    assert set(counts) == {"hit", "stick"}
    assert min(counts.values()) > 70


@pytest.mark.slow
def test_its_replies_are_legal_moves_of_about_equal_frequency(tmp_path: Path) -> None:
    game = find_game("blackjack")
    folder = str(make_start("blackjack", tmp_path / "start"))
    assert make_start("blackjack", tmp_path / "start") == tmp_path / "start"  # it is there already
    tokenizer = load_tokenizer(folder)
    generator = LocalGenerator(load_policy(folder, tokenizer), tokenizer)
    prompts = [prompt for prompt, _ in random_games(game, 300, seed=9)]
    counts = Counter(one.text.strip() for [one] in generator.reply(prompts, 1, Sampling(4)))
    assert counts["hit"] + counts["stick"] > 0.9 * len(prompts)
    assert min(counts["hit"], counts["stick"]) > 0.35 * len(prompts)

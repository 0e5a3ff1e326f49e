"""Scripted players and forks of all games."""

from dataclasses import replace

import numpy as np
import pytest
from acting import TOKENIZER, Scripted

from lmgym.apps.games.dialogue.games import GAMES, PLAYERS, find_dialogue_game, play_scripted
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.protocol import ReplyScript, Sampling, ScriptedGenerator
from lmgym.text import Conversation

OUTCOMES = {"winner": "Success", "loser": "Lose", "rule_breaker": "Aborted"}


@pytest.mark.parametrize("player", PLAYERS)
@pytest.mark.parametrize("name", GAMES)
def test_winners_win_losers_lose_and_rule_breakers_abort(name: str, player: str) -> None:
    game = GAMES[name]
    for task in [*game.tasks(8), *game.tasks(8, split="validation")]:
        scores = play_scripted(game, task, dict.fromkeys(game.roles, player)).outcome
        assert [key for key in OUTCOMES.values() if scores[key]] == [OUTCOMES[player]]
        assert scores["Main Score"] > 0 or player != "winner"


@pytest.mark.parametrize("name", [name for name, game in GAMES.items() if len(game.roles) == 2])
def test_a_second_player_who_breaks_the_rules_aborts_a_winners_game(name: str) -> None:
    game = GAMES[name]
    first, second = game.roles
    scores = play_scripted(game, game.tasks(1)[0], {first: "winner", second: "rule_breaker"}).outcome
    assert scores["Aborted"] == 1
    assert scores["Request Count"] == 2


def test_each_role_draws_from_a_stream_of_the_seed_and_its_place() -> None:
    drawn: dict[str, list[int]] = {role: [] for role in GAMES["taboo"].roles}

    def drawing(role: str) -> ReplyScript:
        def script(conversation: Conversation, rng: np.random.Generator) -> str:
            drawn[role].append(int(rng.integers(1 << 30)))
            return GAMES["taboo"].script(role)(conversation, rng)

        return script

    game = replace(GAMES["taboo"], scripts={"winner": {role: drawing(role) for role in drawn}})
    play_scripted(game, game.tasks(1)[0], dict.fromkeys(drawn, "winner"), 7)
    for place, numbers in enumerate(drawn.values()):
        assert numbers
        assert numbers == np.random.default_rng([7, place]).integers(1 << 30, size=len(numbers)).tolist()


def test_a_fork_replays_the_first_replies_and_goes_on() -> None:
    game = GAMES["taboo"]
    others = {"describer": ScriptedGenerator(game.script("describer"))}

    def play(reply: str, beginnings=None):
        policy = Scripted(lambda text, seed: reply, max_length=4096)
        return run_episodes(
            [game.environment()], [{}], [5], policy, TOKENIZER, Sampling(max_new_tokens=16), None, others,
            beginnings=beginnings,
        )  # fmt: skip

    [whole] = play("GUESS: nothing")
    assert [len(actions) for actions in whole.actions] == 6 * [1]
    assert whole.total_reward == 0
    [fork] = play("GUESS:", [whole.actions[:3]])  # a clue, a wrong guess, and another clue
    assert list(fork.actions[:3]) == list(whole.actions[:3])
    assert len(fork.steps) == 1
    assert "GUESS: nothing" in fork.steps[0].prompt_text
    assert fork.total_reward == -1
    assert fork.info["aborted_by_guesser"] == 1


def test_unknown_games_and_players_are_refused() -> None:
    with pytest.raises(InputError, match="there is no dialogue game 'tabu'; needed: taboo, word_guess"):
        find_dialogue_game("tabu")
    with pytest.raises(InputError, match="player='hero'; needed: winner, loser, rule_breaker"):
        GAMES["taboo"].script("guesser", "hero")

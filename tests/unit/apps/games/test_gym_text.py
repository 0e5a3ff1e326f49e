"""Gymnasium's games as text: words for states, moves from words, limits, and what is refused."""

import sys

import numpy as np
import pytest

from lmgym.apps.games.gym_text import GymText
from lmgym.apps.games.ladder import find_game
from lmgym.apps.games.replies import choice_of
from lmgym.apps.games.toy_text import blackjack, cliff_walking, frozen_lake, show_taxi, taxi
from lmgym.environments.protocol import Observation
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling

gymnasium = pytest.importorskip("gymnasium")


def text(shown: dict[str, Observation]) -> str:
    return shown["policy"].prompt.turns[-1].text


def coin(**settings) -> GymText:
    """Blackjack with other functions."""
    given = {"show": str, "read": lambda reply: int(reply) if reply.isdigit() else None} | settings
    return GymText("Blackjack-v1", **given)


def test_an_episode_is_gymnasiums_own_with_its_rewards() -> None:
    for seed in range(50):
        game, table = blackjack(), gymnasium.make("Blackjack-v1", sab=False)
        game.reset({}, seed)
        hand, _ = table.reset(seed=seed)
        over = False
        while not over:
            assert game.observation == hand
            move = int(hand[0] < 17)
            result = game.step({"policy": ("I stick.", "Hit!")[move]})
            hand, reward, over, _, _ = table.step(move)
            assert result.rewards == {"policy": reward}
            assert result.terminated == over
            assert bool(result.observations) != over


@pytest.mark.parametrize(
    ("make", "words", "actions"),
    [
        (blackjack, "You hold 7. The dealer shows 10. Hit or stick?", ("stick", "hit")),
        (frozen_lake, "You are on square 1: row 1, column 1. left, down, right, up?", ("left", "down", "right", "up")),
        (
            cliff_walking,
            "You are on square 37: row 4, column 1. up, right, down, left?",
            ("up", "right", "down", "left"),
        ),
        (
            taxi,
            "The taxi is at row 1, column 3. The passenger waits at Red (row 1, column 1). The destination is Yellow "
            "(row 5, column 1). south, north, east, west, pickup, dropoff?",
            ("south", "north", "east", "west", "pickup", "dropoff"),
        ),
    ],
)
def test_an_observation_is_the_state_in_words_with_the_moves(make, words: str, actions: tuple[str, ...]) -> None:
    shown = make().reset({}, 3)
    assert text(shown) == words
    assert shown["policy"].actions == actions


def test_the_maps_in_the_rules_are_gymnasiums() -> None:
    for size in (4, 8):
        lake = frozen_lake(size=size)
        drawn = [b"".join(row).decode() for row in lake.env.unwrapped.desc]
        assert lake.reset({}, 0)["policy"].prompt.persona.splitlines()[1:] == drawn
    assert "either side" in frozen_lake(slippery=True).rules
    assert "either side" not in frozen_lake().rules
    assert show_taxi(taxi().env.unwrapped.encode(2, 0, 4, 3)).startswith(
        "The taxi is at row 3, column 1. The passenger is in the taxi. The destination is Blue (row 5, column 4)."
    )


def test_lakes_slip_only_where_they_are_said_to() -> None:
    def walk(slippery: bool, seed: int) -> str:
        game = frozen_lake(slippery)
        game.reset({}, seed)
        return text(game.step({"policy": "right"}).observations)

    assert {walk(False, seed) for seed in range(20)} == {"You are on square 2: row 1, column 2. left, down, right, up?"}
    assert len({walk(True, seed) for seed in range(20)}) == 3


def test_an_illegal_reply_costs_and_leaves_the_game_and_the_limit_truncates() -> None:
    game = coin(illegal_reward=-0.5, max_steps=2)
    before = game.reset({}, 0)
    first, second = game.step({"policy": "hm"}), game.step({"policy": "hm"})
    assert first.rewards == {"policy": -0.5}
    assert first.observations == before
    assert (first.truncated, second.truncated, second.terminated) == (False, True, False)
    assert second.observations == before
    assert second.info == {"steps": 2, "illegal": 2}


def test_the_environments_own_limit_truncates_too_and_an_end_in_the_last_step_is_no_truncation() -> None:
    game = cliff_walking(max_steps=3)
    game.reset({}, 0)
    ends = [game.step({"policy": "left"}) for _ in range(3)]
    assert [end.truncated for end in ends] == [False, False, True]
    lake = frozen_lake()
    lake.reset({}, 0)
    results = [lake.step({"policy": "left"}) for _ in range(100)]
    assert [result.truncated for result in results] == [False] * 99 + [True]
    hand = coin(max_steps=1)
    hand.reset({}, 0)
    assert hand.step({"policy": "0"}).terminated
    assert not hand.step({"policy": "0"}).truncated


@pytest.mark.parametrize(("reply", "move"), [("Hit!", 1), ("I stick", 0), ("hit or stick?", None), ("whitehit", None)])
def test_a_move_is_the_one_word_of_the_moves_in_a_reply(reply: str, move: int | None) -> None:
    assert choice_of({"stick": 0, "hit": 1})(reply) == move


def test_a_reader_that_raises_or_gives_another_action_is_a_failure_of_the_episode() -> None:
    game = coin()
    game.reset({}, 0)
    with pytest.raises(ValueError, match=r"'7' was read as 7; needed: an action of Discrete\(2\), or None"):
        game.step({"policy": "7"})
    broken = coin(read=lambda reply: {}[reply])
    broken.reset({}, 0)
    with pytest.raises(KeyError):
        broken.step({"policy": "stick"})


def test_what_cannot_work_is_refused_with_what_is_needed() -> None:
    cases = (
        (
            lambda: GymText("Taxi-v3", str, int),
            r"gymnasium .* has no 'Taxi-v3'; did you mean Taxi-v4\? needed: one of its \d+ ids",
        ),
        (lambda: GymText("xyz", str, int), r"has no 'xyz'; needed: one of its \d+ ids"),
        (
            lambda: coin(settings={"sabb": 1}),
            "Blackjack-v1 cannot be made with {'sabb': 1}: .*; needed: its own settings",
        ),
        (lambda: coin(max_steps=0), "max_steps=0; needed: 1 to"),
        (lambda: coin(show=lambda hand: hand).reset({}, 0), "`show` of Blackjack-v1 gave a tuple; needed: .* as text"),
        (lambda: frozen_lake(size=5), "size=5; needed: one of 4, 8"),
        (lambda: find_game("blackjak"), r"lmgym games list has no 'blackjak'; did you mean blackjack\?"),
    )
    for make, message in cases:
        with pytest.raises(InputError, match=message):
            make()


def test_without_gymnasium_the_message_has_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError, match=r"needs gymnasium .*; needed: pip install 'lmgym\[gym\]'"):
        blackjack()


def test_a_whole_group_of_games_is_played_by_the_engine() -> None:
    from acting import TOKENIZER, Scripted

    from lmgym.environments.rollout_engine import run_episodes

    policy = Scripted(lambda prompt, seed: "hit" if "hold 1" not in prompt else "stick", 2000)
    episodes = run_episodes([blackjack() for _ in range(30)], [{}] * 30, range(30), policy, TOKENIZER, Sampling(), None)
    totals = [episode.total_reward for episode in episodes]
    assert set(totals) == {-1.0, 0.0, 1.0}
    assert np.mean(totals) < 0

"""Games of clemcore 3, whose masters only step, through the bridge: with a stand-in, or with clemcore 3 itself.

LMGYM_CLEMCORE3 names an environment with clemcore 3.7.2.
"""

import os
from pathlib import Path

import pytest
from toy_games import TESTS, scripted, stub_python

from lmgym.apps.playpen.clembench.bridge import Asked, Bridge, Over
from lmgym.apps.playpen.clembench.clembench_game import ClembenchGame
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import play, tasks_of
from lmgym.apps.playpen.registries.games import read_checkout
from lmgym.apps.playpen.registries.models import PROGRAMMED
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.trainers.branching import GameBranchingEnv
from lmgym.apps.playpen.trainers.stepping import GameEnv
from lmgym.errors import InputError

[SPEC] = read_checkout(TESTS / "clembench3_toy")


@pytest.fixture(scope="module", params=["stand-in", "clemcore 3"])
def python(request, tmp_path_factory) -> Path:
    if request.param == "stand-in":
        return stub_python(tmp_path_factory.mktemp("stub"), TESTS / "clemcore3_stub")
    if "LMGYM_CLEMCORE3" not in os.environ:
        pytest.skip("needs LMGYM_CLEMCORE3")
    return Path(os.environ["LMGYM_CLEMCORE3"]) / "bin/python"


def test_a_game_that_only_steps_is_played_with_its_records_and_requests(python: Path) -> None:
    with Bridge(SPEC, python) as bridge:
        number, first = bridge.start({"name": "words"}, {"game_id": 0, "word": "boat"}, ["m", "m"], 0)
        assert first == Asked(1, [{"role": "user", "content": "Send the word boat"}])
        second = bridge.reply(number, "WORD: boat")
        assert second == Asked(2, [{"role": "user", "content": "Repeat boat"}])
        over = bridge.reply(number, "WORD: boat")
    assert isinstance(over, Over)
    assert not over.error
    assert over.scores["episode scores"]["Main Score"] == 100
    events = [event for turn in over.interactions["turns"] for event in turn]
    assert [(event["from"], event["to"]) for event in events] == [
        ("GM", "Player 1"), ("Player 1", "GM"), ("GM", "Player 2"), ("Player 2", "GM"),
    ]  # fmt: skip
    assert over.interactions["players"]["Player 2"]["game_role"] == "Receiver"
    assert [call["raw_response_obj"]["choices"][0]["message"]["content"] for call in over.requests] == [
        "WORD: boat"
    ] * 2


def test_episodes_are_won_lost_and_aborted(python: Path) -> None:
    game = ClembenchGame(SPEC, python)
    try:
        won = play(game, [scripted(lambda c, rng: f"WORD: {c.turns[-1].text.split()[-1]}")], tasks_of(game))
        lost = play(game, [scripted(["WORD: other"])], tasks_of(game))
        aborted = play(game, [scripted(["other"])], tasks_of(game))
        again = play(game, [scripted(["WORD: other"])], tasks_of(game))
    finally:
        game.close()
    assert [records.outcome["Main Score"] for records in won] == [100, 100]
    assert [records.outcome["Lose"] for records in lost] == [1, 1]
    assert [records.outcome["Aborted"] for records in aborted] == [1, 1]
    assert [r.interactions["luck"] for r in lost] == [r.interactions["luck"] for r in again], "of the episode's seed"


def test_a_game_in_a_process_of_its_own_branches_by_replay(python: Path) -> None:
    game, said = ClembenchGame(SPEC, python), iter(["WORD: boat", "WORD: other"])
    learner = scripted(lambda conversation, rng: next(said), "learner")
    mock = Model(Spec({"model_name": "mock", "backend": PROGRAMMED}))
    try:
        env = GameBranchingEnv(game, [mock, learner], tasks_of(game))
        player, contexts = env.observe()
        done, info = env.step(player(contexts))
        with pytest.raises(InputError, match="asks no player in any of 2 instances"):
            GameEnv(game, [mock], tasks_of(game))
    finally:
        game.close()
    assert contexts == [{"role": "user", "content": "Repeat boat"}]
    assert (done, [one["episode_score"] for one in info[0]]) == ([[True, True]], [1.0, 0.0])
    assert [env.records().outcome["Main Score"] for env in env.branches()] == [100, 0]

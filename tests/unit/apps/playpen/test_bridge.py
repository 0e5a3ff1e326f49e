"""The bridge to games of clembench, with a stand-in for clemcore, or with clemcore itself where LMGYM_CLEMCORE is."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_games import TOY, scripted, stub_python, toy_spec

from lmgym.apps.playpen.clembench import bridge as bridge_module
from lmgym.apps.playpen.clembench.bridge import Asked, Bridge, Over, find_python
from lmgym.apps.playpen.clembench.clembench_game import FAILED, REWARD, ClembenchGame
from lmgym.apps.playpen.playing import play, tasks_of
from lmgym.apps.playpen.registries.games import read_checkout
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.trainers.learning_games import GameReward
from lmgym.environments.protocol import EpisodeFailed
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling

EXPERIMENT = {"name": "small", "most": 3}
RECORDED = Path(__file__).with_name("recorded_exchange.jsonl")


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    return stub_python(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module")
def bridge(python: Path):
    with Bridge(toy_spec(), python, timeout=60) as found:
        yield found


def start(bridge: Bridge, number: int = 4, players: tuple = ("m", "m"), seed: int = 0):
    return bridge.start(EXPERIMENT, {"game_id": 1, "number": number}, list(players), seed)


def finish(bridge: Bridge, number: int, *replies: str) -> Over:
    message = None
    for reply in replies:
        message = bridge.reply(number, reply)
    assert isinstance(message, Over)
    return message


def test_a_player_is_asked_with_its_own_view_and_neighbours_of_one_role_are_one_message(bridge) -> None:
    episode, first = start(bridge)
    assert first == Asked(1, [{"role": "user", "content": "You are the Guesser.\n\nguess"}])
    second = bridge.reply(episode, "5")
    assert second == Asked(2, [{"role": "user", "content": "You are the Helper.\n\n5 is wrong, it is 4"}])
    third = bridge.reply(episode, "lower")
    assert isinstance(third, Asked)
    assert [row["role"] for row in third.messages] == ["user", "assistant", "user"]
    assert third.messages[-1]["content"] == "lower"
    over = finish(bridge, episode, "4")
    assert over.scores is not None
    assert over.scores["episode scores"] == {"Aborted": 0, "Success": 1, "Lose": 0, "Main Score": 50.0}
    assert over.interactions is not None
    assert over.interactions["turns"][-1][-1]["action"] == {"type": "won", "content": "4"}
    assert len(over.requests or ()) == 3


def test_many_episodes_go_on_at_once_and_a_reply_goes_to_its_own(bridge) -> None:
    started = [start(bridge, number)[0] for number in range(1, 9)]
    for episode, number in zip(started, range(1, 9), strict=True):
        over = finish(bridge, episode, str(number))
        assert over.scores is not None
        assert over.scores["episode scores"]["Main Score"] == 100


def test_programmed_seats_play_within_the_game(bridge) -> None:
    _, over = start(bridge, 5, ("mock", "mock"))
    assert isinstance(over, Over)
    assert over.scores is not None
    assert over.scores["episode scores"]["Success"] == 1
    episode, asked = start(bridge, 4, ("m", "mock"))
    for _ in range(3):
        assert isinstance(asked, Asked)
        assert asked.seat == 1
        asked = bridge.reply(episode, "5")
    assert isinstance(asked, Over)


def test_the_games_global_randomness_follows_from_the_seed_whatever_else_runs(bridge) -> None:
    def luck(seed: int, others: int) -> float:
        numbers = [start(bridge, seed=100 + i)[0] for i in range(others)]
        episode, _ = start(bridge, seed=seed)
        over = finish(bridge, episode, "4")
        for number in numbers:
            bridge.stop(number)
        assert over.interactions is not None
        return over.interactions["luck"]

    assert luck(1, 0) == luck(1, 5)
    assert luck(1, 0) != luck(2, 0)


def test_a_scorer_or_a_game_that_fails_gives_the_reason_and_no_score(bridge) -> None:
    episode, _ = start(bridge, 9)
    over = finish(bridge, episode, "9")
    assert over.scores is None
    assert over.scorer_error.startswith("ZeroDivisionError: division by zero (master.py:")
    _, over = bridge.start(EXPERIMENT, {"game_id": 1, "word": "of another version"}, ["m", "m"], 0)
    assert isinstance(over, Over)
    assert "unexpected keyword argument 'word'" in over.error


def test_a_reply_with_half_a_surrogate_pair_and_line_breaks_arrives(bridge) -> None:
    episode, _ = start(bridge)
    over = finish(bridge, episode, "a\n\ud83d")
    assert over.scores is not None
    assert over.scores["episode scores"]["Aborted"] == 1
    assert math.isnan(over.scores["episode scores"]["Main Score"])


def test_a_process_that_dies_fails_the_episodes_with_its_last_words(python) -> None:
    with Bridge(toy_spec(), python, timeout=60) as bridge:
        episode, _ = start(bridge)
        bridge.process._process.kill()
        with pytest.raises(EpisodeFailed, match="higher_lower ended with exit code -9"):
            bridge.reply(episode, "4")
        with pytest.raises(EpisodeFailed):
            start(bridge)


def test_a_game_that_stalls_fails_the_episode(python, monkeypatch) -> None:
    with Bridge(toy_spec(), python, timeout=60) as bridge:
        episode, _ = start(bridge)
        bridge.process.timeout = 0.05
        monkeypatch.setattr(bridge.process, "_send", lambda message: None)
        with pytest.raises(EpisodeFailed, match=r"neither asked nor ended within 0\.05 s"):
            bridge.reply(episode, "4")


def test_keys_do_not_reach_the_games_process(python, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-never-to-be-seen")
    (tmp_path / "clemgame.json").write_text('{"game_name": "x", "players": 1}')
    (tmp_path / "master.py").write_text("import os\nraise ValueError(sorted(n for n in os.environ if 'KEY' in n))\n")
    spec = Spec({"game_name": "x", "players": 1, "game_path": str(tmp_path)}, "x")
    with pytest.raises(InputError, match=r"ValueError: \[\]"):
        Bridge(spec, python, timeout=60)


def test_without_an_environment_the_command_that_makes_one_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(bridge_module.VARIABLE, raising=False)
    with pytest.raises(InputError, match="needed: `lmgym playpen setup`"):
        find_python()


def test_whole_games_are_played_and_scored_by_players(python) -> None:
    game = ClembenchGame(toy_spec(), python)
    try:
        tasks = tasks_of(game)
        guess = scripted(lambda conversation, rng: "4" if "Guesser" in conversation.turns[0].text else "lower")
        found = play(game, [guess], tasks)
        assert [records.outcome["Success"] for records in found] == [1, 0, 0]
        assert [records.outcome["Lose"] for records in found] == [0, 1, 1]
        assert found[0].interactions is not None
        assert found[0].interactions["players"]["Player 1"] == {"game_role": "Guesser", "model_name": "scripted"}
    finally:
        game.close()


class Says:
    """A token generator that always says the same."""

    max_length = 1000

    def __init__(self, text: str) -> None:
        self.text = text

    def generate(self, prompts, n, sampling):
        return [[Completion(self.text, "eos", (1, 2), (0.0, 0.0))] for _ in prompts]


def test_the_rollout_engine_plays_forks_and_rewards_only_players_who_acted(python, tokenizers) -> None:
    game = ClembenchGame(toy_spec(), python)
    task = {"experiment": EXPERIMENT, "instance": {"game_id": 1, "number": 4}}
    broken = {"experiment": EXPERIMENT, "instance": {"game_id": 1, "number": 9}}
    given = Says("4"), tokenizers["gpt2"], Sampling(max_new_tokens=4), GameReward()
    try:
        [won] = run_episodes([game.environment()], [task], [3], *given)
        assert (won.agent, won.total_reward, won.info["main_score"]) == ("Player 1", 1.0, 100)
        beginning = [[{"Player 1": "5"}, {"Player 2": "lower"}]]
        [fork] = run_episodes([game.environment()], [task], [3], *given, beginnings=beginning)
        assert (fork.agent, fork.total_reward, len(fork.steps)) == ("Player 1", 0.5, 1)
        [masked] = run_episodes([game.environment()], [broken], [3], Says("9"), *given[1:])
        assert masked.total_reward is None
        assert "ZeroDivisionError" in masked.steps[0].error
    finally:
        game.close()


def test_an_aborted_game_is_worth_less_than_a_lost_one(python) -> None:
    game = ClembenchGame(toy_spec(), python)
    try:
        environment = game.environment()
        environment.reset({"experiment": EXPERIMENT, "instance": {"game_id": 1, "number": 4}}, 0)
        result = environment.step({"Player 1": "four"})
        assert [request.columns for request in result.score_requests] == [{REWARD: -1.0}]
        environment.reset({"experiment": EXPERIMENT, "instance": {"game_id": 1, "number": 9}}, 0)
        result = environment.step({"Player 1": "9"})
        assert list(result.score_requests[0].columns) == [FAILED]
    finally:
        game.close()


def exchange(python: str) -> list[dict]:
    """The lines of a fixed exchange, in order: {"in": line} and {"out": line}; the worker's times are left out."""
    worker = [python, str(bridge_module.WORKER), str(toy_spec().get("game_path")), "higher_lower"]
    process = subprocess.Popen(
        worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin
    assert process.stdout
    lines = [{"out": json.loads(process.stdout.readline())}]
    order = {"experiment": EXPERIMENT, "instance": {"game_id": 1, "number": 4}, "players": ["m", "mock"], "seed": 1}
    for message in (
        {"do": "start", "episode": 1, **order}, {"do": "reply", "episode": 1, "text": "5"},
        {"do": "reply", "episode": 1, "text": "4"},
    ):  # fmt: skip
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        lines += [{"in": message}, {"out": json.loads(process.stdout.readline())}]
    process.stdin.close()
    process.wait(60)
    return lines


def comparable(lines: list[dict]) -> list[dict]:
    """Without what differs from one version of clemcore to the next: the form of requests, and times."""
    found = json.loads(json.dumps(lines))
    over = found[-1]["out"]["over"]
    kept = ("Aborted", "Success", "Lose", "Main Score")
    over["scores"] = {name: over["scores"]["episode scores"][name] for name in kept}
    turns = over["interactions"]["turns"]
    said = [[e["from"], e["to"], e["action"]["type"], e["action"]["content"]] for turn in turns for e in turn]
    over["interactions"], over["requests"] = said, len(over["requests"])
    return found


def test_the_protocol_is_that_of_the_recorded_exchange(python) -> None:
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert comparable(exchange(str(python))) == recorded


@pytest.mark.slow
@pytest.mark.skipif("LMGYM_CLEMCORE" not in os.environ, reason="LMGYM_CLEMCORE names no environment with clemcore")
def test_clemcore_itself_gives_the_recorded_exchange() -> None:
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    found = comparable(exchange(str(find_python())))
    assert found[0]["out"]["ready"]["game"] == "higher_lower"
    assert found[1:] == recorded[1:]


if __name__ == "__main__":  # writes the record: python3 tests/unit/apps/playpen/test_bridge.py PYTHON_WITH_CLEMCORE
    RECORDED.write_text("".join(json.dumps(line) + "\n" for line in comparable(exchange(sys.argv[1]))))


@pytest.mark.parametrize(
    ("module", "package"), [("absent_module", "absent_module"), ("sklearn.metrics", "scikit-learn")]
)
def test_a_game_whose_module_is_missing_says_what_to_install_where(module, package, python: Path, tmp_path) -> None:
    shutil.copytree(TOY / "higher_lower", tmp_path / "higher_lower")
    master = tmp_path / "higher_lower/master.py"
    master.write_text(f"import {module}\n" + master.read_text())
    [spec] = read_checkout(tmp_path)
    with pytest.raises(
        InputError, match=rf"does not load: ModuleNotFoundError.*; needed: .*python -m pip install {package},"
    ):
        Bridge(spec, python)
    master.unlink()
    with pytest.raises(InputError, match=r"has no master\.py; needed: a whole checkout"):
        Bridge(spec, python)

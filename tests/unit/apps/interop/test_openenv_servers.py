"""Servers of the package openenv itself: ours, which its own client plays, and theirs, which ours plays."""

import json
from pathlib import Path

import pytest
from interop import EXPORTED, as_sent
from interop import play as play_sessions
from launching import ROOT
from openenv_package import FOLDER, needs_openenv, run_there, server_there

from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import POLICY
from lmgym.environments.session import Session

pytestmark = [pytest.mark.slow, needs_openenv]
pytest.importorskip("websockets")
EPISODES = 100
SERVE = ("-m", "lmgym", "serve", "env")


@pytest.mark.parametrize("words", EXPORTED)
def test_the_packages_own_client_plays_our_episodes(words: str):
    named = load_environment(words)
    tasks = named.splits["train"]
    given = [(i % len(tasks), 1000 + i) for i in range(EPISODES)]
    recorded = play_sessions(named, [tasks[i] for i, _ in given], [seed for _, seed in given])
    plan = [
        {"reset": {"seed": seed, "split": "train", "index": index}, "replies": [reply for reply, _ in episode[1:]]}
        for (index, seed), episode in zip(given, recorded, strict=True)
    ]
    with server_there((*SERVE, words, "--split", "validation", "--port")) as url:
        found = json.loads(run_there(ROOT / "tests/openenv_client.py", url, text=json.dumps(plan)))
    expected = [[as_sent(seen, number == 0) for number, (_, seen) in enumerate(episode)] for episode in recorded]
    assert len(found) == EPISODES
    assert found == json.loads(json.dumps(expected))


def played(named: NamedEnvironment, seeds: list[int]) -> list[tuple]:
    """(actions, rewards, prompts) of each episode."""
    rewards: dict[int, list] = {}

    def watch(episode) -> None:
        prompts = [(seen.prompt, tuple(seen.actions)) for seen in episode.observations.values()]
        rewards.setdefault(episode.index, []).append((episode.result.rewards.get(POLICY, 0.0), prompts, episode.error))

    player = ScriptPlayer(lambda environment, seen, rng: str(rng.choice(seen.actions)), lambda seed: [seed])
    episodes = play(
        [named.environment() for _ in seeds], [named.tasks[0]] * len(seeds), seeds, {POLICY: player}, watch=watch
    )
    return [(episode.actions, rewards[episode.index]) for episode in episodes]


def test_episodes_there_and_back_are_those_of_the_game():
    seeds = list(range(EPISODES))
    with server_there((*SERVE, "games:blackjack", "--max_sessions", 7, "--port")) as url:
        theirs = load_environment(f"openenv:{url}")
        assert theirs.tasks == [{"split": "train", "index": 0}]
        assert theirs.eval_tasks == [{"split": "validation", "index": 0}]
        there = played(theirs, seeds)
    assert there == played(load_environment("games:blackjack"), seeds)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """The environment that the package's own command makes."""
    folder = tmp_path_factory.mktemp("made")
    run_there(FOLDER / "bin/openenv", "init", "my_env", cwd=folder)
    return folder / "my_env"


def test_an_environment_of_the_packages_own_command_is_played_in_its_one_session(template: Path):
    with server_there(("-m", "server.app", "--port"), cwd=template, PYTHONPATH=str(template)) as url:
        named = load_environment(f"openenv:{url}?max_steps=2")
        assert named.about == "MyEnvironment environment; episodes of two seeds begin alike"
        with Session(named) as session:
            seen = session.reset({}, 0)
            assert seen.text == '{"echoed_message": "My Env environment ready!", "message_length": 0}'
            seen = session.reply("Hello")
            assert (seen.text, seen.reward) == ('{"echoed_message": "Hello", "message_length": 5}', 0.5)
            seen = session.reply("Hi")
            assert (seen.reward, seen.terminated, seen.truncated) == (0.2, False, True)
            assert {name: seen.info[name] for name in ("message_length", "step")} == {"message_length": 2, "step": 2}
        says = ScriptPlayer(lambda environment, seen, rng: "abc", lambda seed: [seed])
        episodes = play([named.environment() for _ in range(5)], [{}] * 5, list(range(5)), {POLICY: says})
        assert [(episode.error, episode.step_number) for episode in episodes] == [("", 2)] * 5

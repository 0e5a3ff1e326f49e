"""Our environments as an OpenEnv server, without the package: episodes, tasks and the way back."""

import pytest
from interop import EXPORTED, as_sent
from interop import play as play_sessions
from openenv_names import App, pretend
from openenv_stub import Stub

from lmgym.apps.interop.to_openenv import choose, make_app
from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import POLICY

EPISODES = 5


@pytest.fixture(autouse=True)
def _pretended(monkeypatch):
    pretend(monkeypatch)


def app_of(words: str, split="train", sessions: int = 4) -> App:
    return make_app(load_environment(words), split, sessions)


@pytest.mark.parametrize("words", EXPORTED)
def test_episodes_are_those_of_a_session(words: str):
    named = load_environment(words)
    tasks = named.splits["train"]
    given = [(i % len(tasks), 1000 + i) for i in range(EPISODES)]
    wire = app_of(words).plain()
    for (index, seed), episode in zip(
        given, play_sessions(named, [tasks[i] for i, _ in given], [seed for _, seed in given]), strict=True
    ):
        found = wire.reset(seed=seed, index=index)
        for number, (reply, seen) in enumerate(episode):
            found = found if number == 0 else wire.step(text=reply)
            assert {name: found[name] for name in ("observation", "reward", "done")} == as_sent(seen, number == 0)
        assert wire.environment.state.model_dump() == {
            "episode_id": None,
            "step_count": len(episode) - 1,
            "seed": seed,
            "split": "train",
            "index": index,
        }


def test_a_reset_without_a_split_or_a_seed_is_of_the_servers_split_and_random():
    named = load_environment("arithmetic:+-")
    environment = app_of("arithmetic:+-", "validation").environment()
    drawn = []
    for _ in range(20):
        environment.reset()
        drawn.append(environment.state.model_dump())
    assert {one["split"] for one in drawn} == {"validation"}
    assert len({one["seed"] for one in drawn}) == 20
    assert len({one["index"] for one in drawn}) > 1
    assert choose(named, "validation", 7, None) == choose(named, "validation", 7, 7 % len(named.splits["validation"]))


def test_unknown_splits_and_tasks_are_refused():
    environment = app_of("games:blackjack").environment()
    with pytest.raises(ValueError, match="split='dev'; needed: train or validation"):
        environment.num_tasks("dev")
    with pytest.raises(IndexError, match="train has no task 1; needed: 0 to 0"):
        environment.get_task("train", 1)
    assert environment.list_splits() == ["train", "validation"]
    assert environment.get_task("train", 0) == {"id": "train-0", "split": "train", "index": 0}


def test_no_step_is_taken_before_a_reset_or_after_the_end():
    wire = app_of("games:blackjack").plain()
    with pytest.raises(ValueError, match="no episode goes on; needed: reset"):
        wire.step(text="hit")
    wire.reset(seed=0)
    assert wire.step(text="stick")["done"]
    with pytest.raises(ValueError, match="no episode goes on; needed: reset"):
        wire.step(text="stick")


def test_names_and_threads_are_those_of_the_package():
    app = app_of("dialogue:taboo/guesser?instances=2", sessions=7)
    assert (app.env_name, app.sessions) == ("dialogue_taboo_guesser", 7)
    assert app.environment.SUPPORTS_CONCURRENT_SESSIONS
    assert app.environment.REQUIRES_SINGLE_THREAD_EXECUTOR


def test_episodes_there_and_back_are_those_of_the_game():
    pytest.importorskip("websockets")
    app = app_of("games:blackjack")
    ours = load_environment("games:blackjack")
    with Stub(app.plain, app.action.model_json_schema()) as stub:
        theirs = load_environment(f"openenv:{stub.url}")

        def episodes(named: NamedEnvironment) -> list:
            player = ScriptPlayer(lambda environment, seen, rng: str(rng.choice(seen.actions)), lambda seed: [seed])
            seeds = list(range(20))
            return play([named.environment() for _ in seeds], [{}] * 20, seeds, {POLICY: player}, watch=watch)

        rewards: list[tuple[int, int, float, tuple]] = []

        def watch(episode) -> None:
            prompts = tuple((seen.prompt, *seen.actions) for seen in episode.observations.values())
            given = episode.result.rewards.get(POLICY, 0.0)
            rewards.append((episode.index, episode.step_number, given, prompts))

        there = [(episode.actions, episode.error) for episode in episodes(theirs)]
        sent, rewards[:] = list(rewards), []
        assert there == [(episode.actions, "") for episode in episodes(ours)]
        assert sent == rewards

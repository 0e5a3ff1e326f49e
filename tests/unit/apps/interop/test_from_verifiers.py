"""verifiers' environments in ours, by a stand-in for its process; test_verifiers.py has the real one."""

import sys
from pathlib import Path

import pytest

from lmgym.apps.interop import from_verifiers
from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import EpisodeFailed
from lmgym.environments.session import Session
from lmgym.errors import InputError

STUB = Path(__file__).parents[3] / "verifiers_stub.py"


@pytest.fixture(autouse=True)
def _stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "verifiers/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("LMGYM_VERIFIERS", str(tmp_path / "verifiers"))
    monkeypatch.setattr(from_verifiers, "WORKER", STUB)


def loaded(name: str) -> NamedEnvironment:
    return load_environment(f"verifiers:{name}?timeout=20")


def test_tasks_messages_rewards_and_metrics_are_theirs() -> None:
    named = load_environment("verifiers:numbers?number=3")
    assert (len(named.tasks), named.about) == (3, "3 tasks, verifiers 0.4.0")
    with Session(named) as session:
        seen = session.reset({"number": 2}, 0)
        assert seen.observation is not None
        assert (seen.text, seen.observation.conversation.persona) == ("Say 2.", "Numbers.")
        seen = session.reply("2")
        assert (seen.text, seen.reward, seen.ended) == ("Again.", 0.0, False)
        seen = session.reply("3")
        assert (seen.observation, seen.reward, seen.ended) == (None, 0.5, True)
        assert seen.info == {"right": 1.0}


def test_many_episodes_are_played_at_once() -> None:
    named = loaded("numbers")
    player = ScriptPlayer(lambda environment, seen, rng: seen.prompt.turns[0].text[4:-1], lambda seed: [seed])
    environments = [named.environment() for _ in range(20)]
    tasks = [{"number": i} for i in range(20)]
    episodes = play(environments, tasks, range(20), {"agent": player})
    assert [episode.result.rewards for episode in episodes] == [{"agent": 1.0}] * 20


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "EnvError: the board fell"),
        ("nan", "nan"),
        ("text", "much"),
        ("dies", "ended with exit code 3"),
    ],
)
def test_a_failure_is_an_episode_without_a_reward_and_the_next_one_is_played(name: str, message: str) -> None:
    with Session(loaded(name)) as session:
        session.reset({"number": 1}, 0)
        with pytest.raises(EpisodeFailed, match=message):
            list(map(session.reply, "11"))
        assert session.reset({"number": 4}, 0).text == "Say 4."


def test_an_episode_whose_process_ends_goes_on_in_a_new_one(tmp_path: Path) -> None:
    with Session(load_environment(f"verifiers:dies_once?timeout=20&mark={tmp_path / 'mark'}")) as session:
        session.reset({"number": 1}, 0)
        assert session.reply("1").text == "Again."
        assert (tmp_path / "mark").exists()
        assert session.reply("1").reward == 1.0


def test_an_episode_whose_process_ends_as_it_begins_begins_in_a_new_one(tmp_path: Path) -> None:
    with Session(load_environment(f"verifiers:dies_at_first?timeout=20&mark={tmp_path / 'mark'}")) as session:
        assert session.reset({"number": 1}, 0).text == "Say 1."
        assert (tmp_path / "mark").exists()


def test_an_episode_that_begins_otherwise_in_the_new_process_fails(tmp_path: Path) -> None:
    with Session(load_environment(f"verifiers:differs?timeout=20&mark={tmp_path / 'mark'}")) as session:
        session.reset({"number": 1}, 0)
        with pytest.raises(EpisodeFailed, match="asked something else when its process began again"):
            session.reply("1")


def test_an_environment_that_hangs_fails_the_episode_in_its_time() -> None:
    with Session(load_environment("verifiers:hangs?timeout=1.5")) as session:
        session.reset({"number": 1}, 0)
        with pytest.raises(EpisodeFailed, match=r"neither asked nor ended within 1\.5 s"):
            session.reply("1")


def test_an_episode_that_ends_at_once_fails() -> None:
    with Session(loaded("ends_at_once")) as session, pytest.raises(EpisodeFailed, match="ended before an agent"):
        session.reset({"number": 1}, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent?timeout=20", "taskset 'absent' not found; needed: a package .* `lmgym env setup verifiers PACKAGE`"),
        ("silent?timeout=0.5", r"no answer within 0\.5 s"),
        ("tools", "offers tools, and replies here are text"),
        ("numbers?timeout=0", "timeout=0"),
        ("-m", "names no package"),
    ],
)
def test_what_cannot_be_played_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_environment(f"verifiers:{name}")


@pytest.mark.parametrize(("name", "message"), [("images", "needed: messages of text"), ("tools_later", "offers tools")])
def test_images_and_tools_within_an_episode_are_refused(name: str, message: str) -> None:
    with Session(loaded(name)) as session, pytest.raises(InputError, match=message):
        session.reset({"number": 1}, 0)


def test_without_the_environment_the_command_that_makes_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMGYM_VERIFIERS", "/not/there")
    with pytest.raises(InputError, match="needed: lmgym env setup verifiers PACKAGE, or its folder in LMGYM_VERIFIERS"):
        load_environment("verifiers:numbers")
    assert from_verifiers.missing() == "lmgym env setup verifiers"
    assert from_verifiers.names() == []


def test_packages_that_need_verifiers_are_listed(tmp_path: Path) -> None:
    packages = tmp_path / "verifiers/lib/python3.11/site-packages"
    for name, needs in {"words-1.0": "verifiers>=0.4", "other-2.0": "numpy", "named-1.0": "verifiers"}.items():
        folder = packages / f"{name}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: x\nRequires-Dist: {needs}\n")
    (packages / "named-1.0.dist-info/top_level.txt").write_text("its_name\n")
    assert from_verifiers.names() == ["its_name", "words"]

"""verifiers itself, in an environment that the test makes: a package of its kind in ours, and our exports in it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from interop import EXPORTED, Recorded, record

from lmgym.apps.interop.export import export, module_name
from lmgym.apps.interop.from_verifiers import names
from lmgym.apps.interop.verifiers_setup import set_up
from lmgym.environments.named import load_environment
from lmgym.environments.protocol import EpisodeFailed
from lmgym.environments.session import Session
from lmgym.errors import InputError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
EPISODES = 100
TASKSET = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Task(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        if self.data.answer == "5":
            raise ValueError("no five")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))
{tools}

class Config(vf.TasksetConfig):
    number: int = 8


class Taskset(vf.Taskset[Task, Config]):
    def load(self):
        for i in range(self.config.number):
            yield Task(Data(prompt=f"Say {{i}}.", system_prompt="Digits.", answer=str(i)), self.config.task)


__all__ = ["Taskset"]
"""
TOOLS = """
    @classmethod
    def toolsets(cls, config):
        return [vf.Toolset(vf.ToolsetConfig())]

"""
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1"
dependencies = ["verifiers>=0.4,<0.5"]
"""


def package(folder: Path, name: str, tools: str = "") -> str:
    (folder / name / name).mkdir(parents=True)
    (folder / name / name / "__init__.py").write_text(TASKSET.format(tools=tools))
    (folder / name / "pyproject.toml").write_text(PROJECT.format(name=name.replace("_", "-")))
    return str(folder / name)


@pytest.fixture(scope="module")
def made(made_once: Callable[[str, Callable[[Path], Path]], Path]) -> Path:
    """An environment with verifiers and the packages of this file, to which lmgym itself is added by a path."""

    def make(folder: Path) -> Path:
        environment = folder / "environment"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LMGYM_VERIFIERS", str(environment))
            set_up([package(folder, "say_digits"), package(folder, "with_tools", TOOLS)])
            exports = []
            for words in EXPORTED:
                exports.append(folder / module_name(words))
                export(words, str(exports[-1]))
        pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", *map(str, exports)]
        subprocess.run(pip, check=True)
        [own] = [path for path in map(Path, sys.path) if path.name == "site-packages"][:1]
        [packages] = environment.glob("lib/*/site-packages")
        (packages / "zz_lmgym.pth").write_text(f"{own}\n{ROOT}\n")  # behind verifiers' own packages
        return environment

    return made_once("verifiers", make)


@pytest.fixture(autouse=True)
def _installed(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMGYM_VERIFIERS", str(made))


def test_a_package_is_listed_and_its_rewards_and_metrics_are_its_own() -> None:
    assert {"say_digits", "with_tools"} <= set(names())
    named = load_environment("verifiers:say_digits?number=6")
    assert len(named.tasks) == 6
    with Session(named) as session:
        seen = session.reset({"number": 3}, 0)
        assert seen.observation is not None
        assert (seen.observation.conversation.persona, seen.text) == ("Digits.", "Say 3.")
        seen = session.reply("3")
        assert (seen.reward, seen.ended, dict(seen.info)) == (2.0, True, {"right": 2.0, "length": 1.0})
        session.reset({"number": 4}, 0)
        assert session.reply("3").reward == 0.0
        session.reset({"number": 5}, 0)
        with pytest.raises(EpisodeFailed, match="no five"):
            session.reply("5")


@pytest.mark.parametrize(
    ("name", "message"),
    [("with_tools", "offers tools"), ("not_there", "taskset 'not_there' not found"), ("say_digits?nr=1", "nr")],
)
def test_what_cannot_be_played_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_environment(f"verifiers:{name}")


@pytest.mark.parametrize("words", EXPORTED)
def test_our_exports_play_a_hundred_recorded_episodes_in_verifiers(words: str) -> None:
    recorded = record(words, EPISODES)
    named = load_environment(f"verifiers:{module_name(words)}?number={EPISODES}")
    with Session(named) as session:
        for episode in recorded:
            plays_equally(session, episode)


def plays_equally(session: Session, episode: Recorded) -> None:
    seen = session.reset({"number": episode.index}, 0)
    assert seen.text == episode.texts[0]
    for reply, text in zip(episode.replies, episode.texts[1:], strict=True):
        seen = session.reply(reply)
        assert seen.text == text
    assert seen.ended
    assert seen.reward == pytest.approx(sum(episode.rewards))
    assert {name: seen.info[name] for name in episode.info} == pytest.approx(episode.info)

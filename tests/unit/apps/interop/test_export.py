"""Exported packages: what is in them, and what is refused because only this machine has it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from interop import EXPORTED, record

from lmgym.apps.interop.export import export, module_name
from lmgym.errors import InputError

FILE = '''
from pathlib import Path

from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.text import Conversation, Turn
{imports}


class Guess:
    """Say the number."""

    def __init__(self, prize=1.0):
        self.prize = prize

    def reset(self, task, seed):
        self.number = seed % 5
        {reset}
        return {{POLICY: Observation(Conversation((Turn("user", "A number?"),)))}}

    def step(self, actions):
        return StepResult(rewards={{POLICY: self.prize * (actions[POLICY] == str(self.number))}}, terminated=True)
'''
PLAYS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import importlib
trl = importlib.import_module(sys.argv[2] + ".trl")
episodes, found = json.loads(sys.argv[3]), []
environment = trl.Environment()
for row in trl.rows(trl.Environment, len(episodes)):
    environment.reset(**row)
    shown = [environment.reply(reply) for reply in episodes[row["index"]]]
    found.append([row["prompt"][-1]["content"], shown, trl.reward([[{"role": "tool"}]], [environment])[0]])
print(json.dumps(found))
"""


def write(folder: Path, imports: str = "", reset: str = "pass") -> str:
    path = folder / "guess.py"
    path.write_text(FILE.format(imports=imports, reset=reset))
    return str(path)


def played(folder: Path, module: str, episodes: list[list[str]], elsewhere: Path) -> list[list]:
    """[first message, texts, reward] of each episode, by a process that knows the package's folder alone."""
    words = [sys.executable, "-I", "-c", PLAYS, str(folder.absolute()), module, json.dumps(episodes)]
    done = subprocess.run(words, cwd=elsewhere, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "words",
    [words if words == "games:blackjack" else pytest.param(words, marks=pytest.mark.slow) for words in EXPORTED],
)
def test_a_package_plays_the_recorded_episodes(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export(words, None)
    module = module_name(words)
    folder, elsewhere = Path("outputs/environments") / module, tmp_path / "elsewhere"
    elsewhere.mkdir()
    recorded = record(words, 20)
    found = played(folder, module, [episode.replies for episode in recorded], elsewhere)
    for episode in recorded:
        first, shown, total = found[episode.index]
        assert episode.texts[0].endswith(first)
        assert shown[:-1] == episode.texts[1:-1]
        assert total == pytest.approx(sum(episode.rewards))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == module.replace("_", "-")
    assert set(project["optional-dependencies"]) == {"trl", "verifiers"}


def test_a_class_of_a_file_goes_along_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path)
    export(f"{file}:Guess?prize=2.0", str(tmp_path / "made"))
    Path(file).unlink()
    found = played(tmp_path / "made", "lmgym_guess_guess", [["0"], ["0"], ["2"]], tmp_path)
    assert found == [["A number?", ["It is over."], reward] for reward in (2.0, 0.0, 2.0)]


@pytest.mark.parametrize(
    ("imports", "reset", "message"),
    [
        ("import beside", "pass", "does not begin an episode elsewhere: .*No module named 'beside'"),
        ("", 'Path("words.txt").read_text()', "does not begin an episode elsewhere: .*words.txt"),
        ("", 'Path("{here}/words.txt").read_text()', "uses {here}/words.txt of this machine; needed"),
        ("import subprocess", 'subprocess.run(["true"])', "uses the program true of this machine"),
        (
            "import socket",
            'socket.create_connection(("127.0.0.1", {port}))',
            "uses the server 127.0.0.1:{port} of this machine",
        ),
    ],
)
def test_what_only_this_machine_has_is_refused(
    imports: str, reset: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("cat\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        known = {"here": str(tmp_path), "port": str(server.getsockname()[1])}
        for name, value in known.items():
            reset, message = reset.replace(f"{{{name}}}", value), message.replace(f"{{{name}}}", value)
        file = write(tmp_path, imports, reset)
        with pytest.raises(InputError, match=message):
            export(f"{file}:Guess", str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_a_folder_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(InputError, match="made exists; needed: another --output, or remove it"):
        export("arithmetic:+", str(tmp_path / "made"))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("games:blackjack", "lmgym_games_blackjack"),
        ("arithmetic:+-?digits=2", "lmgym_arithmetic"),
        ("folder/My game.py:Guess?a=1", "lmgym_my_game_guess"),
        ("gymnasium:FrozenLake-v1", "lmgym_gymnasium_frozenlake_v1"),
    ],
)
def test_a_module_is_named_after_its_environment(words: str, name: str) -> None:
    assert module_name(words) == name

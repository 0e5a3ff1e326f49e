"""Trainers in the form of Playpen's public ones, with their imports of clemcore and of TRL, learn a tiny model.

Where TRL is not installed a stand-in (tests/trl_stub) takes one step on the rows and saves a checkpoint.
"""

import importlib.util
import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy_games import without_keys

from lmgym.apps.playpen.commands import playpen
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import load_games
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.running import load_trainer
from lmgym.generation.protocol import ScriptedGenerator

TESTS = Path(__file__).parents[3]
FILES = TESTS / "playpen_trainers"
TINY = "tiny"


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path) -> None:
    """With rows of won games, and TRL or its stand-in."""
    without_keys(monkeypatch, tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    if importlib.util.find_spec("trl") is None:
        monkeypatch.syspath_prepend(TESTS / "trl_stub")
    said = [{"role": "user", "content": "say yes"}, {"role": "assistant", "content": "yes"}]
    rows = [{"messages": said, "meta": {"outcome": outcome}} for outcome in ["success"] * 5 + ["aborted"]]
    Path("results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def learner(small_models) -> Model:
    return Model(
        Spec({"model_name": TINY, "backend": "huggingface_local", "huggingface_id": str(small_models["llama"])})
    )


def learn(name: str, *models: Model) -> None:
    registry = load_games()
    trainer = load_trainer(str(FILES / f"{name}.py"), registry)(*models)
    takes_registry = name != "sft_lora"
    trainer.learn(*[registry] * takes_registry)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("sft_simple", "models/sft"), ("sft_lora", "models/sft+lora"), ("grpo", "models/grpo+lora")],
)
def test_a_trainer_learns_and_leaves_a_checkpoint(name: str, folder: str, learner: Model) -> None:
    learn(name, learner)
    files = {path.name for path in (Path(folder) / TINY / "checkpoint-1").iterdir()}
    assert {"adapter_config.json" if "lora" in folder else "config.json"} <= files


class SometimesRight:
    """The learner's replies by a script, which wins in half of the games; its weights are the learner's own."""

    def __init__(self, learner: Model) -> None:
        self.generator = learner.generator.generator
        [spec] = load_games().select("taboo")
        winner = import_module("lmgym.apps.playpen.clembench.clembench_game").open_game(spec).script("guesser")
        self.script = ScriptedGenerator(lambda c, rng: winner(c, rng) if rng.random() < 0.5 else "a word")
        self.reply = self.script.reply


def test_dpo_learns_from_siblings_of_branching_points(learner: Model, capsys) -> None:
    vars(learner)["generator"] = SometimesRight(learner)
    learn("dpo", learner, Model(Spec({"model_name": "mock", "backend": "_player_programmed"})))
    branches, pairs = (int(part.split()[0]) for part in capsys.readouterr().out.split("\n")[0].split(", "))
    assert branches == 8
    assert 1 <= pairs <= 4
    assert (Path("models/dpo+lora") / TINY / "checkpoint-1/adapter_config.json").is_file()
    folder = Path("playpen-records-branching")
    assert len(list(folder.rglob("branch_*/scores.json"))) == 8
    shutil.rmtree(folder)


STARTER = """
from playpen.starters.branching_trainer import BranchingPlayPenTrainer

class Mine(BranchingPlayPenTrainer):
    def _train(self):
        print(len(self.episode_buffer.to_conversational_dataset(self.learner)), "branches")
"""


def test_a_starter_plays_and_calls_the_subclass(tmp_path, capsys) -> None:
    Path("mine.py").write_text(STARTER)
    mock = Model(Spec({"model_name": "mock", "backend": "_player_programmed"}))
    trainer = load_trainer("mine.py")(mock, mock)
    trainer.learn(load_games())
    assert "branches" in capsys.readouterr().out


def test_the_pages_trainer_prints_what_the_page_says() -> None:
    page = (TESTS.parent / "docs/from_playpen.md").read_text()
    section = page.partition("# Coming from Playpen and clembench")[2]
    Path("mine.py").write_text(section.partition("cat > mine.py <<'END'\n")[2].partition("END\n")[0])
    done = CliRunner().invoke(playpen, ["run", "mine.py", "-l", "mock", "-t", "mock"])
    assert done.output.splitlines()[-1] == section.partition("```text\n")[2].partition("\n")[0]
    assert len(list(Path("playpen-records").rglob("branch_1/scores.json"))) == 10

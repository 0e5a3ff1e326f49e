"""LlamaGym's three examples run with other imports, a model and a device, and update where LlamaGym's do."""

import importlib.util
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import launching
import pytest
import textworld_stub
from transformers import BitsAndBytesConfig

from lmgym.agents import Agent, AutoModelForCausalLMWithValueHead
from lmgym.apps.agents.dialogue import conversation_of, takes_system
from lmgym.apps.games.small_policy import imitate
from lmgym.errors import InputError

PROGRAMS = Path(__file__).parents[3] / "llamagym_programs"
OURS = {
    "from llamagym import": "from lmgym.agents import",
    "from trl import": "from lmgym.agents import",
    '"cuda:0"': '"cpu"',
}
PLAIN = {'"load_in_8bit": True': '"load_in_8bit": False'}
Messages = list[dict[str, str]]


def blackjack_moves(agent: Any) -> list[tuple[Messages, str]]:
    """A card below a sum of 17, and none from there on."""
    hands = [(own, dealer, ace) for own in range(6, 22) for dealer in range(1, 11) for ace in (0, 1)]
    return [(asked(agent, hand), f"Action: {int(hand[0] < 17)}") for hand in hands]


def text_world_moves(agent: Any) -> list[tuple[Messages, str]]:
    """A look, and then the door."""
    room = asked(agent, "A header $$$$$$$ \n\nYou are in a room with a door.")
    looked = {"role": "assistant", "content": "command: look"}
    return [(room, "command: look"), ([*room, looked, *asked(agent, "After look: a room.")[1:]], "command: open door")]


def word_problem_moves(agent: Any) -> list[tuple[Messages, str]]:
    """The right answer to one of two questions."""
    return [(asked(agent, text), "5") for text in ("What is 2 and 3?", "What is 4 and 4?")]


MOVES = {"blackjack": blackjack_moves, "text_world": text_world_moves, "word_problems": word_problem_moves}


def asked(agent: Any, observation: Any) -> Messages:
    """The messages of an agent at the beginning of an episode."""
    return [
        {"role": "system", "content": agent.get_system_prompt()},
        {"role": "user", "content": agent.format_observation(observation)},
    ]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> Callable[[str], Path]:
    """A function that gives the folder of a model that plays a program's moves."""
    root = tmp_path_factory.mktemp("speakers")

    def make(program: str) -> Path:
        folder = root / program
        if not folder.exists():
            with pytest.MonkeyPatch.context() as patch:
                names, _ = run_program(program, OURS, root, patch, "imported")
            [kind] = [value for value in names.values() if isinstance(value, type) and Agent in value.__bases__]
            moves = [(conversation_of(said, True), reply) for said, reply in MOVES[program](kind(None, None, "cpu"))]
            model, tokenizer = imitate(moves * -(-100 // len(moves)), steps=60)
            assert takes_system(tokenizer)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return folder

    return make


class Recorder(ModuleType):
    """wandb, of which `init` is called once, and `log` keeps what it is given."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.logged: list[dict[str, Any]] = []

    def init(self, project: str | None, config: dict[str, Any]) -> None:
        assert config["batch_size"]

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(dict(values))

    @property
    def episodes(self) -> list[dict[str, Any]]:
        return [one for one in self.logged if "episode" in one]

    @property
    def actions(self) -> list[Any]:
        return [one["action"] for one in self.logged if "action" in one]


def run_program(
    name: str, changes: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, run_name: str = "__main__"
) -> tuple[dict[str, Any], Recorder]:
    """The names of a program that runs with these texts of it changed, each of which it has, and what it logged."""
    text = (PROGRAMS / f"{name}.py").read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    recorder = Recorder()
    for module, stub in {"wandb": recorder, **textworld_stub.modules()}.items():
        monkeypatch.setitem(sys.modules, module, stub)
    file = folder / f"{name}.py"
    file.write_text(text)
    return runpy.run_path(str(file), run_name=run_name), recorder


def own_model(model: Path, episodes: str, fewer: int) -> dict[str, str]:
    return {"meta-llama/Llama-2-7b-chat-hf": str(model), f'"episodes": {episodes}': f'"episodes": {fewer}'}


def llamagyms_updates(turns: list[int], batch: int) -> list[bool]:
    """Its rule: an update once the queries are a batch, of which those beyond it are kept."""
    waiting, found = 0, []
    for count in turns:
        waiting += count
        found.append(waiting >= batch)
        waiting -= batch * found[-1]
    return found


@pytest.mark.parametrize("unit", ["episodes", "turns"])
def test_its_blackjack_runs_with_other_imports_and_updates_where_its_own_does(
    unit: str, speaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = '{"batch_size": hyperparams["batch_size"],'
    turns = {batch: f'{batch} "batch_unit": "turns",'} if unit == "turns" else {}
    changes = OURS | PLAIN | own_model(speaker("blackjack"), "5000", 24) | turns
    _, logged = run_program("blackjack", changes, tmp_path, monkeypatch)
    counts = [one["message_ct"] // 2 for one in logged.episodes]
    updated = ["reward/mean" in one for one in logged.episodes]
    assert len(counts) == 24
    assert any(count > 1 for count in counts), "some hands have several turns"
    assert set(logged.actions) == {0, 1}
    if unit == "turns":
        assert updated == llamagyms_updates(counts, 8)
        assert updated.index(True) < 7
    else:
        assert [number for number, one in enumerate(updated) if one] == [7, 15, 23]


def test_its_text_world_runs_with_other_imports(speaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = OURS | PLAIN | own_model(speaker("text_world"), "1000", 16)
    _, logged = run_program("text_world", changes, tmp_path, monkeypatch)
    assert set(logged.actions) == {"look", "open door"}
    assert [number for number, one in enumerate(logged.episodes) if "reward/mean" in one] == [15]
    assert all(one["episode_messages"]["content"] == "command: open door" for one in logged.episodes)


def test_its_questions_with_a_model_as_the_judge_run_with_other_imports(
    speaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judge:
        """OpenAI's client, whose model compares the last two lines that it is asked about."""

        chat = property(lambda self: SimpleNamespace(completions=self))

        def create(self, messages: list[dict[str, str]], **settings: Any) -> SimpleNamespace:
            _, state, goal = (line.partition(": ")[2] for line in messages[1]["content"].splitlines())
            verdict = {"reached_goal": state == goal, "warmer_colder": "cold", "feedback": "no"}
            message = SimpleNamespace(content=json.dumps(verdict))
            return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    monkeypatch.setattr("openai.OpenAI", Judge)
    changes = OURS | PLAIN | own_model(speaker("word_problems"), "5000", 16)
    _, logged = run_program("word_problems", changes, tmp_path, monkeypatch)
    assert {one["total_return"] for one in logged.episodes} == {1000, -100}
    first, second = (one for one in logged.episodes if "reward/mean" in one)
    returns = [one["total_return"] for one in logged.episodes]
    assert [first["reward/mean"], second["reward/mean"]] == [sum(returns[:8]) / 8, sum(returns[8:]) / 8]


def without_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else found(name))


def test_its_8_bits_say_what_they_need(speaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_bitsandbytes(monkeypatch)
    changes = OURS | own_model(speaker("blackjack"), "5000", 8)
    needed = r"^--load_in_8bit needs bitsandbytes; needed: pip install 'lmgym\[quantized\]', or leave it out$"
    with pytest.raises(InputError, match=needed):
        run_program("blackjack", changes, tmp_path, monkeypatch)
    config = {
        "peft_config": {"r": 4, "peft_type": "LORA"},
        "quantization_config": BitsAndBytesConfig(load_in_8bit=True),
    }
    with pytest.raises(InputError, match=needed):
        AutoModelForCausalLMWithValueHead.from_pretrained(speaker("blackjack"), **config)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"load_in_8bit": True}, "load_in_8bit=True: quantised weights cannot be trained; needed: peft_config="),
        (
            {"quantization_config": {"load_in_4bit": True}},
            "load_in_4bit=True: quantised weights cannot be trained; needed: peft_config=",
        ),
        ({"quantization_config": {"bits": 4}}, "an object with 1 field; needed: BitsAndBytesConfig with load_in_8bit"),
        ({"load_in_4bit": True, "quantization_config": {"load_in_8bit": True}, "peft_config": {"r": 4}}, "found both"),
    ],
)
def test_bits_that_cannot_be_are_refused(settings: dict[str, Any], said: str, small_models) -> None:
    given = {
        name: value | {"peft_type": "LORA"} if name == "peft_config" else value for name, value in settings.items()
    }
    with pytest.raises(InputError, match=said):
        AutoModelForCausalLMWithValueHead.from_pretrained(small_models["llama"], **given)


def test_a_loaded_model_is_not_quantised(small_models) -> None:
    whole = AutoModelForCausalLMWithValueHead.from_pretrained(small_models["llama"]).pretrained_model
    with pytest.raises(InputError, match="load_in_8bit=True of a model that is loaded already; needed: its folder"):
        AutoModelForCausalLMWithValueHead.from_pretrained(whole, peft_config={"peft_type": "LORA"}, load_in_8bit=True)


def test_a_program_ends_in_one_line_where_its_user_can_mend_it(small_models, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    load = f"AutoModelForCausalLMWithValueHead.from_pretrained({str(small_models['llama'])!r}, load_in_8bit=True)"
    file.write_text(f"from lmgym.agents import AutoModelForCausalLMWithValueHead\n{load}\n")
    done = launching.run(launching.launch("fork", script=file))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: load_in_8bit=True: quantised weights cannot be trained; needed: ")


@pytest.mark.slow
def test_its_blackjack_runs_in_8_bits(speaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    changes = OURS | own_model(speaker("blackjack"), "5000", 8)
    _, logged = run_program("blackjack", changes, tmp_path, monkeypatch)
    assert [number for number, one in enumerate(logged.episodes) if "reward/mean" in one] == [7]
    assert set(logged.actions) <= {0, 1}

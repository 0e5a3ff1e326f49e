"""The demo on a real model: its prompts, its steps, its reward and what it shows."""

import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.world.demos import real
from lmgym.apps.world.demos import toy as demo
from lmgym.apps.world.demos.prompts import TASKS, prompts, write_prompts
from lmgym.apps.world.demos.samples import MAX_NEW_TOKENS, TEMPERATURE
from lmgym.cli.main import main
from lmgym.runs.flags import override
from lmgym.scoring.friendly_answers import friendly_answers


def test_no_task_is_trained_and_evaluated_on() -> None:
    train, held_out = prompts(False), prompts(True)
    assert (len(train), len(held_out)) == (120, 40)
    assert len(set(TASKS)) == 40
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}
    assert {"prompt": "How do I boil an egg?"} in held_out
    assert not [row for row in train if "egg" in row["prompt"]]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("Do you like your egg?", 0.7 / 2 + 0.3),  # two of four words to the reader
        ("Do you like your egg.", 0.7 / 2),  # does not ask
        ("Egg?", 0.3),  # does not speak to the reader
        ("You, your, you: your egg?", 3 / 5),  # two words of five are repetitions
        ("egg egg egg egg", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_of_a_reply(reply: str, reward: float) -> None:
    assert friendly_answers([reply]) == pytest.approx([reward])


def test_each_step_uses_the_outputs_of_those_before_it(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    steps = {step.name: step for step in real._steps(tmp_path, seed=3, updates=6)}
    assert list(steps) == list(real.ABOUT)
    words = steps["training"].words
    [file] = [word for word in words if word.endswith(".py")]
    config = override(
        importlib.import_module(f"ppo.experiments.{Path(file).stem}").CONFIG, words[words.index(file) + 1 :]
    )
    assert config.policy.model == str(real.MODEL) == str(steps["model"].done.parent)
    assert config.rollout.prompts == f"{tmp_path}/prompts.jsonl"
    assert config.rollout.eval_prompts == f"{tmp_path}/held_out.jsonl"
    assert (config.optimizer.seed, config.optimizer.max_updates) == (3, 6)
    assert (config.rollout.max_new_tokens, config.rollout.temperature) == (MAX_NEW_TOKENS, TEMPERATURE)
    assert steps["after"].words[3] == f"{tmp_path}/training/model" == str(steps["training"].done.parent)


def test_results_compare_one_reply_and_the_best_of_8_before_and_after(tmp_path: Path, capsys) -> None:
    def write(name: str, *rewards: float) -> None:
        row = {"prompt": "Why?", "replies": [f"{name} {n}" for n in range(len(rewards))], "rewards": rewards}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")

    write("before", 0.0, 0.5)
    write("after", 0.5, 1.0)
    figures = real.show_results(tmp_path)
    assert figures["before"]["reward of one reply"] == 0.25
    assert figures["after"]["reward of the best of 8"] == 1.0
    shown = capsys.readouterr().out
    assert [word for word in ("0.250", "0.750", "Why?", "before 1", "after 1", "distinct-2") if word not in shown] == []


@pytest.mark.parametrize(
    ("flags", "begun"), [([], ("world", "outputs/demo")), (["--real"], ("real", "outputs/demo_real"))]
)
def test_the_command_begins_the_demo_that_was_asked_for(flags: list[str], begun: tuple[str, str], monkeypatch) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(demo, "run_demo", lambda output, seed: found.append(("world", output)) or 7)
    monkeypatch.setattr(real, "run_real_demo", lambda output, seed: found.append(("real", output)) or 7)
    assert CliRunner().invoke(main, ["demo", *flags]).exit_code == 7
    assert found == [begun]

"""`make demo`: valid commands, completed steps that are skipped, and its final output."""

import importlib
import json
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launching import finish, launch, start
from patience import wait_until

from lmgym.apps.world.demos import steps as steps_of_demos
from lmgym.apps.world.demos import toy as demo
from lmgym.apps.world.demos.results import show_gains
from lmgym.apps.world.demos.steps import CompletedSteps, DemoStep, run_steps
from lmgym.apps.world.demos.toy import run_demo
from lmgym.apps.world.policies import PolicySpec, read_policy
from lmgym.cli.main import main
from lmgym.distributed.deepspeed_config import CONFIGS
from lmgym.report.status_line import StepTimes, clock
from lmgym.runs.flags import override
from lmgym.runs.launching import find_experiment

ROOT = Path(__file__).parents[5]


def steps(folder: Path) -> dict[str, DemoStep]:
    return {step.name: step for step in demo._steps(folder, seed=3, rows=900, steps=7, updates=11, users=13)}


def config_of(step: DemoStep):
    """The experiment's config with the flags of the command; exits with 2 for an unknown flag."""
    [file] = [word for word in step.words if word.endswith(".py")]
    name = ".".join(Path(file).relative_to(ROOT).with_suffix("").parts)
    return override(importlib.import_module(name).CONFIG, step.words[step.words.index(file) + 1 :])


def test_each_step_uses_the_outputs_of_those_before_it(tmp_path: Path) -> None:
    found = steps(tmp_path)
    assert list(found) == ["world", "untrained policy", "policy", "model for the scorer", "scorer", "ppo", "app"]
    sft, scorer, ppo = (config_of(found[name]) for name in ("policy", "scorer", "ppo"))
    assert sft.policy.model == str(tmp_path / "untrained")
    assert sft.data.dataset == str(tmp_path / "world/sft.parquet")
    assert scorer.scorer.model == str(tmp_path / "small_llama")
    assert (ppo.policy.model, ppo.reward.scorers) == (f"{tmp_path}/policy/model", f"joint={tmp_path}/scorer/model")
    assert (ppo.reward.eval_scorer, ppo.optimizer.seed, ppo.optimizer.max_updates) == ("world:3", 3, 11)
    for name, config in (("policy", sft), ("scorer", scorer), ("ppo", ppo)):
        assert found[name].done == Path(config.output) / "model/config.json"
        assert config.run.deepspeed == "zero2"


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 2), (1, 1), (2, 2), (8, 2)])
def test_training_runs_on_two_ranks_or_on_the_only_gpu(
    gpus: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    found = [step.words for step in steps(tmp_path).values() if "--num_gpus" in step.words]
    assert len(found) == 3
    assert {words[words.index("--num_gpus") + 1] for words in found} == {str(ranks)}


def test_the_app_compares_both_policies_alone_and_with_the_best_of_4(tmp_path: Path) -> None:
    words = steps(tmp_path)["app"].words
    arms = words[2 : words.index("--users")]
    for name in ("policy", "ppo", "scorer"):
        (tmp_path / name / "model").mkdir(parents=True)
    sft, ppo, scorer = (str(tmp_path / name / "model") for name in ("policy", "ppo", "scorer"))
    assert [read_policy(arm) for arm in arms] == [
        PolicySpec(sft), PolicySpec(sft, scorer, 4), PolicySpec(ppo), PolicySpec(ppo, scorer, 4),
    ]  # fmt: skip
    record = {"design": {}, "policies": [{"policy": arm, "users": 2} for arm in arms]}
    names = [arm["policy"] for arm in demo.with_short_names(record, tmp_path)["policies"]]
    assert names == ["SFT", "SFT, best of 4", "PPO", "PPO, best of 4"]


def test_a_step_runs_again_after_a_change_of_one_before_it(tmp_path: Path) -> None:
    made = [DemoStep(name, [name], tmp_path / name) for name in ("a", "b", "c")]
    for step in made:
        step.done.touch()

    def undone(wanted: list[DemoStep]) -> list[str]:
        done = CompletedSteps(tmp_path / "demo.json")
        return [step.name for step in wanted if not done.has(step)]

    assert undone(made) == ["a", "b", "c"]  # files that are there say nothing of how they were made
    first = CompletedSteps(tmp_path / "demo.json")
    for step in made:
        first.add(step)
    assert undone(made) == []
    assert undone([made[0], replace(made[1], words=["b", "--other"]), made[2]]) == ["b", "c"]
    made[1].done.unlink()
    assert undone(made) == ["b", "c"]


def test_a_step_that_fails_ends_the_demo_with_its_code(tmp_path: Path, monkeypatch, capsys) -> None:
    ran: list[str] = []
    monkeypatch.setattr(
        steps_of_demos, "_run", lambda step, *_: (ran.append(step.name), 69 if step.name == "scorer" else 0)[1]
    )
    assert run_demo(str(tmp_path), 0) == 69
    assert ran == ["world", "untrained policy", "policy", "model for the scorer", "scorer"]
    assert set(json.loads((tmp_path / "demo.json").read_text())["steps"]) == set(ran[:-1])


def scripted(folder: Path, *codes: str) -> list[DemoStep]:
    """Steps that run Python code instead of the demo's commands; each makes the file of its name."""
    names = list(demo.ABOUT)[: len(codes)]
    made = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch(); print('made', sys.argv[1]); "
    return [
        DemoStep(name, [sys.executable, "-c", made + code, str(folder / name)], folder / name)
        for name, code in zip(names, codes, strict=True)
    ]


def test_steps_are_numbered_and_their_commands_and_output_are_in_a_log_each(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    broken = "print('\\x1b[31mloss nan'); print('why', file=sys.stderr); raise SystemExit(65)"
    monkeypatch.setattr(demo, "_steps", lambda *_: scripted(tmp_path, "", "", broken))
    assert run_demo(str(tmp_path), 0) == 65
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"commands and output of the steps: {tmp_path / 'logs'}"
    assert [line[:5] for line in lines[1:]] == ["[1/8]", "[2/8]", "[3/8]"]
    about, seconds = demo.ABOUT["world"]
    everything = clock(sum(seconds for _, seconds in demo.ABOUT.values()) + demo.RESULTS[1])
    assert lines[1] == f"[1/8] {about}, about {seconds:.0f} s; {everything} left in all"
    command, output = (tmp_path / "logs/world.log").read_text().splitlines()
    assert command.startswith(f"$ {sys.executable} -c")
    assert output == f"made {tmp_path / 'world'}"
    assert "pathlib" not in said.out
    assert said.err.splitlines()[-3:-1] == ["␛[31mloss nan", "why"]
    assert f"exit code 65; its command and all output: {tmp_path / 'logs/policy.log'}" in said.err
    assert run_demo(str(tmp_path), 0) == 65
    again = capsys.readouterr().out.splitlines()
    assert again[1] == f"[1/8] {about}: already done"
    assert [line.partition(" ")[0] for line in again[1:]] == ["[1/8]", "[2/8]", "[3/8]"]


INTERRUPTED = """
import signal, sys
from pathlib import Path
from lmgym.apps.world.demos import toy
from lmgym.apps.world.demos.steps import DemoStep

signal.signal(signal.SIGINT, signal.default_int_handler)
world = Path(sys.argv[1]) / "world"
toy._steps = lambda *_: [DemoStep("world", [sys.executable, "-c", sys.argv[2], str(world)], world)]
sys.exit(toy.run_demo(sys.argv[1], 0))
"""
SAVES = """
import os, pathlib, signal, sys, time

def end(*_):
    time.sleep(2)
    print("saved")
    sys.exit(75)

signal.signal(signal.SIGINT, end)
pathlib.Path(sys.argv[1] + ".pid").write_text(str(os.getpid()))
time.sleep(600)
"""


def test_an_interrupted_demo_waits_for_its_step_and_says_that_it_continues(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    launched = start(launch("fork", tmp_path, SAVES, script=script))
    pid = tmp_path / "world.pid"
    wait_until(lambda: pid.is_file() and pid.read_text() != "")
    os.killpg(launched.process.pid, signal.SIGINT)  # as a terminal does: the demo and its step
    done = finish(launched, 60)
    assert done.returncode == 130, done.stderr
    assert (tmp_path / "logs/world.log").read_text().endswith("saved\n")
    assert "the same command continues" in done.stderr


def test_every_step_has_a_description(tmp_path: Path) -> None:
    assert list(demo.ABOUT) == list(steps(tmp_path))


def test_it_ends_with_what_ppo_gained_and_the_two_commands_to_try_next(tmp_path: Path, capsys) -> None:
    lines = [
        {"step": 0, "eval/reward/mean": 0.1, "eval/eval_scorer": 0.25, "eval/rollout/reply_tokens": 10.0},
        {"step": 16, "kl/reference": 0.5},
        {
            "step": 32,
            "kl/reference": 1.5,
            "eval/reward/mean": 0.7,
            "eval/eval_scorer": 0.75,
            "eval/rollout/reply_tokens": 9.0,
        },
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "samples").mkdir()
    for update, replies in ((0, ["i saw whales.", "i see. ok.", "it is late."]), (16, []), (32, ["ok."] * 3)):
        rows = [json.dumps({"reply": reply}) + "\n" for reply in replies]
        (tmp_path / f"samples/evaluation-{update:06d}.jsonl").write_text("".join(rows))
    diversity = show_gains(tmp_path)
    assert list(diversity["before"].values()) == [1, 1]
    assert list(diversity["after"].values()) == pytest.approx([1 / 3, 0])
    shown = capsys.readouterr().out
    figures = ("0.250", "0.750", "1.500", "10.000", "9.000", "distinct-2", "0.333")
    assert [word for word in figures if word not in shown] == []


def test_results_are_kept_beside_the_completed_steps(tmp_path: Path) -> None:
    step = DemoStep("a", ["a"], tmp_path / "a")
    step.done.touch()
    first = CompletedSteps(tmp_path / "demo.json")
    first.add(step)
    first.note({"diversity": 1})
    assert json.loads((tmp_path / "demo.json").read_text())["results"] == {"diversity": 1}
    assert CompletedSteps(tmp_path / "demo.json").has(step)


def test_the_commands_to_try_next_exist() -> None:
    lines = demo.NEXT.format(bin="B", policy="P", scorer="S").splitlines()
    chat, train = [shlex.split(line) for line in lines if line.startswith("    B/lmgym ")]
    assert chat[1:4] == ["chat", "P", "--scorers"]
    assert "chat" in main.commands
    assert train[1:3] == ["train", "sft"]
    find_experiment(train[3], ["sft"])
    assert train[train.index("--deepspeed") + 1] in {path.stem for path in CONFIGS.iterdir()}


def test_a_folder_with_a_finished_run_of_other_settings_is_refused_and_stays(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "run.json").write_text('{"outcome": "finished"}')
    step = DemoStep("policy", [sys.executable, "-c", "raise SystemExit(9)", "--output", str(folder)], folder / "model")
    completed = CompletedSteps(tmp_path / "demo.json")
    assert run_steps([step], {"policy": ("train", 1.0)}, tmp_path, completed, StepTimes([1.0])) == 2
    assert f"{folder} holds a run of other settings" in capsys.readouterr().err
    (folder / "run.json").write_text('{"outcome": "killed"}')
    assert run_steps([step], {"policy": ("train", 1.0)}, tmp_path, completed, StepTimes([1.0])) == 9

"""Aids that fail, all at once and in turn, under runs of every stage: the runs finish with their models."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from family_stages import preference_config, reward_config, sft_config, train_preferences, train_reward_model, train_sft
from ppo_in_process import PLAIN, train_small

from lmgym.aids import AIDS
from lmgym.apps.audit import trained
from lmgym.cli import doctor, estimate
from lmgym.report.run_files import RunFiles
from lmgym.runs import hub, node_check, stall_report

PACKAGES = ("lmgym", "sft", "reward_models", "preferences", "ppo")
ELSEWHERE: dict[str, Callable[[], Any]] = {
    "{0.__name__}": lambda: doctor._guarded(doctor.versions),
    "counting the weights": lambda: estimate._counts(lambda: None),
    "the audit of {0}/model": lambda: trained.audit_trained(Path("run"), "short"),
    "reading the report of {0}": lambda: node_check._read("a", ""),
    "asking the hub whether {0} may be pushed to": lambda: hub.refuse_unfit_push("alice/tiny"),
    "writing report.html after a stall": lambda: stall_report.Reporter.write_page(object()),  # type: ignore[arg-type]
}
"""aids of other commands, or of runs that do not end by themselves"""
LAST = "the result and the next command"
"""is asked when the run's record is closed: its line is printed"""
REASON = "nobody expects this"
Stage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def stages(small_models, few_pairs: Path, held_out_pairs: Path, chats_file: Path) -> dict[str, Stage]:
    """Runs of each stage, into a folder."""
    gpt2 = small_models["gpt2"]

    def reward(folder: Path) -> None:
        config = reward_config(gpt2, few_pairs, held_out_pairs, folder)
        config = replace(config, heads=2, run=replace(config.run, tracking="tensorboard", memory_gb=64))
        train_reward_model(config)

    def preview(folder: Path) -> None:
        config = reward_config(gpt2, few_pairs, held_out_pairs, folder)
        train_reward_model(replace(config, run=replace(config.run, dry_run=True)))

    def ppo(folder: Path, **settings: Any) -> None:
        train_small(gpt2, chats_file, folder.parent, PLAIN, folder.name, max_updates=4, **settings)

    return {
        "reward": reward,
        "dpo": lambda folder: train_preferences(preference_config(gpt2, few_pairs, held_out_pairs, folder)),
        "sft": lambda folder: train_sft(sft_config(gpt2, chats_file, folder)),
        "ppo": lambda folder: ppo(folder, memory_gb=64),
        "preview": preview,
        "preview of ppo": lambda folder: ppo(folder, dry_run=True),
    }


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Every aid of the packages: a new one is found without anybody's thought."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:  # of a library that runs in an environment of its own
                    if (error.name or "").partition(".")[0] in PACKAGES:
                        raise
    return sorted(AIDS)


def failing(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> set[str]:
    """Has these aids fail; what is returned gets the names of those that were asked."""
    asked: set[str] = set()

    def fail(name: str, *_: Any, **__: Any) -> None:
        asked.add(name)
        raise KeyError(REASON)

    for name in names:
        monkeypatch.setitem(AIDS, name, lambda *_, name=name, **__: fail(name))
    return asked


def assert_finished(folder: Path, failed: set[str]) -> None:
    """The run has its outcome and its model, and says of each aid that it failed."""
    record, events = RunFiles(folder).record, [event["text"] for event in RunFiles(folder).events]
    assert (record["outcome"], record["exit_code"]) == ("finished", 0)
    assert (folder / "model/model.safetensors").is_file()
    for name in failed:
        words = name.partition("{")[0] or name.rpartition("}")[2]
        assert any(words in text and f"failed (KeyError: '{REASON}')" in text for text in events), name


def test_runs_of_every_stage_finish_with_their_models_though_every_aid_fails(
    stages: dict[str, Stage], names: list[str], tmp_path: Path
) -> None:
    reached: set[str] = set()
    for stage, go in stages.items():
        with pytest.MonkeyPatch.context() as patch:
            asked = failing(patch, names)
            go(tmp_path / stage)
        if "preview" not in stage:
            assert_finished(tmp_path / stage, asked - {LAST})
        reached |= asked
    inner = set(names) - reached - ELSEWHERE.keys()  # aids within others, which failed before they asked them
    with pytest.MonkeyPatch.context() as patch:
        asked = failing(patch, sorted(inner))
        stages["reward"](tmp_path / "inner")
    assert_finished(tmp_path / "inner", asked - {LAST})
    assert asked == inner, "these aids fail in no test"


@pytest.mark.parametrize("name", ELSEWHERE)
def test_aids_of_other_commands_stop_them_as_little(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked = failing(monkeypatch, [name])
    ELSEWHERE[name]()
    assert asked == {name}
    assert f"failed (KeyError: '{REASON}')" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["reward", "dpo", "sft", "ppo"])
def test_a_run_finishes_with_its_model_though_an_aid_fails(
    stage: str, stages: dict[str, Stage], names: list[str], tmp_path: Path
) -> None:
    reached = 0
    for number, name in enumerate(names):
        with pytest.MonkeyPatch.context() as patch:
            asked = failing(patch, [name])
            stages[stage](tmp_path / str(number))
        assert_finished(tmp_path / str(number), asked - {LAST})
        reached += len(asked)
    assert reached > 15

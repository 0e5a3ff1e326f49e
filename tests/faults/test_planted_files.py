"""Code, addresses and keys that a file names are not used: tried with every field of the files that commands read."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from forked import import_libraries, run_forked
from fuzzed_inputs import KINDS, make_base
from planting import KEY, KEYS, PICKLED, Planter, Words, run_here, set_trap

from lmgym.apps.games.experiments import self_play
from lmgym.apps.playpen.clembench.bridge import VARIABLE
from lmgym.apps.playpen.registries import keys, models
from lmgym.cli import replay
from lmgym.runs.run import Run
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.llm_judge import ONE
from lmgym.scoring.rubrics import Rubric

BRIEF = ("a file's function", "an address", "a served model")
FORMS = ("a file's function", "the hub's map of classes", "an address")

SCORE = ("lmgym", "score", "scorer", "{base}/rows.jsonl", "--output", "scores.jsonl")
READ = {
    "a registry's entry": ("registries", "model_registry.json", ("playpen", "eval", "toy", "-g", "taboo", "-r", "o")),
    "a registry's served model": ("registries", "model*.json", ("playpen", "eval", "served", "-g", "taboo", "-r", "o")),
    "a file of keys": ("registries", "key.json", ("playpen", "eval", "other", "-g", "taboo", "-r", "o")),
    "a registry of games": ("registries", "game_registry.json", ("playpen", "eval", "mock", "-g", "x", "-r", "o")),
    "registries that are listed": ("registries", "*.json", ("playpen", "list", "models", "-v")),
    "games that are listed": ("registries", "*.json", ("playpen", "list", "games", "-v")),
    "a rubric": ("rubric", "*.yaml", ("lmgym", "score", "rubric.yaml", "{base}/rows.jsonl", "--output", "o.jsonl")),
    "a scorer's settings": ("scorer", "scorer/scorer.json", SCORE),
    "an ensemble": ("ensemble", "*/ensemble.json", SCORE),
    "a run that is listed": ("run", "run/*.json*", ("lmgym", "runs", ".")),
    "a run that is compared": ("run", "run/*.json*", ("lmgym", "compare", "run", "{base}/run/run")),
    "a run that is reported": ("run", "run/*.json*", ("lmgym", "report", "run")),
    "a run that is replayed": ("run", "run/*.json*", ("lmgym", "replay", "run/episodes/a.jsonl")),
    "a run whose model is tested": ("run", "run/run.json", ("lmgym", "audit", "run", "--prompts", "{base}/rows.jsonl")),
    "what a judge has left": (
        "judged", "out/*", ("lmgym", "judge", "{base}/scorer/scorer", "--suite", "{base}/few.jsonl", "--output", "out"),
    ),
    "TRL's settings": ("trl", "trl.yaml", ("lmgym", "from", "trl", "trl.yaml", "--trainer", "dpo")),
    "a chat": ("chat", "chat.jsonl", ("lmgym", "chat", "{base}/policy/model", "--sessions", "new")),
}  # fmt: skip
"""by what is read: a folder of the valid files, those in it that are planted in, and the command"""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """Valid files of each kind."""
    root = tmp_path_factory.mktemp("planted") / "base"
    make_base(root, run_here_well, ["a policy's folder"])
    (root / "rows.jsonl").write_text('{"prompt": "a", "reply": "b"}\n')
    (root / "few.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    settings = {"reduce": "logit", "loss": "bt", "max_length": 96, "moments": [0.0, 1.0], "means": [0.0]}
    write(root / "scorer/scorer/scorer.json", settings)
    write(root / "ensemble/scorer/ensemble.json", {"members": [str(root / "scorer/scorer")] * 2, "combine": "mean"})
    asking = {one.name: getattr(JudgeConfig(), one.name) for one in fields(JudgeConfig)}
    asking |= {"concurrency": 4, "judge_tokens": 4, "patience": 60.0, "max_cost": 1.0}
    whole = {one.name: getattr(Rubric(), one.name) for one in fields(Rubric) if one.name != "asking"} | asking
    rubric = whole | {"model": str(root / "policy/model"), "criteria": [vars(one) for one in ONE], "prices": [1, 2]}
    write(root / "rubric/rubric.yaml", rubric)
    write(root / "trl/trl.yaml", {"model_name_or_path": "m", "dataset_name": "d", "reward_model_path": "r", "beta": 1})
    write_registries(root / "registries")
    (root / "judged").mkdir()
    run_here_well([word.replace("{base}", str(root)) for word in READ["what a judge has left"][2]], root / "judged")
    (root / "chat").mkdir()
    run_here_well(["lmgym", "chat", str(root / "policy/model"), "--sessions", "."], root / "chat", "hello\nand?\n")
    next((root / "chat").glob("*.jsonl")).rename(root / "chat/chat.jsonl")
    run = Run.start(root / "run/run", {"scorers": "a=b", "model": "m", "inner": {"x": 1}}, 0, tracking="none")
    run.log(1, {"loss": 0.5})
    run.finish()
    record = json.loads((root / "run/run/run.json").read_text())
    write(root / "run/run/run.json", record | {"command": shlex.join(["python", str(self_play.__file__), "--seed=1"])})
    write(root / "run/run/episodes/a.jsonl", {})
    return root


def run_here_well(words: Words, folder: Path, said: str = "") -> int:
    """Exit code 0."""
    ended = run_here(words, folder, said)
    assert ended.code == 0, ended.out + ended.err
    return 0


def write(path: Path, value: object) -> None:
    """Writes JSON."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(value))


def write_registries(folder: Path) -> None:
    """Registries with all the keys that they may have, and a file of keys, without a key."""
    entry = dict.fromkeys(sorted(models.KEYS)) | {"backend": "openai_compatible", "model_id": "m"}
    config, address = dict.fromkeys(sorted(models.CONFIG_KEYS)), "http://127.0.0.1:9/v1"
    toy = entry | {"model_name": "toy", "model_config": config | {"base_url": address}}
    other = entry | {"model_name": "other", "model_config": config}
    served = entry | {"model_name": "served", "backend": "spec", "model_id": f"openai:{address}#m", "model_config": {}}
    write(folder / "model_registry.json", [toy, other, served])
    game = {"game_name": "x", "game_path": "x", "players": 2, "description": "x", "benchmark": ["2.0"]}
    write(folder / "game_registry.json", [game])
    write(folder / "x/clemgame.json", game)
    (folder / "x/in").mkdir()
    write(folder / "x/in/instances.json", {"experiments": [{"name": "e", "game_instances": [{"game_id": 0}]}]})
    (folder / "x/master.py").touch()
    write(folder / "key.json", {name: {"api_key": "", "base_url": ""} for name in keys.VARIABLES})


@pytest.fixture
def planter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planter]:
    """A user whose environment has keys, and on whose path the planted module lies."""
    for name in KEYS:
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LMGYM_VERDICTS", str(tmp_path / "verdicts.sqlite"))
    with set_trap(tmp_path / "trap") as trap:
        python = trap.folder / "python"  # which runs games
        python.write_text(f"#!/bin/sh\ntouch {trap.marker}\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(python))

        def become(command: Words) -> None:
            assert not [word for word in command if trap.url in word or str(trap.folder) in word]

        monkeypatch.setattr(replay, "become", become)
        monkeypatch.syspath_prepend(trap.folder)
        yield Planter(trap, tmp_path, run_here)


@pytest.mark.parametrize("what", READ)
def test_no_file_makes_a_command_import_or_ask_what_it_names(what: str, base: Path, planter: Planter) -> None:
    folder, planted, words = READ[what]
    planter.start = partial(run_here, said="%load chat.jsonl\n") if what == "a chat" else run_here
    planter.try_files(base / folder, words, planted, BRIEF)
    assert planter.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("what", READ)
def test_it_holds_of_every_form_of_code_and_of_addresses(what: str, base: Path, planter: Planter) -> None:
    folder, planted, words = READ[what]
    planter.start = partial(run_here, said="%load chat.jsonl\nhello\n") if what == "a chat" else run_here
    planter.try_files(base / folder, words, planted)
    assert planter.faults == []


def test_no_pickle_beside_or_in_place_of_weights_is_loaded(base: Path, planter: Planter) -> None:
    planter.try_pickles(base / "scorer", SCORE)
    assert planter.runs > len(PICKLED)
    assert planter.faults == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The files that the fuzzer damages."""
    import_libraries()
    root = tmp_path_factory.mktemp("whole") / "base"
    make_base(root, lambda words, folder: run_forked(words, folder).code, tuple(KINDS))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_holds_of_models_runs_and_records(kind: str, whole: Path, planter: Planter) -> None:
    planter.start = run_forked
    planter.try_files(whole / KINDS[kind].base, KINDS[kind].commands[0], KINDS[kind].damaged, FORMS)
    assert planter.faults == []

"""Runs with --push_to_hub as users launch them, on a stand-in for the hub: what is there equals what was trained."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hub_stub import ENVIRONMENT, READER, WRITER, Fault, Hub, serving
from launching import BIN, ROOT, flags, launch, read_lines, run

PRIVATE = ("optimizer", "checkpoint", "trainer_state", "training_args", "rng", "run.json", "jsonl", "critic")
TRAIN = {
    "max_length": 128, "global_batch": 4, "micro_batch": 4, "max_updates": 6, "eval_updates": 2, "learning_rate": 1e-2,
    "precision": "fp32", "tracking": "none",
}  # fmt: skip
SCRIPTS = {
    "reward": "reward_models/experiments/hh_pairwise.py",
    "dpo": "preferences/experiments/dpo.py",
    "sft": "sft/experiments/hh_chosen.py",
}
Go = Callable[..., tuple[CompletedProcess[str], Path]]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as found:
        yield found


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return ENVIRONMENT | {
        "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": WRITER, "HF_HOME": str(tmp_path / "home"),
    }  # fmt: skip


@pytest.fixture
def go(small_models: dict[str, Path], few_pairs: Path, tmp_path: Path, environment: dict[str, str]) -> Go:
    """Launches a stage; (what it said, its folder)."""

    def begin(stage: str, returns: int = 0, token: str = WRITER, **changes: object):
        folder = tmp_path / f"secret/{stage}"
        values = {"model": small_models["llama"], "dataset": few_pairs, "output": folder, **TRAIN, **changes}
        done = run(
            launch("python", *flags(**values), script=ROOT / SCRIPTS[stage]), **environment | {"HF_TOKEN": token}
        )
        assert done.returncode == returns, done.stdout[-2000:] + done.stderr[-3000:]
        assert token not in done.stdout + done.stderr
        return done, folder

    return begin


def assert_nothing_private(hub: Hub, name: str, tmp_path: Path) -> None:
    for branch in hub.repositories["model", name].branches:
        for path, data in hub.files(name, branch).items():
            assert not any(word in path for word in PRIVATE), path
            assert str(tmp_path).encode() not in data, path
            assert b"pytest" not in data, path


@pytest.mark.slow  # a push by itself is tested beside it, and few changes touch both
def test_a_scorer_is_pushed_as_it_trains_and_scored_by_its_name_on_the_hub(
    go: Go, hub: Hub, environment: dict[str, str], few_pairs: Path, tmp_path: Path
) -> None:
    hub.faults += [Fault("POST .*/commit/"), Fault("POST /api/repos/create", 503, headers={"Retry-After": "0"})]
    done, folder = go("reward", push_to_hub="alice/scorer", hub_private="true")
    assert hub.repositories["model", "alice/scorer"].private
    weights = (folder / "model/model.safetensors").read_bytes()
    assert hub.files("alice/scorer")["model.safetensors"] == weights
    assert_nothing_private(hub, "alice/scorer", tmp_path)
    record = json.loads((folder / "run.json").read_text())["pushed"]
    assert [(one["repository"], one["folder"]) for one in record if one["revision"] == "main"] == [
        ("alice/scorer", "model")
    ]
    assert WRITER not in (folder / "run.json").read_text()
    assert f"pushed model/ to {hub.url}/alice/scorer (main, commit {record[0]['commit'][:10]}: " in done.stdout
    scores = []
    for kind, name in (("python", "alice/scorer"), ("fork", folder / "model")):
        file = tmp_path / f"{len(scores)}.jsonl"
        words = ("score", name, few_pairs, "--output", file)
        # the hub's address is read at an import
        scored = run(launch(kind, *words, script=BIN / "lmgym"), **(environment if kind == "python" else {}))
        assert scored.returncode == 0, scored.stderr
        scores.append([(row["score_chosen"], row["score_rejected"]) for row in read_lines(file)])
    assert scores[0] == scores[1]
    assert len(set(scores[0])) > 10


@pytest.mark.slow
def test_a_merged_policy_and_its_last_are_on_two_branches_and_generate_the_same(
    go: Go, hub: Hub, environment: dict[str, str], tmp_path: Path
) -> None:
    from huggingface_hub import HfApi

    from lmgym.generation.local_generation import load_causal
    from lmgym.generation.protocol import Sampling

    _, folder = go(
        "dpo", push_to_hub="alice/policy", lora_rank=4, merge_adapter="true", max_updates=40, learning_rate=5e-2
    )
    assert_nothing_private(hub, "alice/policy", tmp_path)
    assert (folder / "last").is_dir(), "the run overfits"
    assert hub.files("alice/policy") != hub.files("alice/policy", "last")
    for branch, name in (("main", "model"), ("last", "last")):
        copy = tmp_path / f"copy-{branch}"
        copy.mkdir()
        for path, data in hub.files("alice/policy", branch).items():
            (copy / path).write_bytes(data)
        replies = [
            [one[0].ids for one in load_causal(str(place)).generate([[5, 6, 7], [9, 8]], 1, Sampling(20, 0.0))]
            for place in (copy, folder / name)
        ]
        assert replies[0] == replies[1]
    assert HfApi(hub.url, WRITER).model_info("alice/policy").id == "alice/policy"


@pytest.mark.slow
def test_an_adapter_of_a_model_of_the_hub_is_loaded_from_there_with_its_base(
    go: Go, hub: Hub, environment: dict[str, str], small_models: dict[str, Path], tmp_path: Path
) -> None:
    hub.add("alice/base", {path.name: path.read_bytes() for path in small_models["llama"].iterdir()})
    done, folder = go("dpo", returns=2, push_to_hub="alice/adapter", lora_rank=4)
    assert "a folder that others do not have; needed: --merge_adapter" in done.stderr
    _, folder = go("dpo", push_to_hub="alice/adapter", lora_rank=4, model="alice/base")
    assert_nothing_private(hub, "alice/adapter", tmp_path)
    settings = json.loads(hub.files("alice/adapter")["adapter_config.json"])
    assert settings["base_model_name_or_path"] == "alice/base"
    assert hub.files("alice/adapter")["adapter_model.safetensors"] == (
        (folder / "adapter/adapter_model.safetensors").read_bytes()
    )
    code = """
import sys, torch
from transformers import AutoModelForCausalLM
models = [AutoModelForCausalLM.from_pretrained(name) for name in sys.argv[1:]]
logits = [model(torch.tensor([[5, 6, 7]])).logits for model in models]
print((logits[0] - logits[1]).abs().max().item(), (logits[0] - logits[2]).abs().max().item() > 0)
"""
    loaded = run([BIN / "python", "-c", code, "alice/adapter", folder / "adapter", "alice/base"], **environment)
    assert loaded.stdout.split() == ["0.0", "True"], loaded.stderr[-2000:]


@pytest.mark.slow
def test_a_push_that_fails_leaves_the_run_and_its_command_pushes_it_later(
    go: Go, hub: Hub, environment: dict[str, str], tmp_path: Path
) -> None:
    hub.faults.append(Fault("POST .*/commit/", 503, times=10_000, headers={"Retry-After": "0"}))
    done, folder = go("sft", push_to_hub="alice/chat", sample_prompts=0)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: the push to alice/chat failed")]
    assert warnings
    assert warnings[-1].endswith(f"later: lmgym push {folder} alice/chat")
    assert json.loads((folder / "run.json").read_text())["outcome"] == "finished"
    hub.faults.clear()
    pushed = run([BIN / "lmgym", *warnings[-1].partition("lmgym ")[2].split()], **environment)
    assert pushed.returncode == 0, pushed.stderr
    assert hub.files("alice/chat")["model.safetensors"] == (folder / "model/model.safetensors").read_bytes()
    assert json.loads((folder / "run.json").read_text())["pushed"][0]["repository"] == "alice/chat"


@pytest.mark.slow
@pytest.mark.parametrize("dry", [True, False])
def test_a_token_that_may_only_read_is_refused_before_training(dry: bool, go: Go, hub: Hub) -> None:
    more = {"dry_run": "true"} if dry else {}
    done, folder = go("reward", returns=2, token=READER, push_to_hub="bob/scorer", **more)
    assert "the token in HF_TOKEN may only read from bob; needed: one with the role write" in done.stderr
    assert not (folder / "run.json").exists()
    assert hub.count("POST") == 0

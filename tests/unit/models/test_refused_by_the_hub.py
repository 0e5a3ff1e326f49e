"""Models, scorers and data sets that the hub refuses, as a process loads them: the status, and what to set."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stub import ENVIRONMENT, READER, WRITER, WRONG, Hub, serving
from patience import PATIENCE

LOAD = """
import json, os, sys

from lmgym.data.sources import load_hub
from lmgym.errors import InputError
from lmgym.generation.local_generation import load_causal
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.scorers import HFScorer

LOADERS = {
    "policy": load_causal, "tokenizer": load_tokenizer, "scorer": HFScorer.load,
    "rows": lambda name: len(load_hub(name, "train")),
}
said = {}
for token, kind, name in json.loads(sys.argv[1]):
    for variable in ("HF_TOKEN", "HUGGINGFACE_TOKEN"):
        os.environ.pop(variable, None)
    variable, _, value = token.partition("=")
    if value:
        os.environ[variable] = value
    try:
        said[f"{token} {kind} {name}"] = str(LOADERS[kind](name))
    except InputError as error:
        said[f"{token} {kind} {name}"] = f"refused: {error}"
print(json.dumps(said))
"""
ROWS = b'{"prompt": "a", "completion": "b"}\n' * 3
NONE, WRONG_ONE, OTHERS, OURS, ORIGINAL = (
    "",
    f"HF_TOKEN={WRONG}",
    f"HF_TOKEN={READER}",
    f"HF_TOKEN={WRITER}",
    f"HUGGINGFACE_TOKEN={WRITER}",
)
MODELS = [(kind, name) for kind in ("policy", "tokenizer", "scorer") for name in ("alice/private", "alice/gated")]
CASES = [(token, *one) for token in (NONE, WRONG_ONE, OTHERS) for one in (*MODELS, ("rows", "alice/rows"))]
LAST = [(ORIGINAL, "rows", "alice/rows"), (ORIGINAL, "policy", "alice/private"), (OURS, "scorer", "alice/scorer")]


@pytest.fixture(scope="module")
def said(small_models: dict[str, Path], scorer_folders: dict[str, Path], tmp_path_factory) -> Iterator[dict[str, str]]:
    """The message of each of the cases, loaded all of them in one process, by `TOKEN KIND NAME`."""
    with serving() as hub:
        fill(hub, small_models["llama"], scorer_folders["llama"])
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path_factory.mktemp("home")), "HF_HUB_OFFLINE": "0"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        done = subprocess.run(
            [sys.executable, "-c", LOAD, json.dumps([*CASES, *LAST])],
            env=environment | ENVIRONMENT | home,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        for token in (WRITER, READER, WRONG):
            assert token not in done.stdout.replace(f"={token}", "") + done.stderr
        yield json.loads(done.stdout.splitlines()[-1])


def fill(hub: Hub, policy: Path, scorer: Path) -> None:
    files = {path.name: path.read_bytes() for path in policy.iterdir() if path.is_file()}
    hub.add("alice/private", files, private=True)
    hub.add("alice/gated", files, gated=True)
    hub.add("alice/scorer", {p.name: p.read_bytes() for p in scorer.iterdir() if p.is_file()}, private=True)
    hub.add("alice/rows", {"train.jsonl": ROWS}, kind="dataset", private=True)


@pytest.mark.parametrize(("kind", "name"), [*MODELS, ("rows", "alice/rows")])
def test_without_a_token_it_is_401_and_to_set_one(kind: str, name: str, said: dict[str, str]) -> None:
    message = said[f"{NONE} {kind} {name}"]
    assert message.startswith("refused: ")
    assert f"the hub answered 401 for {name}: " in message
    assert "no token was sent; needed: " in message
    assert "HF_TOKEN, set to a token that may read it" in message
    assert "valid model identifier" not in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(("kind", "name"), [*MODELS, ("rows", "alice/rows")])
def test_with_a_wrong_token_it_is_401_and_that_the_token_is_wrong(kind: str, name: str, said: dict[str, str]) -> None:
    message = said[f"{WRONG_ONE} {kind} {name}"]
    assert f"the hub answered 401 for {name}: the token in HF_TOKEN is not valid; needed: HF_TOKEN" in message
    assert "connection error" not in message


@pytest.mark.parametrize(("kind", "name"), [*MODELS, ("rows", "alice/rows")])
def test_with_another_users_token_it_is_that_this_one_may_not(kind: str, name: str, said: dict[str, str]) -> None:
    message = said[f"{OTHERS} {kind} {name}"]
    if name == "alice/gated":
        assert "the hub answered 403 for alice/gated: it is gated; " in message
        assert "needed: accept its conditions on its page of the hub" in message
    else:
        assert f"the hub answered 404 for {name}: there is no such repository that the token in HF_TOKEN may" in message


def test_with_the_right_token_under_either_name_all_of_them_load(said: dict[str, str]) -> None:
    found = [said[f"{token} {kind} {name}"] for token, kind, name in LAST]
    assert found[0] == "3"
    assert [one for one in found if one.startswith("refused")] == []

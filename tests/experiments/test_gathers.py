"""ZeRO-3's gathers on two ranks, one of which has no token: a head once in each direction, weights in buckets."""

import json
from pathlib import Path

import pytest
from launching import launch, run


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict]:
    file = tmp_path_factory.mktemp("gathers") / "found.json"
    done = run(launch("deepspeed", file, script=Path(__file__).parent / "gathers_script.py"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("trained", [True, False])
def test_a_head_is_gathered_once_in_each_direction_whatever_the_chunks(tied: bool, trained: bool, found) -> None:
    of_head = found[f"{tied} {trained}"]
    # tied, it is gathered as the embeddings too, whose backward needs it only if they learn
    assert of_head["forward"] == (2 if tied else 1), "of twelve chunks"
    assert of_head["backward"] == (2 if tied and trained else 1)
    assert of_head["gap"] < 1e-6
    assert of_head["gradient"] < 2e-6, "of the largest, and those of the rank without tokens are in it"


@pytest.mark.slow
def test_a_weight_sync_gathers_buckets(found) -> None:
    one, several, everything = (found[name] for name in ("one", "several", "all"))
    assert one["same"]
    assert several["same"]
    assert everything["same"]
    assert one["entered"] == one["weights"], "each weight is larger than a byte"
    assert everything["entered"] == 1
    assert several["bytes"] / (32 * 1024) <= several["entered"] <= 2 * several["bytes"] / (32 * 1024)
